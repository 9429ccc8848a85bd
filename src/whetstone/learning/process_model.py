"""Who tells good turns from bad where nobody labelled them? A second model, taught which episodes succeeded.

It begins as the policy; what it finds likelier than the sampler did is a turn's implicit reward.

Easy to get wrong: scores are taken before it learns from the same episodes, or it would tell what it was just told.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from whetstone.algorithms import TokenLoss
from whetstone.algorithms.objectives import process_preference
from whetstone.learning.columns import Columns
from whetstone.learning.model_trainer import ModelTrainer, action_tokens
from whetstone.learning.packing import MicroBatch
from whetstone.learning.sequence_logprobs import coefficients, sums_of
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import Policy, clone_trainable
from whetstone.recipe import OptimizerSettings, ProcessModelSettings


class ProcessModel:
    """The second model and its optimiser.

    Args:
        policy: It begins as this, with weights of its own.
        settings: How it learns.
        like: How passes are computed and how many steps there are: as the policy's learner has it.
    """

    def __init__(self, policy: Policy, settings: ProcessModelSettings, like: OptimizerSettings) -> None:
        own = replace(policy, model=clone_trainable(policy.model), critic=None)
        wanted = like.model_copy(update={"optimizer": "adamw", "learning_rate": settings.learning_rate})
        self.settings, self._learner = settings, ModelTrainer(own, wanted)

    @property
    def learner(self) -> ModelTrainer:
        """What computes it."""
        return self._learner

    def learn(self, columns: Columns) -> dict[str, float]:
        """One update on every (success, failure) of the step's groups; without such a pair, none."""
        placed = [(i, k) for i, held in enumerate(columns.held) for k in range(len(held.segments))]
        segments = [columns.held[i].segments[k] for i, k in placed]
        temperature = columns.temperature
        now = self._learner.logprobs(segments, temperature=temperature)
        old = [numbers for of in columns.at_actions(columns["old_logprobs"]) for numbers in of]
        objective = partial(process_preference, beta=self.settings.beta, pool=self.settings.pool)
        sums = sums_of(columns, placed, "trajectory")
        slopes, value, metrics = coefficients(objective, sums, {"learner": now, "old": old})
        divisor = max(1, sum(map(action_tokens, segments)))

        def loss(outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
            slope = torch.cat([slopes[i] for i in micro.indices]).to(outputs.logprobs)
            return TokenLoss(divisor * slope * outputs.logprobs, {})

        self._learner.step(segments, loss, temperature=temperature, divisor=divisor)
        self._learner.optimizers.advance()
        return metrics | {"implicit_prm/loss": value}

    def state_dict(self) -> dict[str, Any]:
        """Its weights and optimiser."""
        return {"weights": self._learner.policy.model.state_dict(), "optimizer": self._learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._learner.policy.model.load_state_dict(state["weights"])
        self._learner.load_state_dict(state["optimizer"])
