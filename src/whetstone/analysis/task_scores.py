"""Which tasks of a run did its agent learn from? Those whose success moved as the mean did (LIMR).

    groups in their order → as many windows as the run went round its tasks → a curve a task → its score

Easy to get wrong: a source that has few tasks gives one task under many numbers. Tasks are told apart by their ids, and
the first number a task was sampled under stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from whetstone.errors import RunDirectoryError
from whetstone.record.reader import RunRecord
from whetstone.tasks.curricula.chosen import filled, learning_impact
from whetstone.trajectory import Task


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A training task, and what a run came to on it."""

    index: int
    """Its number in the source."""
    id: str
    score: float
    """1: its success moved exactly as the mean did; 0: it was solved from the beginning."""
    curve: tuple[float, ...]
    """[windows] the share of its episodes that succeeded."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """What the tasks of a run are worth."""

    tasks: tuple[TaskScore, ...]
    """The best first; equal ones as they stand in the source."""
    dropped: int
    """Tasks that cannot be told of: they were left out of two windows in a row, or of the last."""

    def best(self, *, share: float = 1 / 6, at_least: float | None = None) -> list[int]:
        """The numbers of the best, in the order of the source.

        Args:
            share: Of the tasks that have a score, at least one task; read without `at_least`.
            at_least: All that have this score.
        """
        if at_least is not None:
            chosen = [task for task in self.tasks if task.score >= at_least]
        else:
            chosen = list(self.tasks[: max(1, round(share * len(self.tasks)))])
        return sorted(task.index for task in chosen)


def task_scores(run_dir: Path, *, windows: int | None = None) -> TaskScores:
    """The learning impact of each task a run sampled.

        s = 1 − Σ_k (r_k − r̄_k)² / Σ_k (1 − r̄_k)²      over the windows k, r̄ the mean over tasks

    Args:
        run_dir: Of a run that sampled its tasks more than once.
        windows: Into how many equal parts its groups are divided; None: how often it went round its tasks in the mean.

    Raises:
        RunDirectoryError: It has no updates, or hardly sampled a task twice.

    Source: LIMR 2025, arXiv:2502.11886, and its code (`lim/lim_selection.py`), whose epochs are the windows here. A
        window a task has no episode in is filled from the next one; a task that cannot be filled is dropped.
    """
    record = RunRecord(run_dir)
    numbers = sorted(
        number
        for taken in (record.consumed, record.passed_over)
        for groups in taken.values()
        for number in groups
        if isinstance(record.tasks.get(number), int) and record.holds(number)
    )
    if not numbers:
        raise RunDirectoryError(f"{run_dir}: no update on record whose tasks are numbers of the source")
    indices: dict[str, int] = {}
    visits: list[tuple[str, float | None]] = []
    for number in numbers:
        trajectories = [t for t in record.load(number, Task("", "")).trajectories if not t.greedy]
        index = record.tasks[number]
        assert isinstance(index, int)  # others were left out
        id = trajectories[0].task_id if trajectories else f"task {index}"
        indices[id] = min(index, indices.get(id, index))
        judged = [float(t.solved) for t in trajectories if t.score is not None]
        visits.append((id, fmean(judged) if judged else None))
    count = windows if windows is not None else len(visits) // len(indices)
    if not 2 <= count <= len(visits):
        said = f"{len(visits)} groups of {len(indices)} tasks"
        raise RunDirectoryError(
            f"{run_dir}: {said}: a curve needs tasks that were sampled at least twice; train longer on fewer tasks "
            "(curriculum: {name: pool, size: 64}), or say --windows, 2 to the number of groups"
        )
    curves = _curves(visits, count)
    known = {id: curve for id, each in curves.items() if (curve := filled(each)) is not None}
    if not known:
        raise RunDirectoryError(f"{run_dir}: no task was sampled in each of {count} windows; say fewer: --windows")
    scores = learning_impact(list(known.values()))
    scored = [
        TaskScore(indices[id], id, score, tuple(curve))
        for (id, curve), score in zip(known.items(), scores, strict=True)
    ]
    return TaskScores(tuple(sorted(scored, key=lambda task: (-task.score, task.index))), len(curves) - len(known))


def _curves(visits: list[tuple[str, float | None]], count: int) -> Mapping[str, list[float | None]]:
    """By task, its success in each window; None where it had no episode that was judged."""
    seen: dict[str, list[list[float]]] = {id: [[] for _ in range(count)] for id, _ in visits}
    for place, (id, success) in enumerate(visits):
        if success is not None:
            seen[id][place * count // len(visits)].append(success)
    return {id: [fmean(each) if each else None for each in windows] for id, windows in seen.items()}
