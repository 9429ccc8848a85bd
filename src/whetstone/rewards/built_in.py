"""Built-in rewards by the name that recipes use."""

from whetstone.rewards.answers.confidence import calibrated
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.answers.json_answer import json_answer
from whetstone.rewards.answers.pattern import pattern
from whetstone.rewards.answers.satisfied_constraints import satisfied_constraints
from whetstone.rewards.answers.submitted_answer import submitted_answer
from whetstone.rewards.answers.symbolic import Symbolic
from whetstone.rewards.calls.bfcl import bfcl
from whetstone.rewards.calls.ftrl import ftrl
from whetstone.rewards.calls.matched_calls import matched_calls
from whetstone.rewards.calls.tool_rl import tool_rl
from whetstone.rewards.composed import Composed
from whetstone.rewards.efficiency.cost_aware import cost_aware
from whetstone.rewards.efficiency.executed_calls import executed_calls, few_calls, well_formed
from whetstone.rewards.efficiency.fewest_turns import fewest_turns
from whetstone.rewards.efficiency.ikea import ikea
from whetstone.rewards.efficiency.otc import Otc
from whetstone.rewards.efficiency.relevant_questions import relevant_questions
from whetstone.rewards.efficiency.self_aware import self_aware
from whetstone.rewards.efficiency.user_preferences import UserPreferences
from whetstone.rewards.environment_state.environment_outcome import returns, verdict
from whetstone.rewards.environment_state.sql_result import sql_result
from whetstone.rewards.environment_state.state import state
from whetstone.rewards.environment_state.tau2 import tau2
from whetstone.rewards.environment_state.unit_tests import UnitTests
from whetstone.rewards.environment_state.written_tests import WrittenTests
from whetstone.rewards.gated.milestones import Milestones
from whetstone.rewards.gated.outcome_and_format import outcome_and_format
from whetstone.rewards.gated.plus_minus_one import plus_minus_one
from whetstone.rewards.gated.tool_star import tool_star
from whetstone.rewards.generated.code_reward import CodeReward
from whetstone.rewards.judge_rewards.checklist import Checklist
from whetstone.rewards.judge_rewards.evidence import Evidence
from whetstone.rewards.judge_rewards.pairwise import Preferred
from whetstone.rewards.judge_rewards.rubric import Rubric
from whetstone.rewards.judge_rewards.rule_adherence import Rules
from whetstone.rewards.judge_rewards.rule_then_judge import Verified
from whetstone.rewards.kernels.kernel import kernel
from whetstone.rewards.kernels.speedup import Speedup
from whetstone.rewards.learned.learned_reward import LearnedReward
from whetstone.rewards.process.attempts import attempts
from whetstone.rewards.process.expert_match import expert_match
from whetstone.rewards.process.meta_reasoning import meta_reasoning
from whetstone.rewards.process.novelty import Novelty
from whetstone.rewards.process.step_labels import StepLabels
from whetstone.rewards.process.unary_feedback import unary_feedback

REWARDS = {
    "attempts": attempts,
    "bfcl": bfcl,
    "calibrated": calibrated,
    "executed_calls": executed_calls,
    "checklist": Checklist,
    "composed": Composed,
    "cost_aware": cost_aware,
    "evidence": Evidence,
    "exact_match": exact_match,
    "exact_number": exact_number,
    "few_calls": few_calls,
    "fewest_turns": fewest_turns,
    "expert_match": expert_match,
    "ftrl": ftrl,
    "ikea": ikea,
    "json_answer": json_answer,
    "kernel": kernel,
    "reward_model": LearnedReward,
    "matched_calls": matched_calls,
    "meta_reasoning": meta_reasoning,
    "milestones": Milestones,
    "novelty": Novelty,
    "otc": Otc,
    "outcome_and_format": outcome_and_format,
    "pattern": pattern,
    "satisfied_constraints": satisfied_constraints,
    "user_preferences": UserPreferences,
    "pairwise_judge": Preferred,
    "submitted_answer": submitted_answer,
    "relevant_questions": relevant_questions,
    "returns": returns,
    "rubric": Rubric,
    "rules": Rules,
    "self_aware": self_aware,
    "plus_minus_one": plus_minus_one,
    "speedup": Speedup,
    "sql_result": sql_result,
    "state": state,
    "step_labels": StepLabels,
    "symbolic": Symbolic,
    "tau2": tau2,
    "tool_rl": tool_rl,
    "tool_star": tool_star,
    "unary_feedback": unary_feedback,
    "unit_tests": UnitTests,
    "verdict": verdict,
    "rule_then_judge": Verified,
    "well_formed": well_formed,
    "written_tests": WrittenTests,
    "generated_code": CodeReward,
}
