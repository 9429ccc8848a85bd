"""Custom estimators and objectives are tried on a small batch before sampling starts."""

import pytest
import torch

from whetstone.algorithms import ADVANTAGES, OBJECTIVES, PerToken, PerTrajectory, TokenLoss
from whetstone.errors import CreditError
from whetstone.learning import trial_update


def objective(loss, metrics=lambda logprobs: {}):
    def custom(learner_logprobs: PerToken, advantages: PerToken) -> TokenLoss:
        return TokenLoss(loss(learner_logprobs, advantages), metrics(learner_logprobs))

    return custom


def estimator(values):
    def custom(rewards: PerTrajectory, group: PerTrajectory) -> PerTrajectory:
        return values(rewards)

    return custom


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda learner_logprobs: -learner_logprobs, "returned Tensor, not TokenLoss(loss, metrics)"),
        (objective(lambda logprobs, advantages: -(logprobs * advantages).mean()), "a single one; do not average"),
        (objective(lambda logprobs, advantages: -logprobs[:3]), "8 losses are expected, one per token, got 3"),
        (objective(lambda logprobs, advantages: logprobs / 0), "8 of 8 losses are not finite"),
        (objective(lambda logprobs, advantages: -logprobs.detach()), "no gradient with respect to learner_logprobs"),
        (objective(lambda logprobs, advantages: -advantages), "no gradient with respect to learner_logprobs"),
        # the square root of 0 is 0, and its slope is infinite
        (objective(lambda logprobs, advantages: (logprobs - logprobs.detach()).sqrt()), "gradient of the loss is not"),
        (objective(lambda logprobs, advantages: -logprobs, lambda logprobs: {"a": logprobs.mean()}), "values of the"),
    ],
)
def test_wrong_objective_is_reported(function, message):
    with pytest.raises(CreditError) as error:
        trial_update.try_loss(function)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda rewards: None, "returned NoneType, not a tensor of numbers"),
        (lambda rewards: rewards[:1], "returned 1 numbers, not one for each trajectory (4)"),
        (lambda rewards: rewards.mean(), "returned a single numbers"),
        (lambda rewards: rewards * torch.nan, "4 of 4 values are not finite"),
    ],
)
def test_wrong_estimator_is_reported(values, message):
    with pytest.raises(CreditError) as error:
        trial_update.try_estimator(estimator(values))
    assert message in str(error.value)


def test_right_functions_pass_and_unknown_columns_are_not_tried():
    trial_update.try_loss(objective(lambda logprobs, advantages: -logprobs * advantages))
    trial_update.try_estimator(estimator(lambda rewards: rewards - rewards.mean()))

    def needs_more(rewards: PerTrajectory, novelty: PerTrajectory) -> PerTrajectory:
        raise AssertionError

    trial_update.try_estimator(needs_more)


def test_batch_of_the_trial_suits_every_built_in_function_that_reads_its_columns(monkeypatch):
    """Try all built-in functions as custom ones: none is refused."""
    monkeypatch.setattr(trial_update, "_is_custom", lambda function: True)
    tried = [
        each
        for each in OBJECTIVES.values()
        if set(trial_update.column_names(each)) <= trial_update._columns_of_loss().keys()
    ]
    assert len(tried) > 5
    for each in tried:
        trial_update.try_loss(each)
    for each in ADVANTAGES.values():
        trial_update.try_estimator(each)
