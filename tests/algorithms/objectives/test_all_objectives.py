"""What holds for every objective: value and gradient are the naive second implementation's, and the common rules."""

import inspect
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests_naive_objectives as naive
from whetstone.algorithms import OBJECTIVES, columns_of
from whetstone.algorithms.objectives import process_preference

SUMS = {"dpo": OBJECTIVES["dpo"], "kto": OBJECTIVES["kto"], "refuel": OBJECTIVES["refuel"]}
SUMS |= {name: OBJECTIVES[name] for name in ("step_dpo", "ipo", "simpo", "orpo")}
OF_TOKENS = sorted(OBJECTIVES.keys() - SUMS.keys())
SUMS["process_preference"] = process_preference
WHOLE = ("sequence", "turn", "group", "action_keys", "lengths", "turn_counts")
"""Columns of whole numbers."""
SAYING = ("learner", "old", "sampler", "reference", "teacher")
SUM_NAMES = (*(f"{who}_sums" for who in SAYING), "rewards", "group", "action_keys", "lengths", "turn_counts")
NAMES = (*(f"{who}_logprobs" for who in SAYING), "advantages", "sequence", "turn", "covariance_rank")
FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
LOG = st.integers(-4000, -50).map(lambda thousandths: thousandths / 1000)
OFF_THE_EDGES = 0.000137
"""Added to the log-probs that vary, so that no finite difference is taken across the edge of a clip."""
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
"""Of each what it may be told; none of them puts an edge where a log-prob may lie."""


@st.composite
def tokens(draw):
    """Columns of some tokens, as lists."""
    count = draw(st.integers(1, 6))
    of = {name: [draw(LOG) for _ in range(count)] for name in ("old", "sampler", "reference", "teacher", "learner")}
    of["learner"] = [logprob + OFF_THE_EDGES for logprob in of["learner"]]
    found = {f"{name}_logprobs": numbers for name, numbers in of.items()}
    if draw(st.booleans()):
        found["sampler_logprobs"][0] = float("nan")
    found["advantages"] = [draw(CREDIT) for _ in range(count)]
    found["sequence"] = sorted(draw(st.integers(0, 2)) for _ in range(count))
    found["turn"] = [draw(st.integers(0, 1)) for _ in range(count)]
    found["covariance_rank"] = [draw(st.sampled_from([0.0, 1e-4, 0.5])) for _ in range(count)]
    return found


@st.composite
def sums(draw):
    count = draw(st.integers(1, 5))
    found = {f"{name}_sums": [draw(st.floats(-9, 0)) for _ in range(count)] for name in ("learner", "old", "reference")}
    found["learner_sums"] = [min(x, -0.01) for x in found["learner_sums"]]  # nothing is certain
    found["rewards"] = [draw(st.sampled_from([0.0, 1.0, 0.5])) for _ in range(count)]
    for name in ("group", "action_keys"):
        found[name] = [draw(st.integers(0, 1)) for _ in range(count)]
    found["lengths"] = found["turn_counts"] = [draw(st.integers(0, 4)) for _ in range(count)]
    return found


@st.composite
def options(draw, name):
    """Some of an objective's options; the others are as they are."""
    return {key: draw(value) for key, value in OPTIONS[name].items() if draw(st.booleans())}


def asked(function, columns, learner, **options):
    given = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not p.KEYWORD_ONLY:
            kind = torch.long if p.name in WHOLE else torch.float64
            named = p.name.startswith("learner_")
            given.append(learner if named else torch.tensor(columns[p.name], dtype=kind))
    return function(*given, **options)


def gradient(of, at):
    """Central differences of a function of a list of floats."""
    found = []
    for k in range(len(at)):
        up, down = list(at), list(at)
        up[k], down[k] = up[k] + STEP, down[k] - STEP
        found.append((of(up) - of(down)) / (2 * STEP))
    return found


@pytest.mark.parametrize("name", OF_TOKENS)
@FEW
@given(columns=tokens(), data=st.data())
def test_values_and_gradients_are_those_of_loops_over_floats(name, columns, data):
    at, told = columns["learner_logprobs"], data.draw(options(name))
    learner = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    found = asked(OBJECTIVES[name], columns, learner, **told).loss
    second = partial(getattr(naive, name), **told)
    assert found.tolist() == pytest.approx(second(at, at, columns), rel=1e-9, abs=1e-9)
    found.sum().backward()
    expected = gradient(lambda now: sum(second(now, at, columns)), at)
    assert learner.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", sorted(SUMS))
@FEW
@given(columns=sums(), data=st.data())
def test_losses_on_sums_and_their_gradients_are_those_of_loops_over_floats(name, columns, data):
    at, told = columns["learner_sums"], data.draw(options(name))
    learner = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    found = asked(SUMS[name], columns, learner, **told).loss
    second = partial(getattr(naive, name), **told)
    assert found.item() == pytest.approx(second(at, at, columns), rel=1e-9, abs=1e-9)
    found.backward()
    expected = gradient(lambda s: second(s, at, columns), at)
    assert learner.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", OF_TOKENS)
@FEW
@given(columns=tokens(), data=st.data())
def test_what_is_said_beside_a_loss_of_tokens_is_what_loops_over_floats_say(name, columns, data):
    told = data.draw(options(name))
    learner = torch.tensor(columns["learner_logprobs"], dtype=torch.float64)
    found = asked(OBJECTIVES[name], columns, learner, **told).metrics
    expected = getattr(naive, f"said_by_{name}")(columns, **told)
    assert found.keys() == expected.keys()
    for key, numbers in expected.items():
        assert found[key].tolist() == pytest.approx(numbers, rel=1e-9, abs=1e-9), key


@pytest.mark.parametrize("name", sorted(SUMS))
@FEW
@given(columns=sums(), data=st.data())
def test_what_is_said_beside_a_loss_of_sums_is_what_loops_over_floats_say(name, columns, data):
    told = data.draw(options(name))
    found = asked(SUMS[name], columns, torch.tensor(columns["learner_sums"], dtype=torch.float64), **told).metrics
    assert found == pytest.approx(getattr(naive, f"said_by_{name}")(columns, **told), rel=1e-9, abs=1e-9)
    assert {type(number) for number in found.values()} == {float}


@pytest.mark.parametrize("name", OF_TOKENS)
@FEW
@given(columns=tokens(), seed=st.integers(0, 9))
def test_the_order_of_tokens_matters_to_nobody(name, columns, seed):
    order = torch.randperm(len(columns["advantages"]), generator=torch.Generator().manual_seed(seed)).tolist()
    moved = {key: [column[k] for k in order] for key, column in columns.items()}

    def said(c):
        return asked(OBJECTIVES[name], c, torch.tensor(c["learner_logprobs"], dtype=torch.float64)).loss.tolist()

    assert said(moved) == pytest.approx([said(columns)[k] for k in order])


@pytest.mark.parametrize("name", OF_TOKENS)
def test_impossible_tokens_give_finite_numbers(name):
    columns = {f"{n}_logprobs": [-1e4, -1e-9, -1e4] for n in ("learner", "old", "sampler", "reference", "teacher")}
    columns["old_logprobs"] = columns["sampler_logprobs"] = [-1.0, -1e4, -1e4]
    columns |= {"advantages": [1.0, -1.0, 1.0], "sequence": [0, 0, 1], "turn": [0, 0, 0]}
    columns["covariance_rank"] = [0.0, 0.5, 0.5]
    learner = torch.tensor(columns["learner_logprobs"], dtype=torch.float64, requires_grad=True)
    found = asked(OBJECTIVES[name], columns, learner)
    found.loss.sum().backward()
    assert found.loss.isfinite().all()
    assert learner.grad.isfinite().all()
    assert all(metric.isfinite().all() for metric in found.metrics.values())


@pytest.mark.parametrize("name", ["clipped", "gspo", "gmpo", "cispo", "sapo", "entropy_balanced", "policy_gradient"])
@FEW
@given(columns=tokens())
def test_without_credit_there_is_exactly_no_gradient(name, columns):
    learner = torch.tensor(columns["learner_logprobs"], dtype=torch.float64, requires_grad=True)
    nothing = {**columns, "advantages": [0.0] * len(learner)}
    asked(OBJECTIVES[name], nothing, learner).loss.sum().backward()
    assert (learner.grad == 0).all()


@pytest.mark.parametrize("name", ["clipped", "gspo", "gmpo", "sapo", "entropy_balanced", "cispo"])
@FEW
@given(columns=tokens())
def test_at_ratio_one_the_gradient_is_minus_the_credit(name, columns):
    learner = torch.tensor(columns["old_logprobs"], dtype=torch.float64, requires_grad=True)
    asked(OBJECTIVES[name], columns, learner).loss.sum().backward()
    credit = columns["advantages"]
    if name == "gmpo":  # a sequence has one credit
        credit = [naive.mean_over(credit, columns["sequence"], i) for i in columns["sequence"]]
    assert learner.grad.tolist() == pytest.approx([-a for a in credit])


@pytest.mark.parametrize("name", OF_TOKENS)
def test_no_token_is_no_loss(name):
    nothing = torch.empty(0, dtype=torch.float64, requires_grad=True)
    columns = {p: [] for p in inspect.signature(OBJECTIVES[name]).parameters}
    assert asked(OBJECTIVES[name], columns, nothing).loss.tolist() == []


@pytest.mark.parametrize("name", sorted(SUMS))
def test_no_sum_is_a_loss_of_nothing(name):
    nothing = torch.empty(0, dtype=torch.float64, requires_grad=True)
    columns = {p: [] for p in inspect.signature(SUMS[name]).parameters}
    found = asked(SUMS[name], columns, nothing)
    assert found.loss.item() == 0
    assert set(found.metrics.values()) <= {0.0}


@pytest.mark.parametrize("name", sorted(SUMS))
def test_a_loss_of_sums_has_their_width(name):
    columns = {key: torch.zeros(2, dtype=torch.long if key in WHOLE else torch.float32) for key in SUM_NAMES}
    columns |= {"rewards": torch.tensor([1.0, 0.0], dtype=torch.float64), "action_keys": torch.tensor([0, 1])}
    for expected in ({}, {"normalize_length": True, "imitate": 0.5} if name == "dpo" else {}):
        loss = SUMS[name](*(columns[key] for key in columns_of(SUMS[name])), **expected)
        assert loss.loss.dtype is torch.float32


EVERY = {**{name: OBJECTIVES[name] for name in OF_TOKENS}, **SUMS}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_gradient_flows_to_the_learners_log_probs_alone_and_metrics_have_none(name):
    columns = {f"{n}_{what}": [-1.0, -2.0, -0.5] for n in SAYING for what in ("logprobs", "sums")}
    columns |= {"rewards": [1.0, 0.0, 0.5], "group": [0] * 3, "action_keys": [0, 1, 2], "lengths": [1] * 3}
    columns |= {"turn_counts": [1] * 3, "advantages": [1.0, -1.0, 0.5], "sequence": [0] * 3, "turn": [0] * 3}
    columns |= {"covariance_rank": [0.0, 0.5, 1.0]}
    given = {key: torch.tensor(column) for key, column in columns.items()}
    for key in given:
        if key.endswith(("_logprobs", "_sums")):
            given[key] = given[key].double().requires_grad_()
    found = EVERY[name](*(given[key] for key in columns_of(EVERY[name])))
    found.loss.sum().backward()
    moved = {key for key, column in given.items() if column.grad is not None}
    assert moved <= {"learner_logprobs", "learner_sums"}
    assert not any(getattr(metric, "requires_grad", False) for metric in found.metrics.values())


@pytest.mark.parametrize("name", OF_TOKENS)
def test_each_token_has_one_of_each_column(name):
    columns = {key: torch.zeros(2, dtype=torch.long if key in WHOLE else torch.float64) for key in NAMES}
    for short in columns_of(OBJECTIVES[name])[1 if name == "supervised" else 0 :]:
        uneven = {**columns, short: columns[short][:1]}
        with pytest.raises(ValueError, match=r"per token: got \[\["):
            OBJECTIVES[name](*(uneven[key] for key in columns_of(OBJECTIVES[name])))


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_loss_and_what_is_said_of_it_have_the_width_of_the_learners_log_probs(name):
    columns = {key: torch.zeros(2, dtype=torch.long if key in WHOLE else torch.float32) for key in NAMES}
    found = OBJECTIVES[name](*(columns[key] for key in columns_of(OBJECTIVES[name])))
    assert {found.loss.dtype, *(metric.dtype for metric in found.metrics.values())} == {torch.float32}
