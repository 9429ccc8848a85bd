"""How does a policy learn from segments? Log-probs, a loss per token, one gradient, one step.

The learner knows nothing of how a trajectory came to be.

Easy to get wrong: the mean over the tokens of an update must not depend on how it was cut into micro-batches.
The divisor is counted over the whole update before the first backward pass.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, mismatch
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.training.optimizer import Optimizers
from whetstone.training.packing import MicroBatch, pack
from whetstone.trajectory import Segment

LossOf = Callable[[Tensor, MicroBatch], TokenLoss]
"""(learner's log-probs [A] with gradient, the micro-batch) → a loss per token."""


class Learner:
    """The policy in training and its optimiser.

    Args:
        policy: Its weights are changed in place.
        settings: Optimiser, schedule, and the token budget of a forward pass.
    """

    def __init__(self, policy: Policy, settings: OptimizerSettings) -> None:
        self.policy, self.settings = policy, settings
        self.optimizers = Optimizers(policy.model, settings)
        self._device = next(policy.model.parameters()).device

    def update(
        self, segments: Sequence[Segment], loss_of: LossOf, *, temperature: float = 1.0, divisor: int | None = None
    ) -> dict[str, float]:
        """One optimiser step on the mean loss of all action tokens in `segments`.

        Without an action token, or where the gradient is 0 (all advantages 0), nothing is updated; where the
        gradient is not finite, neither. `update/skipped` is then 1.

        Args:
            temperature: What the sampler divided its logits by; the log-probs here are under the same.
            divisor: Tokens the loss is divided by, where tokens with a loss of exactly 0 were left out
                of `segments`; by default those in `segments`.
        """
        total = sum(map(action_tokens, segments))
        if total == 0:
            return {"update/skipped": 1.0, "update/tokens": 0.0}
        divisor = total if divisor is None else divisor
        self.policy.model.train()
        sums: defaultdict[str, float] = defaultdict(float)
        learner_side, sampler_side = [], []
        for micro in pack(segments, token_budget=self.settings.micro_batch_tokens, device=self._device):
            logprobs, entropies = self._logprobs(self.policy.model, micro, temperature)
            per_token = loss_of(logprobs, micro)
            (per_token.loss.sum() / divisor).backward()  # type: ignore[no-untyped-call]
            sums["loss"] += per_token.loss.detach().sum().item()
            sums["policy/entropy"] += entropies.sum().item()
            for name, values in per_token.metrics.items():
                sums[name] += values.sum().item()
            drawn = ~torch.isnan(micro.sampler_logprobs)
            learner_side.append(logprobs.detach()[drawn])
            sampler_side.append(micro.sampler_logprobs[drawn])
        metrics = {name: value / total for name, value in sums.items()}
        if any(len(side) for side in sampler_side):
            metrics |= mismatch(torch.cat(learner_side), torch.cat(sampler_side))
        metrics |= self._apply_gradient()
        return metrics | {"update/tokens": float(total), "update/learning_rate": self.optimizers.rate()}

    @torch.no_grad()
    def logprobs(
        self, segments: Sequence[Segment], *, temperature: float = 1.0, model: torch.nn.Module | None = None
    ) -> list[Tensor]:
        """[A] log-probs of each segment's action tokens, in their order.

        Args:
            model: Another model than the policy in training, such as a frozen reference.
        """
        model = self.policy.model if model is None else model
        model.eval()
        found: dict[int, Tensor] = {}
        for micro in pack(segments, token_budget=self.settings.micro_batch_tokens, device=self._device):
            values, _ = self._logprobs(model, micro, temperature)
            counts = micro.action_mask.sum(1).tolist()
            found |= dict(zip(micro.indices, torch.split(values, counts), strict=True))
        return [found[i] for i in range(len(segments))]

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state; the weights are saved as a model folder."""
        return self.optimizers.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.optimizers.load_state_dict(state)

    def _logprobs(self, model: torch.nn.Module, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """([A] log-probs with gradient, [A] entropies without)"""
        logits = model(input_ids=micro.ids, use_cache=False).logits
        # the logits one place to the left predict the token; only those in front of action tokens are needed
        wanted = logits[:, :-1][micro.action_mask[:, 1:]].float() / temperature
        distribution = torch.log_softmax(wanted, dim=-1)
        chosen = distribution.gather(1, micro.ids[micro.action_mask].unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            entropies = -(distribution.exp() * distribution).sum(-1)
        return chosen, entropies

    def _apply_gradient(self) -> dict[str, float]:
        parameters = list(self.policy.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.max_gradient_norm).item()
        moves = math.isfinite(norm) and norm > 0
        if moves:
            self.optimizers.update()
        self.policy.model.zero_grad(set_to_none=True)
        finite = {"update/gradient_norm": norm} if math.isfinite(norm) else {"update/nonfinite": 1.0}
        return finite | {"update/skipped": float(not moves)}


def action_tokens(segment: Segment) -> int:
    """How many tokens of a segment can be trained; its first cannot, since nothing predicts it."""
    return sum(segment.action_mask[1:])
