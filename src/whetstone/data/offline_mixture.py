"""Mixture of offline groups into updates, with uniform or prioritized sampling.

    update u → number of groups → random indices from seed and u → groups, converted by `mark_offline`

Note:
    Sampling must depend only on seed and update, so that a run that is resumed or explained selects the same groups.
    The files must be unchanged since the start of the run.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from whetstone.data.offline_episodes import mark_offline
from whetstone.data.shuffle import ShuffledIndices
from whetstone.errors import DataError
from whetstone.recipe import StoredMixtureSettings
from whetstone.rollout.protocol import StepOutcome
from whetstone.seeding import derive_random, derive_seed
from whetstone.trajectory import Group, OffPolicy


class StoredMixture:
    """Offline groups for each update.

    Args:
        read: Reads the histories, each a list of groups in sampling order; called once.
        settings: Settings of the recipe.
        seed: Seed of the recipe.
    """

    def __init__(
        self, read: Callable[[], Sequence[Sequence[Group]]], settings: StoredMixtureSettings, *, seed: int
    ) -> None:
        self.settings, self._read, self._seed = settings, read, seed
        self.off_policy = OffPolicy(settings.off_policy) if settings.off_policy is not None else None
        self._groups: list[Group] | None = None
        self._expected: str | None = None

    def read(self) -> list[Group]:
        """Read all stored groups once; if `fraction` is 0, return none without opening a file.

        Raises:
            DataError: The files have no episodes, lack required log-probs, or changed since the start of the run.
        """
        if self._groups is None:
            histories = self._read() if self.settings.fraction > 0 else []
            groups = [group for history in histories for group in history]
            if self.off_policy is not None:
                for group in groups:
                    mark_offline(group, "", off_policy=self.off_policy)
            self._digest = digest_groups(groups)
            if self._expected not in (None, self._digest):
                raise DataError(
                    "reinforcement.offline_mixture.data: the stored episodes have changed since the start of this run; "
                    "restore them, or start another run"
                )
            self._order = ShuffledIndices(max(1, len(groups)), seed=derive_seed(self._seed, "stored"))
            self._bounds = list(accumulate(_weights(histories, self.settings)))
            self._groups = groups
        return self._groups

    def get_all_groups(self) -> list[Group]:
        """Return all stored groups even if `fraction` is 0, for components that take `stored_groups`."""
        return self.read() or [group for history in self._read() for group in history]

    async def groups(self, first: int, count: int, /) -> list[Group]:
        """Return `count` stored groups from position `first` of the sampling order; see `GroupSource.groups`."""
        stored = self.read()
        return [stored[self._place(first + number)] for number in range(count)]

    def _place(self, draw: int) -> int:
        if self.settings.sampling == "uniform" or self.settings.sampling_strength == 0:
            return self._order[draw]
        chance = derive_random(self._seed, "stored", draw).random()
        return min(bisect(self._bounds, chance * self._bounds[-1]), len(self._bounds) - 1)

    def observe(self, outcome: StepOutcome, /) -> None:
        """Do nothing: the mixture has no state that depends on steps. See `Stateful.observe`."""

    def state(self) -> dict[str, Any]:
        """Return the digest of the stored episodes, for checkpoints. See `Stateful.state`."""
        self.read()
        return {"digest": self._digest}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Set the digest that the files must have when they are read. See `Stateful.load_state`."""
        self._expected = state["digest"]


def digest_groups(groups: Sequence[Group]) -> str:
    """Hash task ids, trajectory ids, rewards and sampled tokens of groups (BLAKE2b, 32 hexadecimal digits)."""
    digest = hashlib.blake2b(digest_size=16)
    for group in groups:
        for t in group.trajectories:
            tokens = [turn.action.ids for turn in t.turns]
            media = [each.digest for turn in t.turns for each in turn.context.media] or ""
            digest.update(f"{group.task.id} {t.id} {t.score.value if t.score else None} {tokens}{media}\n".encode())
    return digest.hexdigest()


def compute_priorities(histories: Sequence[Sequence[float]], prefer: str) -> list[float]:
    """Compute the sampling priority of each stored group (prioritized replay over learning histories).

    Args:
        histories: Per run, the mean reward of each group in sampling order.
        prefer: `reward`: the reward of the group, scaled between the minimum and maximum of all groups. `recency`: its
            position in its history. `improvement`: `compute_improvement` of its history, with scaled rewards. Any
            other value gives equal priorities.

    Returns:
        [groups] priorities of the groups of all histories in order: from 0 to 1, for `improvement` from −1 to 1.
    """
    everything = [reward for history in histories for reward in history]
    if not everything:
        return []
    least, range_ = min(everything), max(everything) - min(everything)
    scaled = [[(reward - least) / range_ if range_ else 0.0 for reward in history] for history in histories]
    if prefer == "reward":
        return [reward for history in scaled for reward in history]
    if prefer == "recency":
        return [k / (len(history) - 1) if len(history) > 1 else 1.0 for history in scaled for k in range(len(history))]
    if prefer == "improvement":
        return [compute_improvement(history) for history in scaled for _ in history]
    return [0.0] * len(everything)


def compute_improvement(rewards: Sequence[float]) -> float:
    """Compute the improvement of a learning history: rise of its regression line minus the deviation from the line.

        u = b (n − 1) − std(R_k − a − b k),   R ≈ a + b k by least squares

    The result is within [−1, 1] for rewards within [0, 1], and 0 for a single reward.

    Source: Chen et al. 2025 (LHF), arXiv:2505.15143, which weighs histories by improvement and stability; the line and
    the difference are choices of this project.
    """
    n = len(rewards)
    if n < 2:
        return 0.0
    middle, mean = (n - 1) / 2, fmean(rewards)
    slope = sum((k - middle) * (reward - mean) for k, reward in enumerate(rewards))
    slope /= sum((k - middle) ** 2 for k in range(n))
    left = [reward - mean - slope * (k - middle) for k, reward in enumerate(rewards)]
    value = slope * (n - 1) - math.sqrt(fmean(each**2 for each in left))
    return max(-1.0, min(1.0, value))


def _weights(histories: Sequence[Sequence[Group]], settings: StoredMixtureSettings) -> list[float]:
    rewards = [[fmean(group.rewards) for group in history] for history in histories]
    return [
        math.exp(settings.sampling_strength * preferred) for preferred in compute_priorities(rewards, settings.sampling)
    ]
