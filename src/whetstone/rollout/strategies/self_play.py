"""Several seats of one game, each played by the policy: a trajectory for each role.

All samples of a task are games at tables of their own. A role's trajectories are compared with each other, not with
those of another role; those of roles that are not trained count in nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from whetstone.parts import OptionError
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, Removal, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlay:
    """`group_size` games of each task, with the policy in every seat.

    Source: self-play as in SPIRAL 2025, arXiv:2506.24119: shared weights, advantages by role.
    """

    group_size: int
    """Games of each task."""
    roles: Sequence[str]
    """The seats, as the environment names them."""
    train: Sequence[str] | None = None
    """Roles that are learned from; None: all."""

    def __post_init__(self) -> None:
        if len(set(self.roles)) < 2:
            raise OptionError("roles", f"two seats or more, got {list(self.roles)}")
        for k, role in enumerate(self.train or ()):
            if role not in self.roles:
                raise OptionError(f"train.{k}", f"{role} is none of the roles {', '.join(self.roles)}")

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        games = roller.samples(self.group_size)
        seats = [(game, role) for game in range(games) for role in self.roles]
        played = await asyncio.gather(
            *(roller.sample(task, index=index, seat=role, table=game) for index, (game, role) in enumerate(seats))
        )
        return Group(task, tuple(map(self._counted, played)))

    def _counted(self, trajectory: Trajectory) -> Trajectory:
        if self.train is None or trajectory.role in self.train:
            return trajectory
        return replace(trajectory, removal=Removal.BEFORE_BASELINE)
