"""Several seats of one game, each played by the policy: a trajectory for each role.

All samples of a task are games at tables of their own. A role's trajectories are compared with each other, not with
those of another role; those of roles that are not trained count in nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, RemovalScope, Task, Trajectory


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
    """Roles that are learned from; None: all that are not frozen."""
    frozen: Mapping[str, str] | None = None
    """Role → model folder, or a name of the recipe's `models`: who plays that seat instead, such as a checkpoint of the
    policy's. None: nobody."""

    members: Mapping[str, str] | None = None
    """Role → member of `policies` that plays the seat. None: the member with the name of the role, otherwise
    the first member."""

    def __post_init__(self) -> None:
        for role in self.members or {}:
            if role not in self.roles or role in (self.frozen or {}):
                free = ", ".join(each for each in self.roles if each not in (self.frozen or {}))
                raise OptionError(f"members.{role}", f"none of the roles {free}")
        if len(set(self.roles)) < 2:
            raise OptionError("roles", f"two seats or more, got {list(self.roles)}")
        for k, role in enumerate(self.train or ()):
            if role not in self.roles:
                raise OptionError(f"train.{k}", f"{role} is none of the roles {', '.join(self.roles)}")
            if role in (self.frozen or {}):
                raise OptionError(f"train.{k}", f"{role} is played by a frozen model, which learns nothing")
        for role in self.frozen or {}:
            if role not in self.roles:
                raise OptionError(f"frozen.{role}", f"none of the roles {', '.join(self.roles)}")
        if len(self.frozen or {}) == len(self.roles):
            raise OptionError("frozen", "every seat is somebody else's, so there is nothing to learn")

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"roles"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        games = roller.samples(self.group_size)
        seats = [(game, role) for game in range(games) for role in self.roles]
        played = await asyncio.gather(
            *(roller.sample(task, index=index, seat=role, table=game) for index, (game, role) in enumerate(seats))
        )
        return Group(task, tuple(map(self._counted, played)))

    def _counted(self, trajectory: Trajectory) -> Trajectory:
        trained = self.roles if self.train is None else self.train
        if trajectory.role in trained and trajectory.role not in (self.frozen or {}):
            return trajectory
        return replace(trajectory, removal=RemovalScope.BEFORE_BASELINE)
