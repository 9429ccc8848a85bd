"""Curriculum over a selected subset of tasks, and functions that select it.

A list of indices results from an earlier run: the tasks that an agent solves at least once in many attempts (ARPO for
GUI agents), or those whose learning curve is most similar to the mean curve (LIMR).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from whetstone.capabilities import implements_protocol
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.protocol import Finite, Source


def learning_impact(curves: Sequence[Sequence[float]]) -> list[float]:
    """Compute the similarity of each task's learning curve to the mean curve (LIMR).

        1 − Σ(r − mean)² / Σ(1 − mean)²

    A task that is always solved has 0; if the mean is always 1, all tasks have 0.

    Args:
        curves: [tasks, epochs] fraction of correct samples.

    Returns:
        [tasks] similarity, at most 1.

    Source: LIMR 2025, arXiv:2502.11886, and its code (`lim/lim_selection.py`).
    """
    values = np.asarray(curves, dtype=float)
    mean = values.mean(0)
    usual = float(((1 - mean) ** 2).sum())
    if usual == 0:
        return [0.0] * len(values)
    return [1 - float(((curve - mean) ** 2).sum()) / usual for curve in values]


def fill_gaps(curve: Sequence[float | None]) -> list[float] | None:
    """Fill missing epochs of a curve with the value of the next epoch.

    Args:
        curve: [epochs] fraction of correct samples; None: missing.

    Returns:
        The filled curve; None if the next epoch of a missing one is missing, too.

    Source: LIMR 2025, arXiv:2502.11886, its code.
    """
    values: list[float] = []
    for k, value in enumerate(curve):
        if value is None:
            value = curve[k + 1] if k + 1 < len(curve) else None
        if value is None:
            return None
        values.append(value)
    return values


def solved_tasks(successes: Sequence[int]) -> list[int]:
    """Return the indices of tasks that were solved at least once.

    Args:
        successes: Number of successes of each task.

    Source: ARPO for GUI agents 2025, arXiv:2505.16282
    """
    return [index for index, count in enumerate(successes) if count > 0]


class TaskSubset:
    """Curriculum that cycles through a list of tasks, in another order each round.

    Args:
        indices: Indices of training tasks of the source.
        path: A JSON file with such a list.
        seed: Seed of the orders; filled in from the recipe.
    """

    def __init__(self, *, indices: Sequence[int] = (), path: str = "", seed: int = 0) -> None:
        if indices and path:
            raise OptionError("indices", "both a list of tasks and path are set; remove one (indices: null)")
        if not indices and not path:
            raise OptionError(
                "indices",
                "set a list of tasks, or path: a JSON file with such a list, as `whetstone tasks score RUN` writes",
            )
        if path:
            try:
                indices = json.loads(Path(path).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise OptionError("path", f"{path}: {error}") from None
        if not indices or any(not isinstance(index, int) or index < 0 for index in indices):
            raise OptionError("path" if path else "indices", "must be a list of task indices, each 0 or more")
        self.indices, self.seed = list(indices), seed

    def check(self, source: Source, first: int) -> None:
        """Check that the source has all tasks of the list.

        Raises:
            TaskError: If it has fewer tasks.
        """
        most = source.training_tasks if implements_protocol(source, Finite) else None
        if most is not None and max(self.indices) >= most:
            raise TaskError(f"there is no training task {max(self.indices)}; the source has tasks 0 to {most - 1}")

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """Return the index of the next task of the round; see `Curriculum`."""
        rounds, place = divmod(number, len(self.indices))
        order = list(self.indices)
        Random(f"{self.seed}/{rounds}").shuffle(order)
        return order[place]
