"""Check of custom estimators and objectives on a small batch, before anything is sampled.

The batch has two tasks with two trajectories each, one turn per trajectory and two tokens per turn. A function that
reads a column without a value here (of a critic, a tree, a custom column) is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import Credit, annotated_level, column_names
from whetstone.errors import CreditError
from whetstone.learning.credit_assignment import check_finite
from whetstone.learning.losses import POLICY, check_loss, describe_term
from whetstone.plugins import unwrap_partial

COUNTS = {"trajectory": 4, "turn": 4, "token": 8}
"""Number of items of the batch per level."""


def try_estimator(estimator: Callable[..., Any]) -> None:
    """Check that a custom estimator returns one finite number per trajectory, turn or token.

    Built-in estimators are not checked.

    Raises:
        CreditError: If it returns anything else.
    """
    columns = _columns_of_credit()
    if not _is_custom(estimator) or not set(column_names(estimator)) <= columns.keys():
        return
    result = estimator(*(columns[name] for name in column_names(estimator)))
    level = annotated_level(estimator)
    advantages = result.advantages if isinstance(result, Credit) else result
    check_finite("advantage", estimator, advantages, COUNTS[level], level)


def try_loss(function: Callable[..., Any], name: str = POLICY) -> None:
    """Check that a custom objective or loss term returns one finite loss per token, with a gradient.

    Built-in functions are not checked.

    Args:
        function: Objective or loss term.
        name: Name of the loss term, for the message.

    Raises:
        CreditError: If it returns anything else.
    """
    columns = _columns_of_loss()
    if not _is_custom(function) or not set(column_names(function)) <= columns.keys():
        return
    result = function(*(columns[name] for name in column_names(function)))
    who, logprobs = describe_term(name, function), columns["learner_logprobs"]
    check_loss(result, who, logprobs)
    wrong = int((~result.loss.isfinite()).sum())
    if wrong:
        raise CreditError(f"{who}: {wrong} of {len(logprobs)} losses are not finite on a trial batch")
    slopes = None
    if result.loss.requires_grad:
        inputs = [logprobs, columns["entropies"]]
        slopes = torch.autograd.grad(result.loss.sum(), inputs, allow_unused=True)
    if slopes is None or all(slope is None for slope in slopes):
        message = "the loss has no gradient with respect to learner_logprobs; do not detach it or compute it in no_grad"
        raise CreditError(f"{who}: {message}")
    if not all(slope.isfinite().all() for slope in slopes if slope is not None):
        raise CreditError(f"{who}: the gradient of the loss is not finite on a trial batch")


def _is_custom(function: Callable[..., Any]) -> bool:
    return not getattr(unwrap_partial(function), "__module__", "").startswith("whetstone.")


def _columns_of_credit() -> dict[str, Tensor]:
    """Return the columns of the batch that an estimator can read."""
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.25], dtype=torch.float64)
    group, each = torch.tensor([0, 0, 1, 1]), torch.arange(4)
    owner = each.repeat_interleave(2)
    logprobs = torch.tensor([-0.5, -1.0, -1.5, -2.0, -0.25, -0.75, -1.25, -1.75], dtype=torch.float64)
    last = torch.tensor([0.0, 1.0] * 4, dtype=torch.float64)
    return {
        "rewards": rewards,
        "outcomes": rewards,
        "group": group,
        "lengths": torch.full((4,), 2, dtype=torch.float64),
        "trajectory": each,
        "turn": owner,
        "token_trajectory": owner,
        "token_rewards": rewards.repeat_interleave(2) * last,
        "old_logprobs": logprobs,
        "sampler_logprobs": logprobs,
        "entropies": -logprobs,
    }


def _columns_of_loss() -> dict[str, Tensor]:
    """Return the columns of the batch that an objective can read."""
    old = torch.tensor([-0.5, -1.0, -1.5, -2.0, -0.25, -0.75, -1.25, -1.75])
    owner = torch.arange(4).repeat_interleave(2)
    return {
        "learner_logprobs": (old + torch.tensor([0.1, -0.1] * 4)).requires_grad_(),
        "old_logprobs": old,
        "sampler_logprobs": old.clone(),
        "advantages": torch.tensor([1.0, 1.0, -1.0, -1.0, 0.5, 0.5, -0.5, -0.5]),
        "entropies": (-old).requires_grad_(),
        "sequence": owner,
        "turn": owner.clone(),
        "reference_logprobs": old - 0.1,
        "teacher_logprobs": old + 0.1,
        "usual_entropies": -old,
    }
