"""Learned reward: a value head on the last token of an episode, trained on pairs of a step's groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from whetstone.algorithms import TokenLoss
from whetstone.algorithms.objectives.preference import preference_pairs
from whetstone.algorithms.objectives.reward_model_loss import bradley_terry
from whetstone.learning.model_trainer import ModelTrainer, action_tokens
from whetstone.learning.packing import MicroBatch
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Group, Trajectory


class RewardLearner:
    """Learner of a learned reward that is trained together with the policy.

    Args:
        policy: Model with a critic of one head, which is read before the last action token of an episode.
        settings: Optimizer, schedule, and layout of forward passes.
    """

    def __init__(self, policy: Policy, settings: OptimizerSettings) -> None:
        self.trainer = ModelTrainer(policy, settings)

    def score(self, trajectory: Trajectory) -> float:
        """Return the score of an episode by the value head; 0 if it has no action token."""
        values = self.trainer.values(trajectory.segments()[-1:])
        return values[0][-1, 0].item() if values and len(values[0]) else 0.0

    def fit(self, groups: Sequence[Group]) -> dict[str, float]:
        """Make one optimizer step on every pair of a solved and an unsolved episode of a task.

            L = mean over pairs of −log σ(s₊ − s₋)

        Returns:
            `pairs`; if there are any, `loss` and `accuracy_before`, the fraction of pairs in the right order.

        Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 1; trained with the policy, with pairs that a rule verified:
            Cooper, Hong et al. 2025, arXiv:2508.05613.
        """
        episodes = [(number, each) for number, group in enumerate(groups) for each in group.counted if each.segments()]
        solved = torch.tensor([float(each.solved) for _, each in episodes])
        better, worse = preference_pairs(solved, torch.tensor([number for number, _ in episodes])).unbind(1)
        metrics = {"pairs": float(len(better))}
        if len(better):
            segments = [each.segments()[-1] for _, each in episodes]
            values = self.trainer.values(segments)
            scores = torch.stack([of[-1, 0].cpu().double() for of in values]).requires_grad_()
            loss = bradley_terry(scores[better], scores[worse]).mean()
            (slopes,) = torch.autograd.grad(loss, scores)
            gaps = (scores[better] - scores[worse]).sign()
            metrics |= {"loss": loss.item(), "accuracy_before": ((gaps + 1) / 2).mean().item()}
            divisor = sum(map(action_tokens, segments))

            def loss_of(outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
                assert outputs.values is not None
                last = torch.tensor(micro.counts).cumsum(0) - 1
                weights = torch.zeros(len(outputs.logprobs), dtype=slopes.dtype)
                weights[last] = divisor * slopes[list(micro.indices)]
                return TokenLoss(weights.to(outputs.values) * outputs.values[:, 0], {})

            self.trainer.step(segments, loss_of, divisor=divisor)
        self.trainer.optimizers.advance()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, for a checkpoint."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer from a checkpoint."""
        self.trainer.load_state_dict(state)
