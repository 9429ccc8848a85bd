"""Properties of every advantage transform: agreement with loops over floats, precision, and no in-place changes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.batches import batches, call_with_columns, columns, mean
from support.naive_advantages import std
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, annotated_level

FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
EVERY = pytest.mark.parametrize("name", sorted(ADVANTAGE_TRANSFORMS))
APART = math.pi / 1000
"""Offset of bounds from round numbers, so that no covariance of generated columns equals a bound after rounding."""
OPTIONS = {
    "famo2o": {
        "min_coef": st.floats(0, 1),
        "max_coef": st.floats(1, 3),
        "scale": st.floats(0.05, 1),
        "max_weight": st.floats(1, 20),
    },
    "after_first_attempt": {},
    "clip_cov": {
        "low": st.sampled_from([-1 + APART, APART, 0.5 - APART]),
        "high": st.sampled_from([0.6 + APART, 2 - APART]),
        "fraction": st.sampled_from([2e-4, 0.3, 0.9]),
    },
    "duration_weighted": {"max_ratio": st.floats(0.5, 5)},
    "entropy_aware": {"weight": st.floats(0, 2)},
    "entropy_modulated": {"strength": st.floats(0.1, 3), "min_range": st.sampled_from([0.0, 0.1, 1.0])},
    "high_entropy_turns": {"fraction": st.floats(0.05, 1)},
    "probability_band": {"low": st.floats(0, 0.4), "high": st.floats(0.5, 1)},
    "m2po": {"bound": st.floats(0.01, 3)},
}


def silenced(advantages, places):
    return [0.0 if k in places else a for k, a in enumerate(advantages)]


def famo2o(c, min_coef, max_coef, scale, max_weight):
    strict = [min_coef + (max_coef - min_coef) * math.exp(-s / scale) for s in c["value_deviations"]]
    return [min(math.exp(b * a), max_weight) for a, b in zip(c["advantages"], strict, strict=True)]


def after_first_attempt(c):
    return [0.0 if first else a for a, first in zip(c["advantages"], c["first_attempt"], strict=True)]


def clip_cov(c, low, high, fraction):
    a, x = c["advantages"], c["old_logprobs"]
    shares = [(p - mean(a)) * (q - mean(x)) for p, q in zip(a, x, strict=True)]
    candidates = sorted((c["draws"][k], k) for k, s in enumerate(shares) if low < s < high)
    return silenced(a, [k for _, k in candidates[: max(1, int(fraction * len(a)))]])


def duration_weighted(c, max_ratio):
    if not any(c["turn_seconds"]):
        return c["advantages"]
    return [
        a * min(d / mean(c["turn_seconds"]), max_ratio) for a, d in zip(c["advantages"], c["turn_seconds"], strict=True)
    ]


def entropy_aware(c, weight):
    measured = [h for h in c["entropies"] if not math.isnan(h)]
    deviation = std(measured) if measured else 0.0
    if deviation < 1e-8:
        return c["advantages"]
    z = [0.0 if math.isnan(h) else (h - mean(measured)) / deviation for h in c["entropies"]]
    return [a * max(0.0, 1 + weight * each) for a, each in zip(c["advantages"], z, strict=True)]


def entropy_modulated(c, strength, min_range):
    task, batch = [c["group"][i] for i in c["trajectory"]], list(c["advantages"])
    for m, h in enumerate(c["turn_entropies"]):
        others = [x for x, of in zip(c["turn_entropies"], task, strict=True) if of == task[m] and not math.isnan(x)]
        if math.isnan(h) or max(others) == min(others) or max(others) - min(others) < min_range:
            continue
        low, wide = min(others), max(others) - min(others)
        weights = [math.exp(-strength * (x - low) / wide) for x in others]
        batch[m] *= math.exp(-strength * (h - low) / wide) / mean(weights)
    return batch


def high_entropy_turns(c, fraction):
    known = [-math.inf if math.isnan(h) else h for h in c["turn_entropies"]]
    first = sorted(range(len(known)), key=lambda m: (-known[m], m))[: round(fraction * len(known))]
    return [a if m in first else 0.0 for m, a in enumerate(c["advantages"])]


def probability_band(c, low, high):
    batch = []
    for m, a in enumerate(c["advantages"]):
        turn_logprobs = [x for x, turn in zip(c["old_logprobs"], c["turn"], strict=True) if turn == m]
        p = math.exp(mean(turn_logprobs)) if turn_logprobs else 1.0
        batch.append(a if not c["replayed"][c["trajectory"][m]] or low < p <= high else 0.0)
    return batch


def m2po(c, bound):
    gaps = {k: x - y for k, (x, y) in enumerate(zip(c["old_logprobs"], c["sampler_logprobs"], strict=True))}
    order = sorted((k for k, d in gaps.items() if not math.isnan(d)), key=lambda k: (gaps[k] ** 2, k))
    beyond = [order[n] for n in range(1, len(order)) if mean([gaps[k] ** 2 for k in order[: n + 1]]) >= bound]
    return silenced(c["advantages"], beyond)


@st.composite
def transform_inputs(draw, name):
    """Sample columns that an advantage transform can request, and its options."""
    batch = columns(draw(batches()))
    count = {"token": len(batch["turn"]), "turn": len(batch["trajectory"])}[
        annotated_level(ADVANTAGE_TRANSFORMS[name], "advantages")
    ]

    def sampled_column(numbers, n):
        return torch.tensor(draw(st.lists(numbers, min_size=n, max_size=n)), dtype=torch.float64)

    tokens = len(batch["turn"])
    batch["advantages"] = sampled_column(st.sampled_from([-1.0, 0.1, 0.5, 2.3]), count)
    batch["draws"] = sampled_column(st.floats(0, 1), tokens)
    batch["sampler_logprobs"] = sampled_column(st.floats(-3, -0.01) | st.just(math.nan), tokens)
    batch["replayed"] = sampled_column(st.sampled_from([0.0, 1.0]), len(batch["group"]))
    batch["value_deviations"] = sampled_column(st.floats(0, 2), len(batch["trajectory"]))
    batch["turn_seconds"] = sampled_column(st.sampled_from([0.0, 0.5, 3.0]), len(batch["trajectory"]))
    batch["entropies"] = sampled_column(st.sampled_from([0.0, 0.1, 0.5, 1.9, math.nan]), tokens)
    return batch, {key: draw(option) for key, option in OPTIONS[name].items()}


@EVERY
@FEW
@given(data=st.data())
def test_transform_equals_loops_over_floats(name, data):
    batch, options = data.draw(transform_inputs(name))
    expected = globals()[name]({key: column.tolist() for key, column in batch.items()}, **options)
    result = call_with_columns(ADVANTAGE_TRANSFORMS[name], batch, **options)
    assert result.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@EVERY
@FEW
@given(data=st.data())
def test_half_precision_columns_are_computed_in_full_precision_and_not_modified(name, data):
    batch, options = data.draw(transform_inputs(name))
    narrow = {key: column.float() if column.is_floating_point() else column for key, column in batch.items()}
    wide = {key: column.double() if column.is_floating_point() else column for key, column in narrow.items()}
    copies = {key: column.clone() for key, column in wide.items()}
    assert torch.equal(
        call_with_columns(ADVANTAGE_TRANSFORMS[name], narrow, **options).double(),
        call_with_columns(ADVANTAGE_TRANSFORMS[name], wide, **options),
    )
    assert all(torch.equal(wide[key].nan_to_num(-1), column.nan_to_num(-1)) for key, column in copies.items())


@pytest.mark.parametrize("name", ["entropy_aware", "entropy_modulated"])
def test_entropies_have_no_gradient(name):
    numbers = {"advantages": [1.0, 2.0], "entropies": [0.2, 0.9], "turn_entropies": [0.2, 0.9]}
    batch = {key: torch.tensor(column, dtype=torch.float64) for key, column in numbers.items()}
    batch |= {"trajectory": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
    for key in ("entropies", "turn_entropies"):
        batch[key].requires_grad_()
    assert not call_with_columns(ADVANTAGE_TRANSFORMS[name], batch).requires_grad
