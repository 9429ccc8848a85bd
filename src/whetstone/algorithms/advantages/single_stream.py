"""SPO: one episode per task, with a stored baseline of discounted success counts.

Note: The baseline is read before the counts are updated with the episode's own outcome. If a task occurs
twice in a batch, both outcomes are counted, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SuccessCounts:
    """Beta distribution over the success of a task."""

    successes: float = 0.5
    failures: float = 0.5

    @property
    def expected_success(self) -> float:
        """Return α / (α + β), in (0, 1)."""
        return self.successes / (self.successes + self.failures)


def initial_counts(successes: int, samples: int, *, keep_min: float = 0.875) -> SuccessCounts:
    """Return initial counts from samples before training, with a total of N₀ = 1/(1 − κ_min).

        α = N₀ (s + ½)/(n + 1),   β = N₀ (n − s + ½)/(n + 1);   without a sample ½ and ½

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, §3.2.
    """
    if samples == 0:
        return SuccessCounts()
    total = 1 / (1 - keep_min)
    return SuccessCounts(total * (successes + 0.5) / (samples + 1), total * (samples - successes + 0.5) / (samples + 1))


def keep_fraction(drift: float, *, half: float = 0.06, low: float = 0.875, high: float = 0.96) -> float:
    """Return κ, the fraction of the counts that is kept after the policy has drifted by `drift`.

        2^(−D / 0.06), within [low, high];   D the mean absolute change of the log-probs of the task's last episode

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, §3.2, and verl's `recipe/spo`.
    """
    return min(max(2 ** (-drift / half), low), high)


def update_counts(counts: SuccessCounts, reward: float, keep: float) -> SuccessCounts:
    """Return the counts after an episode: α ← κ α + r, β ← κ β + 1 − r.

    Args:
        reward: Outcome of the episode, in [0, 1].
        keep: Fraction κ of the earlier counts that is kept; see `keep_fraction`.

    Raises:
        ValueError: If the reward is not in [0, 1].

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, eq. 5.
    """
    if not 0 <= reward <= 1:
        raise ValueError(f"rewards must be in [0, 1], got {reward:g}")
    return SuccessCounts(keep * counts.successes + reward, keep * counts.failures + 1 - reward)


def sampling_weight(baseline: float, *, min_weight: float = 0.05) -> float:
    """Return the sampling weight of a task: √(v (1 − v)) + `min_weight`.

    Source: Xu & Ding 2025 (SPO), arXiv:2509.13232, §3.4.
    """
    return float((baseline * (1 - baseline)) ** 0.5 + min_weight)
