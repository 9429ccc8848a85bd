"""What holds for every objective: value and gradient are the naive second implementation's, and the common rules."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests_naive_objectives as naive
from whetstone.algorithms import OBJECTIVES
from whetstone.algorithms.objectives import process_preference

SUMS = {"dpo": OBJECTIVES["dpo"], "kto": OBJECTIVES["kto"], "refuel": OBJECTIVES["refuel"]}
SUMS["step_dpo"] = OBJECTIVES["step_dpo"]
OF_TOKENS = sorted(OBJECTIVES.keys() - SUMS.keys())
SUMS["process_preference"] = process_preference
FEW = settings(max_examples=40, deadline=None)
LOG = st.integers(-4000, -50).map(lambda thousandths: thousandths / 1000)
OFF_THE_EDGES = 0.000137
"""Added to the log-probs that vary, so that no finite difference is taken across the edge of a clip."""
CREDIT = st.sampled_from([0.0, 1.0, -1.0, 0.7, -2.3])
STEP = 1e-6


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
    found["rewards"] = [draw(st.sampled_from([0.0, 1.0, 0.5])) for _ in range(count)]
    for name in ("group", "action_keys"):
        found[name] = [draw(st.integers(0, 1)) for _ in range(count)]
    found["lengths"] = found["turn_counts"] = [draw(st.integers(1, 4)) for _ in range(count)]
    return found


def asked(function, columns, learner):
    given = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not p.KEYWORD_ONLY:
            whole = p.name in ("sequence", "turn", "group", "action_keys", "lengths", "turn_counts")
            kind = torch.long if whole else torch.float64
            named = p.name.startswith("learner_")
            given.append(learner if named else torch.tensor(columns[p.name], dtype=kind))
    return function(*given)


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
@given(columns=tokens())
def test_values_and_gradients_are_those_of_loops_over_floats(name, columns):
    at = columns["learner_logprobs"]
    learner = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    found = asked(OBJECTIVES[name], columns, learner).loss
    second = getattr(naive, name)
    assert found.tolist() == pytest.approx(second(at, at, columns), abs=1e-9)
    found.sum().backward()
    expected = gradient(lambda now: sum(second(now, at, columns)), at)
    assert learner.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", sorted(SUMS))
@FEW
@given(columns=sums())
def test_losses_on_sums_and_their_gradients_are_those_of_loops_over_floats(name, columns):
    at = columns["learner_sums"]
    learner = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    found = asked(SUMS[name], columns, learner).loss
    second = getattr(naive, name)
    assert found.item() == pytest.approx(second(at, at, columns), abs=1e-9)
    found.backward()
    expected = gradient(lambda s: second(s, at, columns), at)
    assert learner.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


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
    assert asked(SUMS[name], columns, nothing).loss.item() == 0
