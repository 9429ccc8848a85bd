"""An update of several losses is the sum of their means, for any division into micro-batches."""

import math
from dataclasses import replace

import pytest
import torch

from support.forward_passes import recorder
from support.segments import segment
from whetstone.algorithms import LossTerm, clipped, reference_kl, squared_value, supervised
from whetstone.algorithms.objectives import aggregate_loss, first_attempt_kl
from whetstone.learning.credit_assignment import CreditedSegment
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.minibatch import Minibatch, _lengths, _weights
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings, load_recipe
from whetstone.trajectory import Author

POLICY = LossTerm("policy", clipped)
EXPERT = [Author.ENVIRONMENT, *[Author.EXPERT] * 3]
OWN = [
    CreditedSegment(segment([1, 2, 3, 4], [0, 1, 1, 1], 0.5), torch.tensor([[0.25], [math.nan], [1.0]])),
    CreditedSegment(segment([1, 2, 9], [0, 1, 1], -1.0), torch.tensor([[-1.0], [math.nan]])),
]
SHOWN = [segment([5, 6, 7, 8], [0, 1, 1, 1], 0.0, authors=EXPERT)]


def fixed(policy, settings):
    """A trainer that keeps its weights, with a critic that returns 0.5 everywhere."""
    trainer = recorder(policy, settings)
    trainer.passes.forwards["policy"].critic = lambda rows: torch.full((len(rows), 1), 0.5)
    return trainer


@pytest.mark.parametrize("budget", [1, 5, 100])
def test_each_loss_is_a_mean_over_its_tokens(budget):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    learner = fixed(policy, OptimizerSettings(micro_batch_tokens=budget))
    batch = Minibatch.of(OWN, SHOWN, None)
    batch.divisor = 5
    old = [logprobs - 0.1 for logprobs in learner.logprobs(batch.segments)]
    reference = [logprobs - 0.3 for logprobs in learner.logprobs(batch.segments)]
    batch.add_critic_columns()
    terms = [
        POLICY,
        LossTerm("reference_kl", reference_kl, 0.2),
        LossTerm("value", squared_value, 0.7 * batch.mean_factor(batch.num_predictions), "critic"),
        LossTerm("imitation", supervised, 0.4 * batch.mean_factor(batch.num_imitated), "expert"),
    ]
    loss = UpdateLoss(terms, old, columns={**batch.columns, "reference_logprobs": reference})
    total = learner.step(batch.segments, loss, divisor=batch.divisor)["loss/total"]
    ratio = math.exp(0.1)
    policy_part = (3 * -0.5 * ratio + 2 * 1.0 * ratio) / 5
    pull = 0.2 * 0.5 * 0.3**2  # half the square, equal for all five tokens
    value = 0.7 * 0.5 * (0.25**2 + 0.5**2 + 1.5**2) / 3
    imitation = 0.4 * -learner.logprobs(SHOWN)[0].mean().item()
    assert total == pytest.approx(policy_part + pull + value + imitation, rel=1e-5)


def test_first_attempt_has_an_additional_kl_penalty():
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    learner = fixed(policy, OptimizerSettings(micro_batch_tokens=5))
    segments = [each.segment for each in OWN]
    old = learner.logprobs(segments)
    reference = [logprobs - 0.3 for logprobs in old]
    # the first attempt is the first two tokens of the first segment: 0.1 there, 0.01 everywhere
    first = [torch.tensor([0.1, 0.1, 0.0]), torch.zeros(2)]
    terms = [POLICY, LossTerm("reference_kl", reference_kl, 0.01), LossTerm("first_attempt_kl", first_attempt_kl)]
    loss_terms = UpdateLoss(terms, old, columns={"reference_logprobs": reference, "first_attempt": first})
    alone = learner.step(segments, UpdateLoss([POLICY], old))["loss/total"]
    pull = 0.5 * 0.3**2
    with_pull = learner.step(segments, loss_terms)["loss/total"]
    assert with_pull - alone == pytest.approx((5 * 0.01 + 2 * 0.1) * pull / 5, rel=1e-4)


def test_first_update_computes_the_old_log_probs():
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    learner = fixed(policy, OptimizerSettings(micro_batch_tokens=4))
    segments = [each.segment for each in OWN]
    old = [torch.empty(0)] * 2
    metrics = learner.step(segments, UpdateLoss([POLICY], old, first=True))
    assert metrics["policy/ratio"] == pytest.approx(1.0)
    for actual, expected in zip(old, learner.logprobs(segments), strict=True):
        assert torch.allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("budget", [1, 5, 100])
@pytest.mark.parametrize("mode", ["token_mean", "sequence_sum", "sequence_mean", "constant"])
def test_aggregation_does_not_depend_on_micro_batches(mode, budget):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    learner = fixed(policy, OptimizerSettings(micro_batch_tokens=budget))
    segments = [replace(each.segment, trajectory_id=str(k)) for k, each in enumerate(OWN)]
    share = [CreditedSegment(segment) for segment in segments]
    changes = ["aggregation.tokens=7"] if mode == "constant" else []
    recipe = load_recipe("demo", [f"aggregation.mode={mode}", *changes]).recipe
    lengths = _lengths(share)
    divisor = sum(lengths.values())
    batch = Minibatch.of(share, [], _weights(recipe.aggregation, lengths, divisor))
    loss = UpdateLoss([POLICY], list(learner.logprobs(segments)), weights=batch.weights)
    total = learner.step(segments, loss, divisor=divisor)["loss/total"]
    per_token = torch.tensor([-0.5] * 3 + [1.0] * 2, dtype=torch.float64)
    expected = aggregate_loss(per_token, torch.tensor([0, 0, 0, 1, 1]), mode, constant=7)
    assert total == pytest.approx(expected.item(), rel=1e-5)
