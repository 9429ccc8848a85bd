"""Implicit process reward model: a member that starts as the policy and is trained on which episodes succeed.

The implicit reward of a turn is the log-ratio of this model to the policy that sampled the turn.

Note:
    The scores of a step are computed before the model is trained on the same episodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from whetstone.algorithms import TokenLoss
from whetstone.algorithms.objectives import process_preference
from whetstone.learning.columns import Columns
from whetstone.learning.model_trainer import ModelTrainer, action_tokens
from whetstone.learning.packing import MicroBatch
from whetstone.learning.sequence_logprobs import build_sequence_logprobs, compute_coefficients
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings, ProcessModelSettings


class ProcessModel:
    """Learner of the implicit process reward model (PRIME), created from the recipe key `implicit_prm`.

    Args:
        policy: Model to train, with weights separate from the policy's.
        settings: Learning rate, β and loss of the process model.
        like: Settings of the stage: layout of forward passes, schedule and number of steps.
    """

    def __init__(self, policy: Policy, settings: ProcessModelSettings, like: OptimizerSettings) -> None:
        wanted = like.model_copy(update={"optimizer": "adamw", "learning_rate": settings.learning_rate})
        self.settings, self.trainer = settings, ModelTrainer(policy, wanted)

    def learn(self, columns: Columns) -> dict[str, float]:
        """Make one update on all (success, failure) pairs of the step's groups; none without a pair.

        Args:
            columns: Columns of the step.

        Returns:
            Metrics with the prefix `implicit_prm/`.
        """
        column_index = [(i, k) for i, entry in enumerate(columns.trajectories) for k in range(len(entry.segments))]
        segments = [columns.trajectories[i].segments[k] for i, k in column_index]
        temperature = columns.temperature
        now = self.trainer.logprobs(segments, temperature=temperature)
        old = [numbers for of in columns.split_by_segment(columns["old_logprobs"]) for numbers in of]
        objective = partial(process_preference, beta=self.settings.beta, pool=self.settings.pool)
        sums = build_sequence_logprobs(columns, column_index, "trajectory")
        slopes, value, metrics = compute_coefficients(objective, sums, {"learner": now, "old": old})
        divisor = max(1, sum(map(action_tokens, segments)))

        def loss(outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
            slope = torch.cat([slopes[i] for i in micro.indices]).to(outputs.logprobs)
            return TokenLoss(divisor * slope * outputs.logprobs, {})

        self.trainer.step(segments, loss, temperature=temperature, divisor=divisor)
        self.trainer.optimizers.advance()
        return metrics | {"implicit_prm/loss": value}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, for a checkpoint."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer from a checkpoint."""
        self.trainer.load_state_dict(state)
