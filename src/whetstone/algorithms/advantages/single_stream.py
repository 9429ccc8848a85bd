"""What if each task is tried once? Its baseline is remembered: two counts that forget as the policy moves (SPO).

Easy to get wrong: the baseline is taken before the counts learn from the episode it is for; and of a task that comes
twice in a batch both outcomes count, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SuccessCounts:
    """What is remembered of a task: a Beta distribution over its success."""

    successes: float = 0.5
    failures: float = 0.5

    @property
    def baseline(self) -> float:
        """α / (α + β), in (0, 1)."""
        return self.successes / (self.successes + self.failures)


def remembered(successes: int, samples: int, *, keep_min: float = 0.875) -> SuccessCounts:
    """Counts from samples made before training, worth 1/(1 − κ_min) of them.

        α = N₀ (s + ½)/(n + 1),   β = N₀ (n − s + ½)/(n + 1);   without a sample ½ and ½

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, §3.2.
    """
    if samples == 0:
        return SuccessCounts()
    worth = 1 / (1 - keep_min)
    return SuccessCounts(worth * (successes + 0.5) / (samples + 1), worth * (samples - successes + 0.5) / (samples + 1))


def kept_share(drift: float, *, half: float = 0.06, low: float = 0.875, high: float = 0.96) -> float:
    """κ, how much of the counts is kept when the policy has drifted by `drift` since the task's last episode.

        2^(−D / 0.06), within [low, high];   D the mean absolute change of that episode's log-probs

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, §3.2, and verl's `recipe/spo`.
    """
    return min(max(2 ** (-drift / half), low), high)


def updated(counts: SuccessCounts, reward: float, kept: float) -> SuccessCounts:
    """The counts behind an episode: α ← κ α + r, β ← κ β + 1 − r.

    Args:
        reward: In [0, 1].
        kept: κ.

    Raises:
        ValueError: The reward is not in [0, 1].

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, eq. 5.
    """
    if not 0 <= reward <= 1:
        raise ValueError(f"rewards lie in [0, 1] here: got {reward:g}")
    return SuccessCounts(kept * counts.successes + reward, kept * counts.failures + 1 - reward)


def sampling_weight(baseline: float, *, least: float = 0.05) -> float:
    """How often a task is drawn: √(v (1 − v)) + least.

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, §3.4.
    """
    return float((baseline * (1 - baseline)) ** 0.5 + least)
