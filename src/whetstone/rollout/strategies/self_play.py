"""Self-play: several roles of one game, each played by the policy, with a trajectory per role.

Each sample of a task is a separate game. A role's trajectories are compared with each other, not with those of another
role; those of roles that are not trained count in no statistic.
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
    """Plays `group_size` games of each task, with the policy in every role.

    Source: self-play as in SPIRAL 2025, arXiv:2506.24119: shared weights, advantages by role.
    """

    group_size: int
    """Number of games per task."""
    roles: Sequence[str]
    """Names of the roles that the policy plays, as the environment defines them."""
    train: Sequence[str] | None = None
    """Roles whose trajectories are trained; None: all that are not frozen."""
    frozen: Mapping[str, str] | None = None
    """Model that plays a role instead of the policy, by role: a model folder, such as a checkpoint, or a name in the
    recipe's `models`. None: the policy plays all roles."""

    members: Mapping[str, str] | None = None
    """Member of `policies` that plays a role, by role. None: the member with the name of the role, otherwise the first
    member."""

    def __post_init__(self) -> None:
        for role in self.members or {}:
            if role not in self.roles or role in (self.frozen or {}):
                free = ", ".join(each for each in self.roles if each not in (self.frozen or {}))
                raise OptionError(f"members.{role}", f"must be one of the roles {free}")
        if len(set(self.roles)) < 2:
            raise OptionError("roles", f"must have at least 2 roles, got {list(self.roles)}")
        for k, role in enumerate(self.train or ()):
            if role not in self.roles:
                raise OptionError(f"train.{k}", f"{role} is not one of the roles {', '.join(self.roles)}")
            if role in (self.frozen or {}):
                raise OptionError(
                    f"train.{k}",
                    f"{role} is played by a frozen model, which is not trained; remove the role from train or frozen",
                )
        for role in self.frozen or {}:
            if role not in self.roles:
                raise OptionError(f"frozen.{role}", f"must be one of the roles {', '.join(self.roles)}")
        if len(self.frozen or {}) == len(self.roles):
            raise OptionError("frozen", "all roles are frozen, so nothing is trained; leave one role to the policy")

    @property
    def provides(self) -> frozenset[str]:
        """Return `roles`: the trajectories of the groups have roles."""
        return frozenset({"roles"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
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
