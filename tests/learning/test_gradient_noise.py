"""The gradient noise scale: unbiased, independent of packing, restored by a resume, and without effect on training."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from support.learners import alone, assembled, groups, weights_of
from whetstone.learning.gradient_noise import (
    MAX_COST,
    GradientNoise,
    gradient_noise,
    interval_steps,
    part_size,
    sample_part,
)
from whetstone.learning.spec import UpdateBatch

NAMES = {"update/groups", "update/gradient_variance", "update/gradient_signal"}


def squared_norm_of_mean(vectors):
    """Compute the squared norm of the mean of vectors."""
    total = [sum(column) for column in zip(*vectors, strict=True)]
    return sum(each * each for each in total) / len(vectors) ** 2


@pytest.mark.parametrize("part", [1, 2, 3])
def test_both_terms_are_unbiased_over_all_batches_and_parts(part):
    # one group has the gradient (3, 0), (-1, 2) or (1, -1) with probability 1/2, 1/4, 1/4: exact fractions throughout
    support = {(3, 0): Fraction(1, 2), (-1, 2): Fraction(1, 4), (1, -1): Fraction(1, 4)}
    mean = [sum(p * g[i] for g, p in support.items()) for i in (0, 1)]
    signal = sum(m * m for m in mean)  # (3/2)² + (1/4)² = 37/16
    variance = sum(p * (g[0] ** 2 + g[1] ** 2) for g, p in support.items()) - signal  # 25/4 - 37/16 = 63/16
    assert (signal, variance) == (Fraction(37, 16), Fraction(63, 16))
    count, expected = 4, [Fraction(0), Fraction(0)]
    parts = list(itertools.combinations(range(count), part))
    for batch in itertools.product(support, repeat=count):
        probability = math.prod(support[g] for g in batch)
        for chosen in parts:
            small, big = squared_norm_of_mean([batch[i] for i in chosen]), squared_norm_of_mean(batch)
            terms = gradient_noise(small, big, part=part, count=count)
            for k in (0, 1):
                expected[k] += probability * Fraction(terms[k]).limit_denominator(10**9) / len(parts)
    assert [float(each) for each in expected] == pytest.approx([float(variance), float(signal)], abs=1e-6)


def test_a_linear_gaussian_problem_has_its_known_noise_scale():
    # x ~ N(0, I₂), y = w·x + ε, ε ~ N(0, s²), loss ½ (v·x - y)² at v = w + δ: the gradient of one example is
    # x (δ·x - ε), G = δ, E|g|² = (2 + 2) |δ|² + 2 s², so tr Σ = 3 |δ|² + 2 s². Three nodes of Gauss-Hermite
    # quadrature per dimension integrate these polynomials (degree 4) exactly.
    delta, s = np.array([0.5, -1.0]), 0.7
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    points = [
        (np.array([nodes[i], nodes[j]]) * (delta @ [nodes[i], nodes[j]] - s * nodes[k]), p)
        for i, j, k in itertools.product(range(3), repeat=3)
        for p in [weights[i] * weights[j] * weights[k] / weights.sum() ** 3]
    ]
    expected = np.zeros(2)
    for (one, p), (other, q) in itertools.product(points, points):
        small, big = one @ one, ((one + other) / 2) @ ((one + other) / 2)
        expected += p * q * np.array(gradient_noise(small, big, part=1, count=2))
    assert expected == pytest.approx([3 * (delta @ delta) + 2 * s**2, delta @ delta])


@pytest.mark.parametrize("part", [0, 3, 4])
def test_a_part_of_none_or_all_groups_is_rejected(part):
    with pytest.raises(ValueError, match=f"got {part}"):
        gradient_noise(1.0, 1.0, part=part, count=3)


@pytest.mark.parametrize("count", [2, 3, 8, 16, 31, 32, 100, 512])
def test_measurements_compute_at_most_their_fraction_of_the_groups(count):
    assert part_size(count) / interval_steps(count) <= MAX_COST * count
    chosen = [sample_part(count, seed=1, step=step) for step in range(50)]
    assert all(len(set(part)) == part_size(count) and set(part) <= set(range(count)) for part in chosen)
    assert chosen == [sample_part(count, seed=1, step=step) for step in range(50)]


def test_averages_are_of_variance_and_signal_and_not_of_their_ratio():
    noise = GradientNoise()
    first = noise.add(10.0, 4.0, part=1, count=4)  # tr Σ = 6 / (3/4) = 8, |G|² = (16 - 10) / 3 = 2
    assert first == pytest.approx(
        {"update/groups": 4, "update/gradient_variance": 8, "update/gradient_signal": 2, "update/noise_scale": 4}
    )
    second = noise.add(7.0, 1.0, part=1, count=4)  # 8 and (4 - 7) / 3 = -1
    assert second["update/gradient_signal"] == pytest.approx((0.95 * 2 - 1) / 1.95)
    assert second["update/noise_scale"] == pytest.approx(8 * 1.95 / 0.9)
    for _ in range(2):
        last = noise.add(7.0, 1.0, part=1, count=4)
    assert last["update/gradient_signal"] < 0
    assert "update/noise_scale" not in last


def test_the_lower_end_has_the_standard_error_of_the_signal():
    # |G|² is (32 - 10) / 3 = 22/3 and (32.4 - 10.2) / 3 = 7.4, with weights 0.95 and 1
    noise = GradientNoise()
    noise.add(10.0, 8.0, part=1, count=4)
    metrics = noise.add(10.2, 8.1, part=1, count=4)
    weights, signals, norms = np.array([0.95, 1.0]) / 1.95, np.array([22 / 3, 7.4]), np.array([8.0, 8.1])
    mean = weights @ signals
    independent = 1 / (weights @ weights)
    error = math.sqrt(weights @ (signals - mean) ** 2 / (independent - 1))
    assert metrics["update/noise_scale_min"] > 0
    assert metrics["update/noise_scale_min"] == pytest.approx(4 * ((weights @ norms) / (mean + 2 * error) - 1))


def learned(*changes, steps=1, count=4):
    learner = alone(assembled(*changes))
    rows = []
    for _ in range(steps):
        rows.append(learner.update(UpdateBatch(tuple(groups(count)), version=learner.trainer.optimizers.done)).metrics)
        learner.end_step()
    return learner, rows


def noise_of(metrics):
    return {name: metrics[name] for name in NAMES}


def test_the_measurement_changes_no_bit_of_the_weights_and_no_other_metric():
    (on, measured), (off, plain) = (
        learned(f"reinforcement.measure_noise_scale={value}", steps=2) for value in ("true", "false")
    )
    assert measured[0].keys() >= NAMES
    assert not plain[0].keys() & NAMES
    for one, other in zip(weights_of(on.trainer), weights_of(off.trainer), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(measured, plain, strict=True):
        for name in other.keys() - {"throughput/update_tokens_per_second", "throughput/mfu", "memory/peak_gib"}:
            assert one[name] == other[name] or (math.isnan(one[name]) and math.isnan(other[name])), name


@pytest.mark.parametrize("form", [[], ["aggregation=sequence_mean", "objective=gspo"], ["reinforcement.minibatches=2"]])
def test_the_result_is_that_of_gradients_computed_group_by_group(form):
    learner, (metrics,) = learned(*form)
    each = list(groups(4))[:: 2 if "reinforcement.minibatches=2" in form else 1]
    part = sample_part(len(each), seed=learner.spec.seed, step=0)
    tokens, gradients = [], []
    for group in each:  # a batch of one group: the same advantages, another divisor
        single = alone(assembled(*[change for change in form if "minibatches" not in change]))
        result = single.update(UpdateBatch((group,), version=0))
        divides = result.metrics["update/tokens"] if "aggregation=sequence_mean" not in form else 1.0
        tokens.append(divides)
        (gradient,) = single.trainer.passes.noted
        gradients.append(torch.cat([g.flatten() for g in gradient]).double() * divides / len(each))
    scale = len(each) / sum(tokens)
    mean = sum(gradients) * scale
    of_part = sum(gradients[i] for i in part) * scale * len(each) / len(part)
    small, big = float(of_part @ of_part), float(mean @ mean)
    variance, signal = gradient_noise(small, big, part=len(part), count=len(each))
    assert metrics["update/groups"] == len(each)
    close = {"rel": 1e-3, "abs": 1e-3 * (small + big)}  # both are differences of these
    assert metrics["update/gradient_variance"] == pytest.approx(variance, **close)
    assert metrics["update/gradient_signal"] == pytest.approx(signal, **close)


@pytest.mark.parametrize(
    "packing",
    [
        ["reinforcement.micro_batch_tokens=64"],
        ["reinforcement.micro_batch_tokens=150"],
        ["reinforcement.prefix_sharing=false"],
        ["reinforcement.activation_checkpointing=true"],
    ],
)
def test_the_result_does_not_depend_on_micro_batches(packing):
    _, (metrics,) = learned()
    _, (packed,) = learned(*packing)
    assert noise_of(packed) == pytest.approx(noise_of(metrics), rel=1e-3, abs=1e-6)


def test_a_resumed_learner_continues_the_averages():
    steps = interval_steps(2) + 1
    complete, rows = learned(steps=steps, count=2)
    learner, _ = learned(steps=1, count=2)
    state = learner.state_dict()
    resumed = alone(assembled(policy=learner.trainer.policy))
    resumed.load_state_dict(state)
    for done in range(1, steps):
        metrics = resumed.update(UpdateBatch(tuple(groups(2)), version=done)).metrics
        resumed.end_step()
    assert [name for name in rows[0] if name in NAMES]
    assert noise_of(metrics) == noise_of(rows[-1])
    assert complete.state_dict()["gradient_noise"] == resumed.state_dict()["gradient_noise"]


def test_a_checkpoint_of_an_earlier_release_starts_new_averages():
    learner, _ = learned()
    state = learner.state_dict()
    del state["gradient_noise"]
    learner.load_state_dict(state)
    assert learner.trainer.gradient_noise.state_dict() == GradientNoise().state_dict()


def test_an_update_with_demonstrations_or_one_group_is_not_measured():
    learner = alone(assembled())
    (one,) = groups(1)
    assert not learner.update(UpdateBatch((one,), version=0)).metrics.keys() & NAMES
