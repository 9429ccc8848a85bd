"""Methods by setting: difference to GRPO in each setting, and the probability of improvement over settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from claims.claim_effects import MIN_SEEDS, check_entry
from whetstone.evaluation.effect_estimates import Effect, effects_against

BASELINE = "grpo"


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method that was compared with GRPO in several settings."""

    name: str
    effects: Mapping[str, Effect]
    """Effect on success by setting."""
    probability: float
    """Probability that a run of the method ends above a run of GRPO, mean over settings."""
    interval: tuple[float, float]
    """95 % interval of the probability."""

    @property
    def difference(self) -> float:
        """Mean difference of success over settings, as a fraction."""
        return fmean(effect.difference for effect in self.effects.values())


def method_rows(results: Sequence[Mapping[str, Any]]) -> list[MethodRow]:
    """Return the methods of at least two settings, by mean difference.

    A setting is a bench in which GRPO meets the entry rule with enough seeds. Intervals are simultaneous over the
    methods of a setting.

    Args:
        results: Stored results of benches.
    """
    success: dict[str, dict[str, dict[int, float]]] = {}
    for result in results:
        runs = {each["name"]: {r["seed"]: r for r in each["runs"] if not r["failed"]} for each in result["contenders"]}
        baseline = runs.get(BASELINE, {})
        if result["learning"] and len(baseline) >= MIN_SEEDS and check_entry(baseline).problem is None:
            success[result["name"]] = {
                name: {seed: row["measures"]["success"] for seed, row in every.items()}
                for name, every in runs.items()
                if len(set(every) & set(baseline)) >= MIN_SEEDS
            }
    effects: dict[str, dict[str, Effect]] = {}
    for setting, values in success.items():
        for effect in effects_against(BASELINE, values, [name for name in values if name != BASELINE]):
            effects.setdefault(effect.contender, {})[setting] = effect
    rows = []
    for name, by_setting in effects.items():
        if len(by_setting) > 1:
            pairs = [(list(success[s][name].values()), list(success[s][BASELINE].values())) for s in by_setting]
            probability, low, high = probability_of_improvement(pairs)
            rows.append(MethodRow(name, by_setting, probability, (low, high)))
    return sorted(rows, key=lambda row: -row.difference)


def probability_of_improvement(
    settings: Sequence[tuple[Sequence[float], Sequence[float]]], *, seed: int = 0, repeats: int = 2000
) -> tuple[float, float, float]:
    """Compute the probability that a method's run is above a baseline's run, with its 95 % interval.

        mean over settings of  P(x > y) + P(x = y) / 2  over all pairs of runs

    The interval is that of a bootstrap over seeds, stratified by setting; runs of both sides are sampled separately.

    Args:
        settings: Values of the method and of the baseline, by run, for each setting.
        seed: Random seed of the bootstrap.
        repeats: Number of bootstrap samples.

    Returns:
        Probability, and low and high bound.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
        arXiv:2108.13264.
    """
    draw = np.random.default_rng(seed)

    def over_settings(chosen: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        return fmean(float(((np.sign(x[:, None] - y[None, :]) + 1) / 2).mean()) for x, y in chosen)

    arrays = [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in settings]
    samples = [
        over_settings([(draw.choice(x, len(x)), draw.choice(y, len(y))) for x, y in arrays]) for _ in range(repeats)
    ]
    low, high = np.quantile(samples, (0.025, 0.975))
    return over_settings(arrays), float(low), float(high)
