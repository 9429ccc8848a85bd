"""Only tasks that were found to be worth it.

A list of indices comes from a run before: the tasks an agent solves at least once of many tries (ARPO for GUI agents),
or those whose curve of success is most like the mean curve (LIMR).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from whetstone.contracts import fulfils
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.protocol import Counted, Source


def learning_impact(curves: Sequence[Sequence[float]]) -> list[float]:
    """How much each task's success, epoch by epoch, moved as the mean did: 1 − Σ(r − mean)² / Σ(1 − mean)².

    A task that is always solved has 0; where the mean is 1 throughout, all have.

    Args:
        curves: [tasks, epochs] share of samples that were right.

    Source: LIMR 2025, arXiv:2502.11886, and its code (`lim/lim_selection.py`).
    """
    values = np.asarray(curves, dtype=float)
    mean = values.mean(0)
    usual = float(((1 - mean) ** 2).sum())
    if usual == 0:
        return [0.0] * len(values)
    return [1 - float(((curve - mean) ** 2).sum()) / usual for curve in values]


def filled(curve: Sequence[float | None]) -> list[float] | None:
    """A curve with epochs that are missing taken from the next one; None where that is missing too.

    Source: LIMR 2025, arXiv:2502.11886, its code.
    """
    found: list[float] = []
    for k, value in enumerate(curve):
        if value is None:
            value = curve[k + 1] if k + 1 < len(curve) else None
        if value is None:
            return None
        found.append(value)
    return found


def solvable(successes: Sequence[int]) -> list[int]:
    """The tasks that were solved at least once.

    Source: ARPO for GUI agents 2025, arXiv:2505.16282
    """
    return [index for index, count in enumerate(successes) if count > 0]


class Chosen:
    """Goes round the tasks of a list.

    Args:
        indices: Of the source's training tasks.
        path: A JSON file with such a list.
    """

    def __init__(self, *, indices: Sequence[int] = (), path: str = "", seed: int = 0) -> None:
        if indices and path:
            raise OptionError("indices", "both a list of tasks and path are set; take one out (indices: null)")
        if not indices and not path:
            raise OptionError(
                "indices",
                "either a list of tasks, or path: a JSON file that holds one, as `whetstone tasks score RUN` writes",
            )
        if path:
            try:
                indices = json.loads(Path(path).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise OptionError("path", f"{path}: {error}") from None
        if not indices or any(not isinstance(index, int) or index < 0 for index in indices):
            raise OptionError("path" if path else "indices", "a list of task numbers, zero or more")
        self.indices, self.seed = list(indices), seed

    def check(self, source: Source, first: int) -> None:
        """Whether the source has these tasks.

        Raises:
            TaskError: It has not.
        """
        most = source.training_tasks if fulfils(source, Counted) else None
        if most is not None and max(self.indices) >= most:
            raise TaskError(f"there is no training task {max(self.indices)}; there are 0 to {most - 1}")

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """See `Curriculum`."""
        rounds, place = divmod(number, len(self.indices))
        order = list(self.indices)
        Random(f"{self.seed}/{rounds}").shuffle(order)
        return order[place]
