"""Properties of every objective: value and gradient of a naive implementation, and the common rules."""

import inspect
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import support.naive_objectives as naive
from whetstone.algorithms import OBJECTIVES, column_names
from whetstone.algorithms.objectives import process_preference

SUMS = {"dpo": OBJECTIVES["dpo"], "kto": OBJECTIVES["kto"], "refuel": OBJECTIVES["refuel"]}
SUMS |= {name: OBJECTIVES[name] for name in ("step_dpo", "ipo", "simpo", "orpo")}
OF_TOKENS = sorted(OBJECTIVES.keys() - SUMS.keys())
SUMS["process_preference"] = process_preference
WHOLE = ("sequence", "turn", "group", "action_keys", "lengths", "turn_counts")
"""Columns of integers."""
SAYING = ("learner", "old", "sampler", "reference", "teacher")
SUM_NAMES = (*(f"{who}_sums" for who in SAYING), "rewards", "group", "action_keys", "lengths", "turn_counts")
NAMES = (*(f"{who}_logprobs" for who in SAYING), "advantages", "sequence", "turn", "covariance_rank")
FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
LOG = st.integers(-4000, -50).map(lambda thousandths: thousandths / 1000)
OFF_THE_EDGES = 0.000137
"""Added to varied log-probs, so that no finite difference crosses the edge of a clip."""
CREDIT = st.sampled_from([0.0, 1.0, -1.0, 0.7, -2.3])
STEP = 1e-6
CLIPS = {"clip_low": st.sampled_from([0.0, 0.1, 0.2, 1.0]), "clip_high": st.sampled_from([0.0, 0.2, 0.5])}
DUAL = {"dual_clip": st.sampled_from([None, 1.6, 3.0])}
NATS = {"bound": st.sampled_from([0.5, 2.0, 10.0])}
PULL = {"low": st.sampled_from([0.05, 0.2]), "pull": st.sampled_from([0.0, 1e-3, 0.4])}
BETA = {"beta": st.sampled_from([0.03, 0.1, 0.7])}
PAIR = BETA | {"smoothing": st.sampled_from([0.0, 0.3, 1.0]), "imitate": st.sampled_from([0.0, 0.2])}
OPTIONS = {
    "advantage_regression": {
        "temperature": st.sampled_from([0.5, 1.0, 2.5]),
        "form": st.sampled_from(["smooth", "squared"]),
        "negatives": st.sampled_from(["drop", "keep"]),
    },
    "advantage_weighted": {"temperature": st.sampled_from([0.1, 2.0]), "max_weight": st.sampled_from([0.5, 20.0])},
    "cispo": {"min_ratio": st.sampled_from([0.0, 0.5]), "max_ratio": st.sampled_from([0.5, 1.5, 5.0])},
    "clipped": CLIPS | DUAL,
    "on_policy_distillation": CLIPS
    | NATS
    | {"teacher_weight": st.sampled_from([0.0, 0.5, 1.0]), "reward_weight": st.sampled_from([0.0, 0.7])},
    "importance_weighted_distillation": NATS | PULL,
    "dpo": PAIR | {"normalize_length": st.booleans()},
    "entropy_balanced": CLIPS | DUAL,
    "gmpo": {"clip": st.sampled_from([0.05, 0.4, 2.0])},
    "gspo": {
        "clip_low": st.sampled_from([3e-4, 0.1, 1.0]),
        "clip_high": st.sampled_from([4e-4, 0.2]),
        "level": st.sampled_from(["trajectory", "turn"]),
        "pool": st.sampled_from(["token", "mean"]),
    },
    "ipo": BETA | {"normalize_length": st.booleans()},
    "kl_cov": {"fraction": st.sampled_from([1e-4, 2e-4, 0.5]), "weight": st.sampled_from([0.3, 1.0])},
    "kto": BETA
    | {
        "desirable": st.sampled_from([0.5, 1.0]),
        "undesirable": st.sampled_from([1.0, 1.5]),
        "threshold": st.sampled_from([0.5, 0.7, 1.0]),
        "reference_point": st.sampled_from([None, 0.0, 0.3]),
    },
    "orpo": {"weight": st.sampled_from([0.0, 0.1, 1.0])},
    "policy_gradient": {},
    "probability_difference": PULL | {"high": st.sampled_from([0.1, 0.3])},
    "process_preference": BETA | {"pool": st.sampled_from(["mean", "sum"]), "threshold": st.sampled_from([0.0, 0.5])},
    "refuel": {"reward_scale": st.sampled_from([0.5, 1.0, 2.0])},
    "sapo": {"temperature": st.sampled_from([0.5, 1.0]), "negative_temperature": st.sampled_from([1.05, 2.0])},
    "simpo": {"beta": st.sampled_from([0.5, 2.0]), "margin": st.sampled_from([0.0, 1.6])},
    "step_dpo": PAIR,
    "supervised": {"weigh": st.sampled_from(["none", "probability", "both_ways"])},
}
"""Options of each objective; none puts an edge of a clip at a possible log-prob."""


@st.composite
def tokens(draw):
    """Sample columns of tokens, as lists."""
    count = draw(st.integers(1, 6))
    of = {name: [draw(LOG) for _ in range(count)] for name in ("old", "sampler", "reference", "teacher", "learner")}
    of["learner"] = [logprob + OFF_THE_EDGES for logprob in of["learner"]]
    batch = {f"{name}_logprobs": numbers for name, numbers in of.items()}
    if draw(st.booleans()):
        batch["sampler_logprobs"][0] = float("nan")
    batch["advantages"] = [draw(CREDIT) for _ in range(count)]
    batch["sequence"] = sorted(draw(st.integers(0, 2)) for _ in range(count))
    batch["turn"] = [draw(st.integers(0, 1)) for _ in range(count)]
    batch["covariance_rank"] = [draw(st.sampled_from([0.0, 1e-4, 0.5])) for _ in range(count)]
    return batch


@st.composite
def sums(draw):
    count = draw(st.integers(1, 5))
    batch = {f"{name}_sums": [draw(st.floats(-9, 0)) for _ in range(count)] for name in ("learner", "old", "reference")}
    batch["learner_sums"] = [min(x, -0.01) for x in batch["learner_sums"]]  # no probability is 1
    batch["rewards"] = [draw(st.sampled_from([0.0, 1.0, 0.5])) for _ in range(count)]
    for name in ("group", "action_keys"):
        batch[name] = [draw(st.integers(0, 1)) for _ in range(count)]
    batch["lengths"] = batch["turn_counts"] = [draw(st.integers(0, 4)) for _ in range(count)]
    return batch


@st.composite
def options(draw, name):
    """Sample some options of an objective; the others keep their defaults."""
    return {key: draw(value) for key, value in OPTIONS[name].items() if draw(st.booleans())}


def call_objective(function, columns, learner, **options):
    arguments = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not p.KEYWORD_ONLY:
            kind = torch.long if p.name in WHOLE else torch.float64
            named = p.name.startswith("learner_")
            arguments.append(learner if named else torch.tensor(columns[p.name], dtype=kind))
    return function(*arguments, **options)


def gradient(of, at):
    """Compute central differences of a function of a list of floats."""
    differences = []
    for k in range(len(at)):
        up, down = list(at), list(at)
        up[k], down[k] = up[k] + STEP, down[k] - STEP
        differences.append((of(up) - of(down)) / (2 * STEP))
    return differences


@pytest.mark.parametrize("name", OF_TOKENS)
@FEW
@given(columns=tokens(), data=st.data())
def test_values_and_gradients_equal_loops_over_floats(name, columns, data):
    at, settings = columns["learner_logprobs"], data.draw(options(name))
    learner = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    loss = call_objective(OBJECTIVES[name], columns, learner, **settings).loss
    second = partial(getattr(naive, name), **settings)
    assert loss.tolist() == pytest.approx(second(at, at, columns), rel=1e-9, abs=1e-9)
    loss.sum().backward()
    expected = gradient(lambda now: sum(second(now, at, columns)), at)
    assert learner.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", sorted(SUMS))
@FEW
@given(columns=sums(), data=st.data())
def test_losses_on_sums_and_their_gradients_equal_loops_over_floats(name, columns, data):
    at, settings = columns["learner_sums"], data.draw(options(name))
    learner = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    loss = call_objective(SUMS[name], columns, learner, **settings).loss
    second = partial(getattr(naive, name), **settings)
    assert loss.item() == pytest.approx(second(at, at, columns), rel=1e-9, abs=1e-9)
    loss.backward()
    expected = gradient(lambda s: second(s, at, columns), at)
    assert learner.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", OF_TOKENS)
@FEW
@given(columns=tokens(), data=st.data())
def test_metrics_of_token_losses_equal_loops_over_floats(name, columns, data):
    settings = data.draw(options(name))
    learner = torch.tensor(columns["learner_logprobs"], dtype=torch.float64)
    metrics = call_objective(OBJECTIVES[name], columns, learner, **settings).metrics
    expected = getattr(naive, f"said_by_{name}")(columns, **settings)
    assert metrics.keys() == expected.keys()
    for key, numbers in expected.items():
        assert metrics[key].tolist() == pytest.approx(numbers, rel=1e-9, abs=1e-9), key


@pytest.mark.parametrize("name", sorted(SUMS))
@FEW
@given(columns=sums(), data=st.data())
def test_metrics_of_losses_on_sums_equal_loops_over_floats(name, columns, data):
    settings = data.draw(options(name))
    metrics = call_objective(
        SUMS[name], columns, torch.tensor(columns["learner_sums"], dtype=torch.float64), **settings
    ).metrics
    assert metrics == pytest.approx(getattr(naive, f"said_by_{name}")(columns, **settings), rel=1e-9, abs=1e-9)
    assert {type(number) for number in metrics.values()} == {float}


@pytest.mark.parametrize("name", OF_TOKENS)
@FEW
@given(columns=tokens(), seed=st.integers(0, 9))
def test_order_of_tokens_has_no_effect(name, columns, seed):
    order = torch.randperm(len(columns["advantages"]), generator=torch.Generator().manual_seed(seed)).tolist()
    moved = {key: [column[k] for k in order] for key, column in columns.items()}

    def losses(c):
        return call_objective(
            OBJECTIVES[name], c, torch.tensor(c["learner_logprobs"], dtype=torch.float64)
        ).loss.tolist()

    assert losses(moved) == pytest.approx([losses(columns)[k] for k in order])


@pytest.mark.parametrize("name", OF_TOKENS)
def test_impossible_tokens_give_finite_numbers(name):
    columns = {f"{n}_logprobs": [-1e4, -1e-9, -1e4] for n in ("learner", "old", "sampler", "reference", "teacher")}
    columns["old_logprobs"] = columns["sampler_logprobs"] = [-1.0, -1e4, -1e4]
    columns |= {"advantages": [1.0, -1.0, 1.0], "sequence": [0, 0, 1], "turn": [0, 0, 0]}
    columns["covariance_rank"] = [0.0, 0.5, 0.5]
    learner = torch.tensor(columns["learner_logprobs"], dtype=torch.float64, requires_grad=True)
    result = call_objective(OBJECTIVES[name], columns, learner)
    result.loss.sum().backward()
    assert result.loss.isfinite().all()
    assert learner.grad.isfinite().all()
    assert all(metric.isfinite().all() for metric in result.metrics.values())


@pytest.mark.parametrize("name", ["clipped", "gspo", "gmpo", "cispo", "sapo", "entropy_balanced", "policy_gradient"])
@FEW
@given(columns=tokens())
def test_zero_advantages_give_exactly_zero_gradient(name, columns):
    learner = torch.tensor(columns["learner_logprobs"], dtype=torch.float64, requires_grad=True)
    nothing = {**columns, "advantages": [0.0] * len(learner)}
    call_objective(OBJECTIVES[name], nothing, learner).loss.sum().backward()
    assert (learner.grad == 0).all()


@pytest.mark.parametrize("name", ["clipped", "gspo", "gmpo", "sapo", "entropy_balanced", "cispo"])
@FEW
@given(columns=tokens())
def test_gradient_at_ratio_one_is_minus_the_advantage(name, columns):
    learner = torch.tensor(columns["old_logprobs"], dtype=torch.float64, requires_grad=True)
    call_objective(OBJECTIVES[name], columns, learner).loss.sum().backward()
    credit = columns["advantages"]
    if name == "gmpo":  # a sequence has one credit
        credit = [naive.mean_over(credit, columns["sequence"], i) for i in columns["sequence"]]
    assert learner.grad.tolist() == pytest.approx([-a for a in credit])


@pytest.mark.parametrize("name", OF_TOKENS)
def test_no_tokens_give_no_losses(name):
    nothing = torch.empty(0, dtype=torch.float64, requires_grad=True)
    columns = {p: [] for p in inspect.signature(OBJECTIVES[name]).parameters}
    assert call_objective(OBJECTIVES[name], columns, nothing).loss.tolist() == []


@pytest.mark.parametrize("name", sorted(SUMS))
def test_no_sums_give_zero_loss(name):
    nothing = torch.empty(0, dtype=torch.float64, requires_grad=True)
    columns = {p: [] for p in inspect.signature(SUMS[name]).parameters}
    result = call_objective(SUMS[name], columns, nothing)
    assert result.loss.item() == 0
    assert set(result.metrics.values()) <= {0.0}


@pytest.mark.parametrize("name", sorted(SUMS))
def test_loss_on_sums_has_their_precision(name):
    columns = {key: torch.zeros(2, dtype=torch.long if key in WHOLE else torch.float32) for key in SUM_NAMES}
    columns |= {"rewards": torch.tensor([1.0, 0.0], dtype=torch.float64), "action_keys": torch.tensor([0, 1])}
    for expected in ({}, {"normalize_length": True, "imitate": 0.5} if name == "dpo" else {}):
        loss = SUMS[name](*(columns[key] for key in column_names(SUMS[name])), **expected)
        assert loss.loss.dtype is torch.float32


EVERY = {**{name: OBJECTIVES[name] for name in OF_TOKENS}, **SUMS}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_only_the_learners_log_probs_receive_gradient(name):
    columns = {f"{n}_{what}": [-1.0, -2.0, -0.5] for n in SAYING for what in ("logprobs", "sums")}
    columns |= {"rewards": [1.0, 0.0, 0.5], "group": [0] * 3, "action_keys": [0, 1, 2], "lengths": [1] * 3}
    columns |= {"turn_counts": [1] * 3, "advantages": [1.0, -1.0, 0.5], "sequence": [0] * 3, "turn": [0] * 3}
    columns |= {"covariance_rank": [0.0, 0.5, 1.0]}
    inputs = {key: torch.tensor(column) for key, column in columns.items()}
    for key in inputs:
        if key.endswith(("_logprobs", "_sums")):
            inputs[key] = inputs[key].double().requires_grad_()
    result = EVERY[name](*(inputs[key] for key in column_names(EVERY[name])))
    result.loss.sum().backward()
    moved = {key for key, column in inputs.items() if column.grad is not None}
    assert moved <= {"learner_logprobs", "learner_sums"}
    assert not any(getattr(metric, "requires_grad", False) for metric in result.metrics.values())


@pytest.mark.parametrize("name", OF_TOKENS)
def test_columns_of_different_lengths_are_refused(name):
    columns = {key: torch.zeros(2, dtype=torch.long if key in WHOLE else torch.float64) for key in NAMES}
    for short in column_names(OBJECTIVES[name])[1 if name == "supervised" else 0 :]:
        uneven = {**columns, short: columns[short][:1]}
        with pytest.raises(ValueError, match=r"must have the same shape, got \[\["):
            OBJECTIVES[name](*(uneven[key] for key in column_names(OBJECTIVES[name])))


@pytest.mark.parametrize("name", OF_TOKENS)
def test_loss_and_metrics_have_the_precision_of_the_learners_log_probs(name):
    columns = {key: torch.zeros(2, dtype=torch.long if key in WHOLE else torch.float32) for key in NAMES}
    result = OBJECTIVES[name](*(columns[key] for key in column_names(OBJECTIVES[name])))
    assert {result.loss.dtype, *(metric.dtype for metric in result.metrics.values())} == {torch.float32}
