"""Which episodes does a run, or a file of trajectories, hold for others to learn from?

Easy to get wrong: their tokens mean something under the tokenizer they were sampled with alone. So what a few of them
say is read with the one there is, and compared with what is written beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from whetstone.chat import Chat, ToolSpec, user
from whetstone.data.demonstrations import same
from whetstone.errors import DataError, RunDirectoryError
from whetstone.record import RunRecord
from whetstone.rollout.rereading import reread
from whetstone.trajectory import Group, Score, Task, Trajectory
from whetstone.trajectory_json import decoded_trajectories

_TRIED = 8
"""Episodes whose tokens are read again."""


Relabel = Callable[[Trajectory], str | None]
"""(an episode that did not solve its task) → the task it did solve, in words; None: it solved none"""


def stored_groups(
    path: Path,
    chat: Chat,
    *,
    min_reward: float | None = None,
    best: int | None = None,
    relabel: Relabel | None = None,
    tools: Sequence[ToolSpec] = (),
) -> list[Group]:
    """Groups of scored episodes, in the order in which they were sampled.

    Args:
        path: A run directory, or a file of trajectories as runs write them.
        chat: Whose tokenizer they must be of.
        min_reward: Only episodes with at least this reward; None: all.
        best: At most so many of a task, the best first; None: all.
        relabel: Says what episodes that did not solve their task did instead; they solved that.
        tools: On offer in them; for `relabel`.

    Raises:
        DataError: There are none, or they were sampled with another tokenizer.
    """
    groups = _of_run(path) if path.is_dir() else _of_file(path)
    chosen = []
    for group in groups:
        told = [_relabelled(t, relabel, chat, tools) for t in group.trajectories] if relabel else group.trajectories
        scored = [t for t in told if t.score is not None and not t.score.invalid and not t.greedy]
        kept = [t for t in scored if min_reward is None or _reward(t) >= min_reward]
        if best is not None:
            kept = sorted(kept, key=_reward, reverse=True)[:best]
        if kept:
            chosen.append(Group(group.task, tuple(kept), group.number, group.costs))
    if not chosen:
        asked = f" with a reward of {min_reward:g} or more" if min_reward is not None else ""
        raise DataError(f"{path}: holds no scored episodes{asked}")
    _check_tokens(path, chat, [t for group in chosen for t in group.trajectories][:_TRIED])
    return chosen


def best_and_worst(group: Group) -> tuple[Trajectory, Trajectory] | None:
    """The first of the best and the first of the worst of its scored episodes; None where they are worth the same, or
    say the same."""
    best, worst = max(group.trajectories, key=_reward), min(group.trajectories, key=_reward)
    same_worth = _reward(best) == _reward(worst)
    return None if same_worth or best.messages == worst.messages else (best, worst)


def is_stored(path: Path) -> bool:
    """Whether a path is a run, or a file of its trajectories, rather than rows somebody wrote."""
    if path.is_dir():
        return (path / "recipe.yaml").is_file()
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with open(path, "rb") as file:
        return b'"turns"' in file.readline(1 << 20)


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.score is not None
    return trajectory.score.value


def _relabelled(trajectory: Trajectory, relabel: Relabel, chat: Chat, tools: Sequence[ToolSpec]) -> Trajectory:
    """What solved its task as it is; of the rest what relabelling makes of it.

    Source: Murty et al. 2024 (BAGEL), arXiv:2403.08140, which lets a model say what a trajectory did.
    """
    if trajectory.score is None or trajectory.solved or not trajectory.turns:
        return trajectory
    text = relabel(trajectory)
    if text is None:
        return trajectory
    asked = next((k for k in range(len(trajectory.opening) - 1, -1, -1) if trajectory.opening[k].role == "user"), None)
    if asked is None:
        raise DataError(f"{trajectory.id}: no user speaks in its opening, so there is no task to relabel")
    try:
        again = reread(
            trajectory, (*trajectory.opening[:asked], user(text), *trajectory.opening[asked + 1 :]), chat, tools
        )
    except ValueError as error:
        raise DataError(str(error)) from None
    return replace(again, score=Score(1.0, success=True), marks=(*again.marks, "relabelled"))


def _of_run(run_dir: Path) -> list[Group]:
    if not (run_dir / "recipe.yaml").is_file():
        raise DataError(f"{run_dir}: holds no run (recipe.yaml is missing)")
    try:
        record = RunRecord(run_dir)
        return [
            _with_its_task(record.load(number, Task("", "")))
            for number in sorted(record.admitted)
            if record.holds(number)
        ]
    except RunDirectoryError as error:
        raise DataError(str(error)) from None


def _with_its_task(group: Group) -> Group:
    name = group.trajectories[0].task_id if group.trajectories else ""
    return Group(Task(name, ""), group.trajectories, group.number, group.costs)


def _of_file(path: Path) -> list[Group]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        read = decoded_trajectories(path.read_bytes().splitlines())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: holds no trajectories as runs write them: {str(error)[:120]}") from None
    # `group-7/task/…#2`: what stands before the first stroke is the group
    sampled = groupby(read, key=lambda trajectory: (trajectory.id.partition("/")[0], trajectory.task_id))
    return [Group(Task(task, ""), tuple(each), number) for number, ((_, task), each) in enumerate(sampled)]


def _check_tokens(path: Path, chat: Chat, episodes: Sequence[Trajectory]) -> None:
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            try:
                read = chat.read(turn.action.ids, (), turn=number) if turn.action.ids else turn.message
            except (IndexError, ValueError, OverflowError):
                read = None
            if read is None or (
                not turn.message.tool_calls and not turn.message.malformed and not same(read, turn.message)
            ):
                raise DataError(
                    f"{path}: {episode.id} was sampled with another tokenizer or chat format: turn {number + 1} does "
                    "not read as what it said"
                )
