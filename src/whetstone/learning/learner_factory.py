"""Learners by the name that the key `learner` of a recipe has for them, or by `package.module:Class`.

A learner is created with those of these keywords that it declares: the policy, the settings of the stage, the spec of
the updates (None in a stage that only imitates), and `members`, the other models by name. Other keywords are options of
the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from whetstone.inference import Member
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import LearningSpec
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings


def create_local_learner(
    *,
    policy: Policy,
    settings: OptimizerSettings,
    spec: LearningSpec | None = None,
    members: Mapping[str, Member] = MappingProxyType({}),
) -> LocalLearner:
    """Return a learner in this process, which trains the model of the policy."""
    return LocalLearner(ModelTrainer(policy, settings, members=members), spec)


LEARNERS: Mapping[str, Callable[..., Learner]] = {"local": create_local_learner}
"""Built-in learners by name."""
