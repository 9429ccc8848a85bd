"""Losses from log-probs and credit. A loss per token is not normalized; see `aggregation`."""

from whetstone.algorithms.objectives.aggregation import (
    Aggregation as Aggregation,
    aggregate_loss as aggregate_loss,
    token_weights as token_weights,
)
from whetstone.algorithms.objectives.cispo import cispo as cispo
from whetstone.algorithms.objectives.clipped import clipped as clipped
from whetstone.algorithms.objectives.distillation import (
    importance_weighted_distillation as importance_weighted_distillation,
    on_policy_distillation as on_policy_distillation,
    teacher_advantages as teacher_advantages,
    top_k_kl as top_k_kl,
)
from whetstone.algorithms.objectives.entropy import (
    entropy_bonus as entropy_bonus,
    entropy_smoothing as entropy_smoothing,
    usual_entropy as usual_entropy,
)
from whetstone.algorithms.objectives.entropy_balanced import entropy_balanced as entropy_balanced
from whetstone.algorithms.objectives.gmpo import gmpo as gmpo
from whetstone.algorithms.objectives.gspo import gspo as gspo
from whetstone.algorithms.objectives.kl_cov import kl_cov as kl_cov
from whetstone.algorithms.objectives.sft_mixture import (
    entropy_weights as entropy_weights,
    mix_losses as mix_losses,
    shaped_demonstration as shaped_demonstration,
)
from whetstone.algorithms.objectives.policy_gradient import policy_gradient as policy_gradient
from whetstone.algorithms.objectives.preference import (
    SumLoss as SumLoss,
    dpo as dpo,
    ipo as ipo,
    kto as kto,
    orpo as orpo,
    preference_pairs as preference_pairs,
    refuel as refuel,
    simpo as simpo,
    step_dpo as step_dpo,
)
from whetstone.algorithms.objectives.reference_kl import (
    first_attempt_kl as first_attempt_kl,
    reference_kl as reference_kl,
)
from whetstone.algorithms.objectives.weighted_regression import (
    advantage_regression as advantage_regression,
    advantage_weighted as advantage_weighted,
)
from whetstone.algorithms.objectives.reward_model_loss import (
    bradley_terry as bradley_terry,
    process_cross_entropy as process_cross_entropy,
    process_preference as process_preference,
    referee_reward as referee_reward,
)
from whetstone.algorithms.objectives.sapo import sapo as sapo
from whetstone.algorithms.objectives.consistency import (
    consistency as consistency,
    policy_consistency as policy_consistency,
    value_consistency as value_consistency,
)
from whetstone.algorithms.objectives.offline_to_online import (
    hybrid_weight as hybrid_weight,
    reptile_step as reptile_step,
    pessimistic_value as pessimistic_value,
    simulation_penalty as simulation_penalty,
)
from whetstone.algorithms.objectives.supervised_loss import supervised as supervised
from whetstone.algorithms.objectives.token_loss import (
    AdvantageLoss as AdvantageLoss,
    SamplerRatioLoss as SamplerRatioLoss,
    TokenLoss as TokenLoss,
)
from whetstone.algorithms.objectives.trust_region import probability_difference as probability_difference
from whetstone.algorithms.objectives.value import (
    clipped_value as clipped_value,
    squared_value as squared_value,
    success_value as success_value,
    value_slope as value_slope,
)

_OBJECTIVES = (
    advantage_regression, advantage_weighted, cispo, clipped, dpo, entropy_balanced, gmpo,
    importance_weighted_distillation, on_policy_distillation, gspo, ipo, kl_cov, kto, orpo, policy_gradient,
    probability_difference, refuel, sapo, simpo, step_dpo, supervised,
)  # fmt: skip
OBJECTIVES = {objective.__name__: objective for objective in _OBJECTIVES}
