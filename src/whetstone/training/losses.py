"""What is an update of reinforcement made of? The objective, and beside it what the recipe asks for.

    loss = w · objective  +  β · pull to the reference  +  w · critic's error  +  v · imitation of demonstrations

Easy to get wrong: the objective is a mean over the policy's tokens, the critic's error one over its predictions, and
imitation one over the expert's tokens. All three go through one backward pass with one divisor, so the other two are
scaled to it, with counts over the whole update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, importance_weights, reference_kl, squared_value, supervised
from whetstone.training.packing import MicroBatch
from whetstone.training.token_outputs import TokenOutputs


@dataclass(slots=True)
class UpdateLoss:
    """The loss of one update; per segment are lists in the order of the segments that are updated on."""

    objective: Callable[..., Any]
    """(learner log-probs, old log-probs, advantages, each [T]) → TokenLoss"""
    old: list[Tensor]
    """Per segment, [A] log-probs before this step's updates."""
    first: bool = False
    """Nothing was updated since: `old` is what the pass itself finds, and is written here."""
    reference: Sequence[Tensor] | None = None
    """Per segment, [A] log-probs under the reference."""
    reference_weight: float = 0.0
    targets: Sequence[Tensor] | None = None
    """Per segment, [A] what the critic should say, NaN where it is not asked."""
    value_weight: float = 0.0
    """For each prediction, over the update's divisor."""
    correction: Callable[..., Any] | None = None
    """(log-probs before this step's updates, sampler log-probs, each [T]) → [T] what each token's objective counts
    for, where another policy may have drawn it."""
    imitation_weight: float = 0.0
    """For each of the expert's tokens, over the update's divisor."""

    def __call__(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """The loss of each action token of a micro-batch."""
        logprobs = outputs.logprobs
        if self.first:
            for i, part in micro.by_segment(logprobs.detach()):
                self.old[i] = part
        old = _of(self.old, micro)
        of_policy: TokenLoss = self.objective(logprobs, old, micro.advantages)
        loss, metrics = of_policy.loss, dict(of_policy.metrics)
        if self.correction is not None:
            weights = self.correction(old, micro.sampler_logprobs)
            loss = weights * loss
            metrics |= {
                "correction/weight": weights,
                "correction/weight_squared": weights.square(),
                "correction/changed_fraction": (weights != importance_weights(old, micro.sampler_logprobs)).float(),
            }
        policy_loss = loss.detach()
        if self.reference is not None:
            pull = reference_kl(logprobs, _of(self.reference, micro))
            loss, metrics = loss + self.reference_weight * pull.loss, metrics | pull.metrics
        if self.targets is not None:
            assert outputs.values is not None  # a critic is there where targets are
            error = squared_value(outputs.values, _of(self.targets, micro).to(outputs.values))
            loss, metrics = loss + self.value_weight * error.loss, metrics | error.metrics
            metrics["loss/value"] = (self.value_weight * error.loss).detach()
        if self.imitation_weight > 0:
            shown = supervised(logprobs)
            imitated = torch.where(micro.expert, self.imitation_weight * shown.loss, 0.0)
            loss = torch.where(micro.expert, imitated, loss)
            metrics["loss/imitation"] = imitated.detach()
        metrics["loss/policy"] = policy_loss
        return TokenLoss(loss, metrics)


def _of(per_segment: Sequence[Tensor], micro: MicroBatch) -> Tensor:
    return torch.cat([per_segment[i] for i in micro.indices])
