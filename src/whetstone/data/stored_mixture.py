"""Which stored groups come beside the fresh ones of an update, and which of them more often?

    update u → how many are due → draws of the seed, u and nothing else → groups, as `as_stored` makes them

Easy to get wrong: what is drawn must depend on seed and update alone, so that a run that was killed, or is explained,
draws the same again; and the files must be those it began with.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from whetstone.data.order import Shuffled
from whetstone.data.stored_episodes import as_stored
from whetstone.errors import DataError
from whetstone.recipe import StoredMixtureSettings
from whetstone.rollout.protocol import StepOutcome
from whetstone.seeding import derive_random, derive_seed
from whetstone.trajectory import Group, OffPolicy


class StoredMixture:
    """Stored groups for each update.

    Args:
        read: Reads the histories, each a list of groups in the order in which they were sampled; asked once.
        settings: Of the recipe.
        seed: Of the recipe.
    """

    def __init__(
        self, read: Callable[[], Sequence[Sequence[Group]]], settings: StoredMixtureSettings, *, seed: int
    ) -> None:
        self.settings, self._read, self._seed = settings, read, seed
        self.off_policy = OffPolicy(settings.off_policy) if settings.off_policy is not None else None
        self._groups: list[Group] | None = None
        self._expected: str | None = None

    def read(self) -> list[Group]:
        """All of them; none, and no file is opened, where their share is 0.

        Raises:
            DataError: There are none, they lack the log-probs that are asked for, or they are not those the run began
                with.
        """
        if self._groups is None:
            histories = self._read() if self.settings.fraction > 0 else []
            groups = [group for history in histories for group in history]
            if self.off_policy is not None:
                for group in groups:
                    as_stored(group, "", off_policy=self.off_policy)
            self._digest = digest_of(groups)
            if self._expected not in (None, self._digest):
                raise DataError(
                    "reinforcement.offline_mixture.data: the stored episodes have changed since the start of this run; "
                    "restore them, or start another run"
                )
            self._order = Shuffled(max(1, len(groups)), seed=derive_seed(self._seed, "stored"))
            self._bounds = list(accumulate(_weights(histories, self.settings)))
            self._groups = groups
        return self._groups

    def everything(self) -> list[Group]:
        """All that is stored, even where none of it comes into updates: for parts that read it."""
        return self.read() or [group for history in self._read() for group in history]

    async def groups(self, first: int, count: int, /) -> list[Group]:
        """See `GroupSource.groups`."""
        stored = self.read()
        return [stored[self._place(first + number)] for number in range(count)]

    def _place(self, draw: int) -> int:
        if self.settings.sampling == "uniform" or self.settings.sampling_strength == 0:
            return self._order[draw]
        chance = derive_random(self._seed, "stored", draw).random()
        return min(bisect(self._bounds, chance * self._bounds[-1]), len(self._bounds) - 1)

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`; nothing is remembered of steps."""

    def state(self) -> dict[str, Any]:
        """See `Stateful`: which episodes they are."""
        self.read()
        return {"digest": self._digest}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`; held against the files when they are read."""
        self._expected = state["digest"]


def digest_of(groups: Sequence[Group]) -> str:
    """What tells these groups from others: their trajectories' names, rewards and tokens."""
    found = hashlib.blake2b(digest_size=16)
    for group in groups:
        for t in group.trajectories:
            tokens = [turn.action.ids for turn in t.turns]
            media = [each.digest for turn in t.turns for each in turn.context.media] or ""
            found.update(f"{group.task.id} {t.id} {t.score.value if t.score else None} {tokens}{media}\n".encode())
    return found.hexdigest()


def preferences(histories: Sequence[Sequence[float]], prefer: str) -> list[float]:
    """[groups] how much each group of each history is preferred, from 0 to 1; of `improvement` from −1 to 1.

    Args:
        histories: Mean rewards of groups, in the order in which they were sampled.
        prefer: `reward`: where its reward lies between the least and the most there are; `recency`: its place in its
            history; `improvement`: its history's `improvement`, rewards taken between the least and the most.
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
        return [improvement(history) for history in scaled for _ in history]
    return [0.0] * len(everything)


def improvement(rewards: Sequence[float]) -> float:
    """How much a learning history rose, less how unsteadily: the rise of the line through its rewards, minus their
    deviation from that line; within [−1, 1] for rewards within [0, 1]. One reward alone: 0.

        u = b (n − 1) − std(R_k − a − b k),   R ≈ a + b k by least squares

    Source: Chen et al. 2025 (LHF), arXiv:2505.15143, which weighs histories by improvement and stability; the line
    and the difference are ours.
    """
    n = len(rewards)
    if n < 2:
        return 0.0
    middle, mean = (n - 1) / 2, fmean(rewards)
    slope = sum((k - middle) * (reward - mean) for k, reward in enumerate(rewards))
    slope /= sum((k - middle) ** 2 for k in range(n))
    left = [reward - mean - slope * (k - middle) for k, reward in enumerate(rewards)]
    found = slope * (n - 1) - math.sqrt(fmean(each**2 for each in left))
    return max(-1.0, min(1.0, found))


def _weights(histories: Sequence[Sequence[Group]], settings: StoredMixtureSettings) -> list[float]:
    rewards = [[fmean(group.rewards) for group in history] for history in histories]
    return [math.exp(settings.sampling_strength * preferred) for preferred in preferences(rewards, settings.sampling)]
