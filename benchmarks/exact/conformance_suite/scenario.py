"""What an adapter receives and writes: the scenario, its tool and reward, and the record of a run.

Only the standard library is imported, so that an adapter runs in the environment of its trainer.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DOWN = "the lookup backend is down"
REFUSED = 3
"""Exit code of an adapter whose trainer does not support a scenario; the reason is the last line of stderr."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training run that an adapter plays."""

    world: str
    """Folder with `model/` (Hugging Face), `tasks.jsonl` (`id`, `prompt`, an empty `answer`) and `chats.jsonl`
    (`messages`)."""
    out: str
    """Folder of the run. It exists and is empty, unless `resume`."""
    stage: str = "reinforcement"
    """`reinforcement`: GRPO without a reference. `supervised`: `chats.jsonl`, only the assistant's messages."""
    updates: int = 3
    """Number of updates; with `updates_per_batch`, several on the same samples."""
    updates_per_batch: int = 1
    tasks_per_update: int = 4
    group_size: int = 4
    max_turn_tokens: int = 32
    learning_rate: float = 1e-3
    """Constant rate of AdamW without weight decay."""
    lora_rank: int = 0
    """0 trains all weights."""
    tool: bool = False
    """Offer `look_up`; an episode has two turns."""
    fault: str = ""
    """`tool`, `verdict`, `hang` or empty; see `look_up` and `judge`."""
    processes: int = 1
    """Processes that train together."""
    resume: bool = False
    """Continue from the last checkpoint in `out`. Each update is followed by a checkpoint."""
    seconds_per_update: float = 0.0
    """Pause after each update, so that the run can be killed between two of them."""
    seed: int = 0

    def save(self, path: Path) -> None:
        """Write the scenario."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: str) -> Scenario:
        """Read a scenario."""
        return cls(**json.loads(Path(path).read_text()))

    @property
    def model(self) -> str:
        """Return the folder of the model."""
        return str(Path(self.world) / "model")


class Recorder:
    """Writer of a record.

    Adapters call it at the boundaries of their trainer: for each generation of the sampler, and for each sequence that
    the loss receives.
    """

    def __init__(self, scenario: Scenario, process: int = 0) -> None:
        self.scenario, self.folder, self.process, self.calls = scenario, Path(scenario.out) / "record", process, 0
        self.folder.mkdir(exist_ok=True)
        (self.folder / "weights").mkdir(exist_ok=True)
        self._lock = threading.Lock()

    def write(self, name: str, row: dict[str, Any]) -> None:
        """Append a row to a file of the record, in one system call."""
        line = json.dumps({**row, "process": self.process, "time": time.time()}) + "\n"
        handle = os.open(self.folder / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def trainer(self, name: str, version: str) -> None:
        """Record name and version of the trainer."""
        self.write("trainer", {"name": name, "version": version})

    def sampled(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Record one generation: the ids that the sampler read, and those that it sampled."""
        self.write("sampled", {"prompt": list(prompt), "tokens": list(tokens)})

    def trained(
        self, update: int, ids: Sequence[int], mask: Sequence[int], *, advantage: float | None = None, task: str = ""
    ) -> None:
        """Record a sequence of an update: its ids, and 1 for each token in the loss."""
        row = {"ids": list(map(int, ids)), "mask": list(map(int, mask)), "advantage": advantage, "task": task}
        self.write("trained", {"update": update, **row})

    def weights(self, updates: int, state: dict[str, Any]) -> None:
        """Store the weights after a number of updates, adapters merged, by the names of the Hugging Face model."""
        from safetensors.torch import save_file

        path = self.folder / "weights" / f"{updates}.safetensors"
        save_file({name: value.detach().clone().contiguous() for name, value in state.items()}, f"{path}.part")
        os.replace(f"{path}.part", path)
        self.write("updates", {"done": updates})

    def look_up(self, key: str) -> str:
        """Look up a key.

        Args:
            key: The key.
        """
        with self._lock:
            self.calls += 1
            call = self.calls
        if self.scenario.fault == "tool" and call % 5 == 2:
            self.write("faults", {"kind": "tool", "call": call})
            raise ConnectionError(DOWN)
        if self.scenario.fault == "hang" and call == 2:
            self.write("faults", {"kind": "hang", "call": call})
            time.sleep(3600)
        return "value: 7"

    def judge(self, answer: str, results: Sequence[str]) -> float | None:
        """Return the reward of an episode: from 0.5 to 1 by its letters, and 0 without a value from the tool.

        None if the judge does not answer (fault `verdict`), which is so for every answer that ends with `b`.
        """
        text = answer.strip()
        if self.scenario.fault == "verdict" and text.endswith("b"):
            self.write("faults", {"kind": "verdict", "answer": text})
            return None
        if self.scenario.tool and not any("value" in result for result in results):
            return 0.0
        return 0.5 + 0.5 * text.count("a") / max(1, len(text))


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Read the rows of a record; a torn last line is ignored."""
    path = folder / "record" / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
