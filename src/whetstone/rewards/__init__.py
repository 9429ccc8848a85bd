"""Rewards: functions that score trajectories, and judges."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.rewards.answers.exact_match import exact_match as exact_match
    from whetstone.rewards.answers.exact_number import exact_number as exact_number, last_number as last_number
    from whetstone.rewards.answers.final_answer import final_answer as final_answer
    from whetstone.rewards.built_in import REWARDS as REWARDS
    from whetstone.rewards.calls.matched_calls import matched_calls as matched_calls
    from whetstone.rewards.composed import Composed as Composed
    from whetstone.rewards.judge_rewards.feedback_metrics import (
        induce_metrics as induce_metrics,
        measure_coverage as measure_coverage,
    )
    from whetstone.rewards.judge_rewards.rule_adherence import extract_rules as extract_rules
    from whetstone.rewards.judge_rewards.rule_agreement import measure_agreement as measure_agreement
    from whetstone.rewards.learned.model import RewardModel as RewardModel
    from whetstone.rewards.build_reward import make_judge as make_judge, make_reward as make_reward
    from whetstone.rewards.generated.code_reward import CodeReward as CodeReward
    from whetstone.rewards.generated.generate_reward import (
        GeneratedReward as GeneratedReward,
        write_reward as write_reward,
    )
    from whetstone.rewards.protocol import (
        GroupReward as GroupReward,
        Reward as Reward,
        provided_columns as provided_columns,
        provides as provides,
    )
    from whetstone.rewards.scoring import (
        REWARD_FAILED as REWARD_FAILED,
        score_group as score_group,
        score_trajectory as score_trajectory,
    )
    from whetstone.rewards.process.attempts import attempts as attempts
    from whetstone.rewards.process.meta_reasoning import meta_reasoning as meta_reasoning
    from whetstone.rewards.process.unary_feedback import unary_feedback as unary_feedback
    from whetstone.rewards.environment_state.tau2 import tau2 as tau2
    from whetstone.rewards.environment_state.environment_outcome import returns as returns, verdict as verdict

__getattr__, __dir__ = export_lazily(__name__)
