"""Which rewards can a recipe name? Each by its name, and the function or class it stands for."""

from whetstone.rewards.answers.confidence import calibrated
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.answers.json_answer import json_answer
from whetstone.rewards.answers.pattern import pattern
from whetstone.rewards.answers.reported_answer import submitted_answer
from whetstone.rewards.answers.symbolic import Symbolic
from whetstone.rewards.calls.bfcl import bfcl
from whetstone.rewards.calls.ftrl import ftrl
from whetstone.rewards.calls.matched_calls import matched_calls
from whetstone.rewards.calls.tool_rl import tool_rl
from whetstone.rewards.composed import Composed
from whetstone.rewards.efficiency.calls_ran import executed_calls, few_calls, well_formed
from whetstone.rewards.efficiency.cost_aware import cost_aware
from whetstone.rewards.efficiency.fewest_turns import fewest_turns
from whetstone.rewards.efficiency.ikea import ikea
from whetstone.rewards.efficiency.otc import Otc
from whetstone.rewards.efficiency.preferences import Preferences
from whetstone.rewards.efficiency.self_aware import self_aware
from whetstone.rewards.judged.checklist import Checklist
from whetstone.rewards.judged.evidence import Evidence
from whetstone.rewards.judged.preferred import Preferred
from whetstone.rewards.judged.rubric import Rubric
from whetstone.rewards.judged.rules import Rules
from whetstone.rewards.judged.verified import Verified
from whetstone.rewards.learned.reward import Learned
from whetstone.rewards.speed.kernel import kernel
from whetstone.rewards.speed.speedup import Speedup
from whetstone.rewards.tiers.milestones import Milestones
from whetstone.rewards.tiers.outcome_and_form import outcome_and_format
from whetstone.rewards.tiers.signed import plus_minus_one
from whetstone.rewards.tiers.tool_star import tool_star
from whetstone.rewards.turns.attempts import attempts
from whetstone.rewards.turns.followed import expert_match
from whetstone.rewards.turns.meta_reasoning import meta_reasoning
from whetstone.rewards.turns.step_labels import StepLabels
from whetstone.rewards.turns.unary_feedback import unary_feedback
from whetstone.rewards.worlds.sql_result import sql_result
from whetstone.rewards.worlds.state import state
from whetstone.rewards.worlds.tau2 import tau2
from whetstone.rewards.worlds.unit_tests import UnitTests
from whetstone.rewards.worlds.verdict import returns, verdict
from whetstone.rewards.written.reward import WrittenReward

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
    "reward_model": Learned,
    "matched_calls": matched_calls,
    "meta_reasoning": meta_reasoning,
    "milestones": Milestones,
    "otc": Otc,
    "outcome_and_format": outcome_and_format,
    "pattern": pattern,
    "user_preferences": Preferences,
    "pairwise_judge": Preferred,
    "submitted_answer": submitted_answer,
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
    "generated_code": WrittenReward,
}
