"""Which episodes does a run, or a file of trajectories, hold for others to learn from?

Easy to get wrong: their tokens mean something under the tokenizer they were sampled with alone. So what a few of them
say is read with the one there is, and compared with what is written beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from whetstone.chat import Chat
from whetstone.data.demonstrations import same
from whetstone.errors import DataError, RunDirectoryError
from whetstone.record import RunRecord
from whetstone.trajectory import Group, OffPolicy, Task, Tokens, Trajectory, Turn
from whetstone.trajectory_json import decoded_trajectories

_TRIED = 8
"""Episodes whose tokens are read again."""


def stored_groups(path: Path, chat: Chat, *, min_reward: float | None = None, best: int | None = None) -> list[Group]:
    """Groups of scored episodes, in the order in which they were sampled.

    Args:
        path: A run directory, or a file of trajectories as runs write them.
        chat: Whose tokenizer they must be of.
        min_reward: Only episodes with at least this reward; None: all.
        best: At most so many of a task, the best first; None: all.

    Raises:
        DataError: There are none, or they were sampled with another tokenizer.
    """
    groups = _of_run(path) if path.is_dir() else _of_file(path)
    chosen = []
    for group in groups:
        scored = [t for t in group.trajectories if t.score is not None and not t.score.invalid and not t.greedy]
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


def is_stored(path: Path) -> bool:
    """Whether a path is a run, or a file of its trajectories, rather than rows somebody wrote."""
    if path.is_dir():
        return (path / "recipe.yaml").is_file()
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with open(path, "rb") as file:
        return b'"turns"' in file.readline(1 << 20)


def as_stored(group: Group, name: str, *, number: int = 0, off_policy: OffPolicy | None = None) -> Group:
    """A group as an update of another run learns from it: each trajectory under a name of its own, however often it is
    drawn, marked `replayed`, and its tokens older than every version of this run.

    Args:
        name: What ids begin with.
        number: Its place.
        off_policy: What ratios compare with; None: the log-probs kept from when tokens were drawn, and where somebody
            wrote them, and none were kept, the policy before the update, where they begin at 1.

    Raises:
        DataError: Log-probs are to be compared with, and a trajectory has none.
    """
    older: dict[int, Turn] = {}
    for trajectory in group.trajectories:
        for turn in trajectory.turns:  # one that several share stays one
            older.setdefault(id(turn), replace(turn, action=_older(turn)))
    stored = (_as_stored(trajectory, name, off_policy, older) for trajectory in group.trajectories)
    return replace(group, trajectories=tuple(stored), number=number)


def _as_stored(
    trajectory: Trajectory, name: str, off_policy: OffPolicy | None, older: Mapping[int, Turn]
) -> Trajectory:
    drawn = all(not math.isnan(logprob) for turn in trajectory.turns for logprob in turn.action.logprobs)
    if not drawn and off_policy in (OffPolicy.STORED, OffPolicy.TRUNCATED):
        raise DataError(
            f"{trajectory.id}: has no log-probs from when it was drawn, which off_policy: {off_policy} compares with; "
            "use off_policy: recompute"
        )
    return replace(
        trajectory,
        id=f"{name}{trajectory.id}",
        parent=None if trajectory.parent is None else f"{name}{trajectory.parent}",
        turns=tuple(older[id(turn)] for turn in trajectory.turns),
        off_policy=off_policy or (OffPolicy.STORED if drawn else OffPolicy.RECOMPUTE),
        removal=None,
        marks=(*(mark for mark in trajectory.marks if mark != "replayed"), "replayed"),
    )


def _older(turn: Turn) -> Tokens:
    return replace(turn.action, versions=(-1,) * len(turn.action))


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.score is not None
    return trajectory.score.value


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
