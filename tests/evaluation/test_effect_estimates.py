"""Pooled and own variance, simultaneous intervals and verdicts, by worked numbers, tables and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import dunnett, t

from whetstone.evaluation.effect_estimates import (
    Effect,
    benjamini_hochberg,
    detectable_difference,
    dunnett_quantile,
    effects_against,
    pooled_deviation,
    seeds_for,
)
from whetstone.evaluation.verdicts import (
    BETTER,
    CANNOT_TELL,
    EFFECTS,
    NO_DIFFERENCE,
    NOT_RUN,
    WORSE,
    find_weakest_effect,
)


def test_quantile_with_one_comparison_is_that_of_student():
    for degrees in (1, 2, 7, 30):
        assert dunnett_quantile(1, degrees) == pytest.approx(t.ppf(0.975, degrees), rel=1e-4)


def test_quantiles_agree_with_published_tables():
    # Dunnett 1964, two-sided 5 %: 3 treatments, 20 degrees 2.54; 9 treatments, 120 degrees 2.73; 5, 10 degrees 2.99
    assert [round(dunnett_quantile(*of), 2) for of in ((3, 20), (9, 120), (5, 10))] == [2.54, 2.73, 2.99]


def test_p_values_agree_with_scipy_on_a_design_without_block_effects():
    # columns with equal means per seed: the residuals of both models and the pooled variances differ in degrees only
    rng = np.random.default_rng(0)
    groups = [rng.normal(mean, 1, 7) for mean in (0.0, 0.9, 1.8)]
    values = {f"c{k}": dict(enumerate(map(float, group))) for k, group in enumerate(groups)}
    effects = effects_against("c0", values, ["c1", "c2"])
    expected = dunnett(*groups[1:], control=groups[0], rng=np.random.default_rng(1)).pvalue
    assert [effect.p for effect in effects] == pytest.approx(expected, abs=0.05)


def test_pooled_deviation_is_that_of_residuals():
    # contender means 2 and 5, seed means 3 and 4, grand mean 3.5: residuals ±0.5, sum of squares 1, 1 degree
    values = {"a": {0: 1.0, 1: 3.0}, "b": {0: 5.0, 1: 5.0}}
    assert pooled_deviation(values) == (pytest.approx(1.0), 1)
    assert pooled_deviation({"a": {0: 1.0}, "b": {0: 2.0}}) == (pytest.approx(math.nan, nan_ok=True), 0)
    assert pooled_deviation({})[1] == 0


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=6),
    st.lists(st.floats(-1, 1), min_size=3, max_size=6),
)
def test_additive_values_have_no_deviation(contenders, seeds):
    values = {f"c{k}": {s: mean + shift for s, shift in enumerate(seeds)} for k, mean in enumerate(contenders)}
    assert pooled_deviation(values)[0] == pytest.approx(0, abs=1e-7)


def test_two_contenders_have_the_interval_of_the_paired_t_test():
    values = {"a": {0: 0.7, 1: 0.75, 2: 0.8}, "b": {0: 0.5, 1: 0.5, 2: 0.5}}
    # differences 0.20, 0.25, 0.30: mean 0.25, error 0.0289, t(2) = 4.303
    (effect,) = effects_against("b", values, ["a"])
    assert effect.interval == pytest.approx((0.126, 0.374), abs=1e-3)
    assert effect.degrees == 2


def test_from_eight_seeds_a_comparison_has_the_variance_of_its_own_differences():
    steady = [0.01, -0.01] * 4  # deviation of the differences 0.0107, error 0.00378, t(7) at 0.95^(1/2) = 2.832
    wild = [0.3, -0.3] * 4
    values = {name: dict(enumerate(each)) for name, each in (("base", [0.0] * 8), ("steady", steady), ("wild", wild))}
    of = {each.contender: each for each in effects_against("base", values, ["steady", "wild"])}
    assert of["steady"].interval == pytest.approx((-0.01070, 0.01070), abs=1e-5)
    assert of["wild"].interval == pytest.approx((-0.3211, 0.3211), abs=1e-4)
    assert (of["steady"].degrees, of["steady"].p) == (7, pytest.approx(1.0))
    seven = {name: {s: v for s, v in each.items() if s < 7} for name, each in values.items()}
    assert len({each.deviation for each in effects_against("base", seven, ["steady", "wild"])}) == 1


def test_equal_values_leave_the_interval_unknown():
    values = {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.5, 1: 0.5}}
    (effect,) = effects_against("b", values, ["a"])
    assert math.isnan(effect.interval[0])
    assert effect.get_verdict() == CANNOT_TELL
    assert effect.seeds_needed() is None


def effect(low, high, seeds=8):
    return Effect("a", "b", (low + high) / 2, (low, high), 0.01, seeds, 0.1, 20, 3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 0.2, BETTER),
        (-0.2, -0.01, WORSE),
        (-0.04, 0.04, NO_DIFFERENCE),
        (0.01, 0.04, NO_DIFFERENCE),
        (-0.01, 0.06, CANNOT_TELL),
        (math.nan, math.nan, CANNOT_TELL),
    ],
)
def test_verdicts(low, high, expected):
    assert effect(low, high).get_verdict() == expected
    opposite = {BETTER: WORSE, WORSE: BETTER}.get(expected, expected)
    assert effect(low, high).get_verdict(lower_is_better=True) == opposite
    assert effect(low, high, seeds=7).get_verdict(min_seeds=8) == CANNOT_TELL


def test_seeds_for_five_points():
    # 2 · 0.1² · (1.96 + 0.84)² / 0.05² = 62.8, and a few more for the t distribution
    assert seeds_for(0.1) == 65
    count = seeds_for(0.04, comparisons=5)
    assert (
        detectable_difference(0.04, count, comparisons=5)
        <= 0.05
        < detectable_difference(0.04, count - 1, comparisons=5)
    )


def test_benjamini_hochberg():
    # ranks 1, 2, 3 of 3: 0.01 · 3 = 0.03, 0.03 · 3 / 2 = 0.045 above 0.04 · 3 / 3 = 0.04
    assert benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert math.isnan(benjamini_hochberg([math.nan, 0.2])[0])


@given(st.lists(st.sampled_from(EFFECTS)))
def test_weakest_is_the_last_in_order(effects):
    assert find_weakest_effect(effects) == (max(effects, key=EFFECTS.index) if effects else NOT_RUN)


@pytest.mark.slow
def test_simultaneous_intervals_cover_all_true_differences_in_95_percent_of_simulations():
    rng, covered, repeats = np.random.default_rng(0), 0, 1500
    for _ in range(repeats):
        table = rng.normal(0, 1, (5, 6)) + rng.normal(0, 3, 6)
        values = {str(k): dict(enumerate(map(float, table[k]))) for k in range(5)}
        effects = effects_against("0", values, ["1", "2", "3", "4"])
        covered += all(each.interval[0] <= 0 <= each.interval[1] for each in effects)
    assert 0.93 < covered / repeats < 0.97  # standard error 0.0056, a fixed seed


@pytest.mark.slow
def test_intervals_of_eight_seeds_cover_however_differently_contenders_scatter():
    rng, covered, repeats = np.random.default_rng(0), 0, 1500
    scales = np.array([1.0, 0.2, 1.0, 3.0, 10.0])[:, None]
    for _ in range(repeats):
        table = rng.normal(0, 1, (5, 8)) * scales + rng.normal(0, 3, 8)
        values = {str(k): dict(enumerate(map(float, table[k]))) for k in range(5)}
        effects = effects_against("0", values, ["1", "2", "3", "4"])
        covered += all(each.interval[0] <= 0 <= each.interval[1] for each in effects)
    assert 0.94 < covered / repeats < 0.98
