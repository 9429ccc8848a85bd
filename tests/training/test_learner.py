"""Loss and gradient are those of the naive computation, however segments are packed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whetstone.algorithms import clipped, supervised
from whetstone.policies import Policy, build_tiny
from whetstone.recipe import OptimizerSettings
from whetstone.training import Learner
from whetstone.training.packing import pack
from whetstone.trajectory import Author, Segment, Tokens

SETTINGS = OptimizerSettings(steps=10, learning_rate=1e-3)


def small_policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)


def segment(ids, mask, advantage=1.0, logprob=math.nan):
    n = len(ids)
    tokens = Tokens(tuple(ids), (Author.POLICY,) * n, (logprob,) * n, (0,) * n, (math.nan,) * n)
    return Segment("t", 0, tokens, tuple(mask), (0,) * n, tuple(advantage if m else 0.0 for m in mask))


IDS = st.lists(st.integers(0, 255), min_size=2, max_size=12)


@st.composite
def segments(draw):
    found = []
    for _ in range(draw(st.integers(1, 5))):
        ids = draw(IDS)
        mask = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        found.append(segment(ids, mask, draw(st.floats(-2, 2))))
    return found


def gradients(policy):
    return [p.grad.clone() for p in policy.model.parameters()]


def naive_gradients(policy, batch):
    """One sequence at a time, no padding; the mean over all action tokens but the first of a sequence."""
    policy.model.zero_grad()
    total = sum(sum(s.action_mask[1:]) for s in batch)
    loss = torch.zeros(())
    for s in batch:
        logprobs = torch.log_softmax(policy.model(torch.tensor([s.tokens.ids])).logits[0], -1)
        for place in range(1, len(s)):
            if s.action_mask[place]:
                loss = loss - s.advantages[place] * logprobs[place - 1, s.tokens.ids[place]] / total
    loss.backward()
    found = gradients(policy)
    policy.model.zero_grad()
    return found


class Recorder(Learner):
    """A learner that keeps its gradient instead of stepping."""

    def _apply_gradient(self):
        self.kept = gradients(self.policy)
        self.policy.model.zero_grad()
        return {}


def surrogate(logprobs, micro):
    return clipped(logprobs, logprobs.detach(), micro.advantages)


@settings(max_examples=25, deadline=None)
@given(batch=segments(), budget=st.integers(1, 60))
def test_the_gradient_is_the_naive_one_for_every_token_budget(batch, budget):
    if not any(any(s.action_mask[1:]) for s in batch):
        return
    policy = small_policy()
    learner = Recorder(policy, SETTINGS.model_copy(update={"micro_batch_tokens": budget}))
    learner.update(batch, surrogate)
    for ours, naive in zip(learner.kept, naive_gradients(policy, batch), strict=True):
        assert torch.allclose(ours, naive, atol=1e-6, rtol=1e-4)


def test_leaving_out_what_has_no_credit_changes_nothing_when_it_is_counted():
    policy = small_policy()
    learner = Recorder(policy, SETTINGS)
    with_credit, without = segment([1, 2, 3], [0, 1, 1]), segment([4, 5, 6, 7], [0, 1, 1, 1], advantage=0.0)
    learner.update([with_credit, without], surrogate)
    whole = learner.kept
    learner.update([with_credit], surrogate, divisor=5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, learner.kept, strict=True))


def test_logprobs_come_back_in_the_order_of_the_segments():
    policy = small_policy()
    batch = [segment(range(n), [i % 2 for i in range(n)]) for n in (3, 9, 2, 5)]
    found = Learner(policy, SETTINGS.model_copy(update={"micro_batch_tokens": 12})).logprobs(batch, temperature=0.7)
    for s, values in zip(batch, found, strict=True):
        with torch.no_grad():
            plain = torch.log_softmax(policy.model(torch.tensor([s.tokens.ids])).logits[0] / 0.7, -1)
        expected = [plain[i - 1, s.tokens.ids[i]] for i in range(1, len(s)) if s.action_mask[i]]
        assert torch.allclose(values, torch.stack(expected) if expected else torch.zeros(0), atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_falls_on_a_fixed_batch(optimizer):
    learner = Learner(small_policy(), OptimizerSettings(steps=40, optimizer=optimizer, learning_rate=1e-2))
    batch = [segment([5, 9, 7, 3, 8], [0, 1, 1, 1, 1])]
    losses = [learner.update(batch, lambda logprobs, _: supervised(logprobs))["loss"] for _ in range(40)]
    assert losses[-1] < losses[0] - 1.0


def test_nothing_to_train_is_counted_and_changes_nothing():
    policy = small_policy()
    before = [p.clone() for p in policy.model.parameters()]
    learner = Learner(policy, SETTINGS)
    assert learner.update([], surrogate)["update/skipped"] == 1.0
    assert learner.update([segment([1, 2], [0, 0])], surrogate)["update/skipped"] == 1.0
    zero = learner.update([segment([1, 2, 3], [0, 1, 1], advantage=0.0)], surrogate)
    assert (zero["update/skipped"], zero["update/tokens"]) == (1.0, 2.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    policy = small_policy()
    before = [p.clone() for p in policy.model.parameters()]
    metrics = Learner(policy, SETTINGS).update([segment([1, 2], [0, 1], advantage=math.inf)], surrogate)
    assert (metrics["update/skipped"], metrics["update/nonfinite"]) == (1.0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_the_same_seed_gives_the_same_weights_bit_for_bit():
    def trained():
        policy = small_policy()
        learner = Learner(policy, SETTINGS)
        for _ in range(3):
            learner.update([segment([5, 9, 7], [0, 1, 1]), segment([1, 2], [0, 1])], surrogate)
        return list(policy.model.parameters())

    assert all(torch.equal(a, b) for a, b in zip(trained(), trained(), strict=True))


def test_the_mismatch_with_the_sampler_is_reported():
    policy = small_policy()
    learner = Learner(policy, SETTINGS)
    (exact,) = learner.logprobs([segment([1, 2], [0, 1])])
    metrics = learner.update([segment([1, 2], [0, 1], logprob=exact.item())], surrogate)
    assert metrics["sampler/mismatch_max"] < 1e-6


@settings(max_examples=30, deadline=None)
@given(batch=segments(), budget=st.integers(1, 40))
def test_every_segment_is_packed_once_and_budgets_are_kept(batch, budget):
    micros = list(pack(batch, token_budget=budget, device=torch.device("cpu")))
    assert sorted(i for micro in micros for i in micro.indices) == list(range(len(batch)))
    for micro in micros:
        assert micro.ids.numel() <= budget or len(micro.indices) == 1
        assert not micro.action_mask[:, 0].any()


def test_a_policy_is_a_model_and_a_tokenizer():
    assert isinstance(small_policy(), Policy)
    assert small_policy().context_length == 64
