"""Which learner does a recipe's `learner:` stand for? A name of ours, or `package.module:Class`.

Whatever makes one takes, by keyword and where it asks for them, the policy, the stage's settings, the spec of what is
learned (None where a stage imitates alone), the frozen models beside it and where those are computed; every other
keyword is an option of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import device
from torch.nn import Module

from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.process_model import ProcessModel
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import LearningSpec
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings


def local(
    *,
    policy: Policy,
    settings: OptimizerSettings,
    spec: LearningSpec | None = None,
    reference: Module | None = None,
    teacher: Module | None = None,
    own_teacher: bool = False,
    process: ProcessModel | None = None,
    reference_device: device | None = None,
    teacher_device: device | None = None,
) -> LocalLearner:
    """In this process, on the policy's own model."""
    trainer = ModelTrainer(
        policy,
        settings,
        reference=reference,
        teacher=teacher,
        own_teacher=own_teacher,
        process=process,
        reference_device=reference_device,
        teacher_device=teacher_device,
    )
    return LocalLearner(trainer, spec)


LEARNERS: Mapping[str, Callable[..., Learner]] = {"local": local}
"""By the name a recipe has for it."""
