"""Index columns: tokens to turns, turns to trajectories, trajectories to groups, roles and tasks.

Note:
    A turn that several trajectories share is one turn of each, but one node of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from whetstone.errors import CreditError
from whetstone.learning.columns.declaration import RunCapabilities, column

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


def _forks(run: RunCapabilities) -> str | None:
    return None if "forks" in run.strategy else "a strategy that forks makes trees: rollout.strategy: random_branching"


def _seats_or_tag(run: RunCapabilities) -> str | None:
    tag = run.recipe.role_tag
    if tag is None:
        if "roles" in run.strategy:
            return None
        return "play in seats (rollout.strategy: self_play), or set role_tag: TAG to the task tag with the role"
    tags = run.first_task().tags
    if tag in tags:
        return None
    return f'role_tag: no tag "{tag}" on tasks of "{run.recipe.tasks.source}", which have {", ".join(sorted(tags))}'


def _difficulty(run: RunCapabilities) -> str | None:
    try:
        if float(run.first_task().tags.get("difficulty", "")) > 0:
            return None
    except ValueError:
        pass
    return f'tasks.source "{run.recipe.tasks.source}" tags no task with a difficulty'


@column("trajectory", index=True)
def group(batch: Columns) -> Iterable[int]:
    """Index of the trajectories that are compared: those of one task and, if a game has several seats, one seat."""
    known: dict[tuple[int, str], int] = {}
    for entry in batch.trajectories:
        yield known.setdefault((entry.number, entry.trajectory.role), len(known))


@column("trajectory", index=True)
def action_keys(batch: Columns) -> Iterable[int]:
    """Index that two trajectories share if and only if their action tokens are identical."""
    known: dict[tuple[tuple[int, ...], ...], int] = {}
    for entry in batch.trajectories:
        actions = tuple(turn.action.ids for turn in entry.trajectory.turns)
        yield known.setdefault(actions, len(known))


@column("trajectory")
def lengths(batch: Columns) -> Iterable[float]:
    """Number of action tokens of the trajectory."""
    return (len(entry) for entry in batch.trajectories)


@column(
    "trajectory",
    index=True,
    provided_by="`rollout.strategy: self_play`, the seat; or `role_tag: TAG`, a tag of the tasks; or both",
    requires=_seats_or_tag,
)
def roles(batch: Columns) -> Iterable[int]:
    """Index of the role: the seat of the trajectory in a game with several, and the task's tag of `role_tag`."""
    known: dict[tuple[str, str], int] = {}
    for entry in batch.trajectories:
        tag, tags, seat = batch.roles, entry.group.task.tags, entry.trajectory.role
        if tag is None and not seat:
            raise CreditError(
                f"roles: {entry.trajectory.id} has no seat (rollout.strategy: self_play), and the recipe sets no task "
                "tag with the role (role_tag: TAG)"
            )
        if tag is not None and tag not in tags:
            raise CreditError(f'role_tag: task {entry.group.task.id} has no tag "{tag}"')
        yield known.setdefault((seat, tags[tag] if tag is not None else ""), len(known))


@column("trajectory", provided_by="tasks with a number for their tag `difficulty`", requires=_difficulty)
def hardness(batch: Columns) -> Iterable[float]:
    """Difficulty of the task, from its tag `difficulty`."""
    for entry in batch.trajectories:
        try:
            yield float(entry.group.task.tags["difficulty"])
        except (KeyError, ValueError):
            raise CreditError(f"hardness: task {entry.group.task.id} has no number for its tag difficulty") from None


@column("turn", index=True)
def trajectory(batch: Columns) -> Iterable[int]:
    """Index of the trajectory of a turn."""
    return (i for i, _, _ in batch.turns())


@column("turn", index=True)
def turn_index(batch: Columns) -> Iterable[int]:
    """Index of a turn in its trajectory, from 0."""
    return (t for _, _, t in batch.turns())


@column("turn", index=True)
def state_keys(batch: Columns) -> Iterable[int]:
    """Index of the state before a turn: the initial messages, or the last observation. Equal texts are one state."""
    known: dict[tuple[tuple[str, ...], ...], int] = {}
    for _, entry, t in batch.turns():
        played = entry.trajectory
        seen = played.opening if t == 0 else played.turns[t - 1].observation
        yield known.setdefault(tuple(message.key for message in seen), len(known))


@column("turn", index=True, provided_by="a strategy that forks: `rollout.strategy: random_branching`", requires=_forks)
def nodes(batch: Columns) -> Iterable[int]:
    """Index of the tree node of a turn; trajectories that share the turn share the node."""
    known: dict[int, int] = {}
    for _, entry, t in batch.turns():
        yield known.setdefault(id(entry.trajectory.turns[t]), len(known))


@column("token", index=True)
def turn(batch: Columns) -> Tensor:
    """Index of a token's turn in the batch."""
    begins = np.cumsum([0, *(len(entry.trajectory.turns) for entry in batch.trajectories)])
    return batch.concatenate_tokens(lambda i, entry: begins[i] + entry.turn).long()


@column("token", index=True)
def token_trajectory(batch: Columns) -> Tensor:
    """Index of the trajectory that a token belongs to."""
    return batch.concatenate_tokens(lambda i, entry: np.full(len(entry), i)).long()
