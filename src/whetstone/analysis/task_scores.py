"""Learning impact of training tasks (LIMR): tasks whose success curve follows the mean curve score high.

    groups in their order → one window per pass over the tasks → one curve per task → its score

Note: A source with few tasks returns one task under several indices. Tasks are identified by their IDs, and the first
index under which a task was sampled represents it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from whetstone.errors import RunDirectoryError
from whetstone.record.reader import RunRecord
from whetstone.tasks.curricula.task_subset import fill_gaps, learning_impact
from whetstone.trajectory import Task


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Learning impact of a training task in a run."""

    index: int
    """Index in the source."""
    id: str
    """Id of the task."""
    score: float
    """1: its success followed the mean exactly; 0: it was solved from the start."""
    curve: tuple[float, ...]
    """[windows] fraction of its episodes that succeeded."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Learning impact of all tasks of a run. Created by `task_scores`."""

    tasks: tuple[TaskScore, ...]
    """Tasks by descending score; equal ones in the order of the source."""
    dropped: int
    """Number of tasks without a score: they are missing in two consecutive windows, or in the last."""

    def select_best(self, *, share: float = 1 / 6, at_least: float | None = None) -> list[int]:
        """Return the source indices of the tasks with the highest scores, in ascending order.

        Args:
            share: Fraction of the scored tasks, at least one task; ignored with `at_least`.
            at_least: Minimum score; all tasks with it are returned.
        """
        if at_least is not None:
            chosen = [task for task in self.tasks if task.score >= at_least]
        else:
            chosen = list(self.tasks[: max(1, round(share * len(self.tasks)))])
        return sorted(task.index for task in chosen)


def task_scores(run_dir: Path, *, windows: int | None = None) -> TaskScores:
    """Compute the learning impact of each task that a run sampled.

        s = 1 − Σ_k (r_k − r̄_k)² / Σ_k (1 − r̄_k)²      over the windows k, r̄ the mean over tasks

    Args:
        run_dir: Run directory of a run that sampled its tasks more than once.
        windows: Number of equal parts of its groups; None: mean number of passes over the tasks.

    Raises:
        RunDirectoryError: The run has no updates, or hardly any task was sampled twice.

    Source: LIMR 2025, arXiv:2502.11886, and its code (`lim/lim_selection.py`), whose epochs are the windows here. A
        window a task has no episode in is filled from the next one; a task that cannot be filled is dropped.
    """
    record = RunRecord(run_dir)
    numbers = sorted(
        number
        for taken in (record.consumed, record.passed_over)
        for groups in taken.values()
        for number in groups
        if isinstance(record.tasks.get(number), int) and record.has_group(number)
    )
    if not numbers:
        raise RunDirectoryError(f"{run_dir}: no update on record with tasks of the source")
    indices: dict[str, int] = {}
    visits: list[tuple[str, float | None]] = []
    for number in numbers:
        trajectories = [t for t in record.load(number, Task("", "")).trajectories if not t.greedy]
        index = record.tasks[number]
        assert isinstance(index, int)  # others are excluded above
        id = trajectories[0].task_id if trajectories else f"task {index}"
        indices[id] = min(index, indices.get(id, index))
        judged = [float(t.solved) for t in trajectories if t.score is not None]
        visits.append((id, fmean(judged) if judged else None))
    count = windows if windows is not None else len(visits) // len(indices)
    if not 2 <= count <= len(visits):
        counts = f"{len(visits)} groups of {len(indices)} tasks"
        raise RunDirectoryError(
            f"{run_dir}: {counts}; a curve needs tasks that were sampled at least twice; train longer on fewer tasks "
            "(curriculum: {name: pool, size: 64}), or set --windows, from 2 to the number of groups"
        )
    curves = _curves(visits, count)
    known = {id: curve for id, each in curves.items() if (curve := fill_gaps(each)) is not None}
    if not known:
        raise RunDirectoryError(f"{run_dir}: no task was sampled in each of {count} windows; set a smaller --windows")
    scores = learning_impact(list(known.values()))
    scored = [
        TaskScore(indices[id], id, score, tuple(curve))
        for (id, curve), score in zip(known.items(), scores, strict=True)
    ]
    return TaskScores(tuple(sorted(scored, key=lambda task: (-task.score, task.index))), len(curves) - len(known))


def _curves(visits: list[tuple[str, float | None]], count: int) -> Mapping[str, list[float | None]]:
    """Return the success curve of each task, by id: one fraction per window, None without a scored episode."""
    seen: dict[str, list[list[float]]] = {id: [[] for _ in range(count)] for id, _ in visits}
    for place, (id, success) in enumerate(visits):
        if success is not None:
            seen[id][place * count // len(visits)].append(success)
    return {id: [fmean(each) if each else None for each in windows] for id, windows in seen.items()}
