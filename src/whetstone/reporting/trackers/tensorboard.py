"""TensorBoard: event files in a folder of the run. `tensorboard --logdir runs` shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers.protocol import TrackedRun


class TensorBoard:
    """TensorBoard tracker: metrics as scalars, and the recipe as text, in event files.

    Args:
        folder: Folder with one subfolder per run; null: `tensorboard` in the run directory.
    """

    def __init__(self, *, folder: str | None = None) -> None:
        if find_spec("tensorboard") is None:
            raise RecipeError(f"tensorboard is not installed: {install_command('tensorboard')}")
        self.folder = folder
        self._writer: Any = None

    def start(self, run: TrackedRun) -> int | None:
        """Open the event file of the run, and write its recipe. See `Tracker.start`."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(self.folder) / f"{run.name}-{run.id}" if self.folder is not None else run.folder / "tensorboard"
        begun = folder.is_dir() and any(folder.iterdir())
        self._writer = EventFileWriter(str(folder))
        if not begun:
            self._text("recipe", f"```json\n{json.dumps(run.recipe, indent=1)}\n```")
        return None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step as scalars. See `Tracker.log`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()  # a logged step must be in the file even if the process is killed

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """Write the summary and close the event file. See `Tracker.finish`."""
        if summary is not None:
            self._text("summary", "\n".join(f"{name}: {value:g}  " for name, value in summary.items()))
        self._writer.close()

    def _text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=one)
        about = create_summary_metadata(display_name=tag, description="")
        value = Summary.Value(tag=tag, metadata=about, tensor=tensor)
        self._writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
        self._writer.flush()
