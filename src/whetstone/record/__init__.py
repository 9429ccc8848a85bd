"""What does a run keep on disk? Its directory, its journal of trajectories, checkpoints, and who reads them."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.record.checkpoint import (
        Checkpoints,
        Position,
        checkpoint_path,
        find_checkpoint,
        kept_checkpoint,
        latest_checkpoint,
        load_checkpoint,
        run_of_checkpoint,
    )
    from whetstone.record.finding import is_run
    from whetstone.record.lines import stored_lines
    from whetstone.record.reader import RunRecord
    from whetstone.record.run_directory import claimed, read_changes, read_json, run_recipe, write_json
    from whetstone.record.store import RunStore

__getattr__, __dir__ = window(__name__)

__all__ = [
    "Checkpoints",
    "Position",
    "RunRecord",
    "RunStore",
    "checkpoint_path",
    "claimed",
    "find_checkpoint",
    "is_run",
    "kept_checkpoint",
    "latest_checkpoint",
    "load_checkpoint",
    "read_changes",
    "read_json",
    "run_of_checkpoint",
    "run_recipe",
    "stored_lines",
    "write_json",
]
