"""What belongs to what? Tokens to turns, turns to trajectories, trajectories to groups, roles and tasks.

Easy to get wrong: a turn that several trajectories share is a turn of each, and one node of the tree.
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
    """Those of one task, and of one seat where there are several: what is compared."""
    known: dict[tuple[int, str], int] = {}
    for held in batch.held:
        yield known.setdefault((held.number, held.trajectory.role), len(known))


@column("trajectory", index=True)
def action_keys(batch: Columns) -> Iterable[int]:
    """Equal exactly where two trajectories did the same, token by token."""
    known: dict[tuple[tuple[int, ...], ...], int] = {}
    for held in batch.held:
        did = tuple(turn.action.ids for turn in held.trajectory.turns)
        yield known.setdefault(did, len(known))


@column("trajectory")
def lengths(batch: Columns) -> Iterable[float]:
    """How many action tokens a trajectory has."""
    return (len(held) for held in batch.held)


@column(
    "trajectory",
    index=True,
    provided_by="`rollout.strategy: self_play`, the seat; or `role_tag: TAG`, a tag of the tasks; or both",
    requires=_seats_or_tag,
)
def roles(batch: Columns) -> Iterable[int]:
    """Index of the role: the seat of the trajectory in a game with several, and the task's tag of `role_tag`."""
    known: dict[tuple[str, str], int] = {}
    for held in batch.held:
        tag, tags, seat = batch.roles, held.group.task.tags, held.trajectory.role
        if tag is None and not seat:
            raise CreditError(
                f"roles: {held.trajectory.id} has no seat (rollout.strategy: self_play), and the recipe sets no task "
                "tag with the role (role_tag: TAG)"
            )
        if tag is not None and tag not in tags:
            raise CreditError(f'role_tag: task {held.group.task.id} has no tag "{tag}"')
        yield known.setdefault((seat, tags[tag] if tag is not None else ""), len(known))


@column("trajectory", provided_by="tasks with a number for their tag `difficulty`", requires=_difficulty)
def hardness(batch: Columns) -> Iterable[float]:
    """How difficult its task is tagged."""
    for held in batch.held:
        try:
            yield float(held.group.task.tags["difficulty"])
        except (KeyError, ValueError):
            raise CreditError(f"hardness: task {held.group.task.id} has no number for its tag difficulty") from None


@column("turn", index=True)
def trajectory(batch: Columns) -> Iterable[int]:
    """Which trajectory a turn is of."""
    return (i for i, _, _ in batch.turns())


@column("turn", index=True)
def turn_index(batch: Columns) -> Iterable[int]:
    """Which turn of its trajectory it is, from 0."""
    return (t for _, _, t in batch.turns())


@column("turn", index=True)
def state_keys(batch: Columns) -> Iterable[int]:
    """By what the turn began from: the opening, or what came back last. Equal texts are one state."""
    known: dict[tuple[tuple[str, ...], ...], int] = {}
    for _, held, t in batch.turns():
        played = held.trajectory
        seen = played.opening if t == 0 else played.turns[t - 1].observation
        yield known.setdefault(tuple(message.key for message in seen), len(known))


@column("turn", index=True, provided_by="a strategy that forks: `rollout.strategy: random_branching`", requires=_forks)
def nodes(batch: Columns) -> Iterable[int]:
    """Which node of the tree a turn is; one that trajectories share is one."""
    known: dict[int, int] = {}
    for _, held, t in batch.turns():
        yield known.setdefault(id(held.trajectory.turns[t]), len(known))


@column("token", index=True)
def turn(batch: Columns) -> Tensor:
    """Which turn of the batch a token is of."""
    begins = np.cumsum([0, *(len(held.trajectory.turns) for held in batch.held)])
    return batch.of_tokens(lambda i, held: begins[i] + held.turn).long()


@column("token", index=True)
def token_trajectory(batch: Columns) -> Tensor:
    """Which trajectory a token is of."""
    return batch.of_tokens(lambda i, held: np.full(len(held), i)).long()
