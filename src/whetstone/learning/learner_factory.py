"""Learners by name, for the recipe key `learner`; a custom learner is named by `package.module:Class`.

A learner is created with those of these keywords that it declares: `policy`, `settings` (of the stage), `spec` (of the
updates; None in a stage that only imitates), and `members` (the other models by name). Other keywords are options of
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
    """Create a learner in this process; the recipe's `learner: local`.

    Args:
        policy: Policy to train.
        settings: Settings of the stage.
        spec: Specification of the updates; None in a stage that only imitates.
        members: Other models by name: `reference`, `teacher`, `implicit_prm`.
    """
    return LocalLearner(ModelTrainer(policy, settings, members=members), spec)


LEARNERS: Mapping[str, Callable[..., Learner]] = {"local": create_local_learner}
"""Built-in learners by name."""
