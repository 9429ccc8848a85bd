"""Losses from log-probs and credit. A loss per token never divides by anything: that is `aggregation`."""

from whetstone.algorithms.objectives.aggregation import Aggregation, aggregated, token_weights
from whetstone.algorithms.objectives.cispo import cispo
from whetstone.algorithms.objectives.clipped import clipped
from whetstone.algorithms.objectives.distillation import (
    importance_weighted_distillation,
    on_policy_distillation,
    teacher_advantages,
    top_k_kl,
)
from whetstone.algorithms.objectives.entropy import entropy_bonus, entropy_smoothing, usual_entropy
from whetstone.algorithms.objectives.entropy_balanced import entropy_balanced
from whetstone.algorithms.objectives.gmpo import gmpo
from whetstone.algorithms.objectives.gspo import gspo
from whetstone.algorithms.objectives.kl_cov import kl_cov
from whetstone.algorithms.objectives.mixture import entropy_weights, mixed, shaped_demonstration
from whetstone.algorithms.objectives.policy_gradient import policy_gradient
from whetstone.algorithms.objectives.preference import SumLoss, dpo, ipo, kto, orpo, pairs_of, refuel, simpo, step_dpo
from whetstone.algorithms.objectives.reference_kl import first_attempt_kl, reference_kl
from whetstone.algorithms.objectives.regression import advantage_regression, advantage_weighted
from whetstone.algorithms.objectives.reward_model import (
    bradley_terry,
    process_cross_entropy,
    process_preference,
    referee_reward,
)
from whetstone.algorithms.objectives.sapo import sapo
from whetstone.algorithms.objectives.smoothness import consistency, policy_consistency, value_consistency
from whetstone.algorithms.objectives.stored import (
    hybrid_weight,
    interpolated,
    pessimistic,
    simulation_penalty,
)
from whetstone.algorithms.objectives.supervised import supervised
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, SamplerRatioLoss, TokenLoss
from whetstone.algorithms.objectives.trust_region import probability_difference
from whetstone.algorithms.objectives.value import clipped_value, squared_value, success_value, value_slope

_OBJECTIVES = (
    advantage_regression, advantage_weighted, cispo, clipped, dpo, entropy_balanced, gmpo,
    importance_weighted_distillation, on_policy_distillation, gspo, ipo, kl_cov, kto, orpo, policy_gradient,
    probability_difference, refuel, sapo, simpo, step_dpo, supervised,
)  # fmt: skip
OBJECTIVES = {objective.__name__: objective for objective in _OBJECTIVES}

__all__ = [
    "OBJECTIVES", "AdvantageLoss", "Aggregation", "SamplerRatioLoss", "SumLoss", "TokenLoss", "advantage_regression",
    "advantage_weighted", "aggregated", "bradley_terry", "cispo", "clipped", "clipped_value", "consistency", "dpo",
    "entropy_balanced", "entropy_bonus", "entropy_smoothing", "entropy_weights", "first_attempt_kl", "gmpo", "gspo",
    "hybrid_weight", "importance_weighted_distillation", "interpolated", "ipo", "kl_cov", "kto", "mixed",
    "on_policy_distillation", "orpo", "pairs_of", "pessimistic", "policy_consistency", "policy_gradient",
    "probability_difference", "process_cross_entropy", "process_preference", "referee_reward", "reference_kl",
    "refuel", "sapo", "shaped_demonstration", "simpo", "simulation_penalty", "squared_value", "step_dpo",
    "success_value", "supervised", "teacher_advantages", "token_weights", "top_k_kl", "usual_entropy",
    "value_consistency", "value_slope",
]  # fmt: skip
