"""How does a run go? The loop, its stages, evaluations beside it, and what watches over it."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.training.agent_evaluation import Agent, agent_of, evaluate_agent, recipe_of
    from whetstone.training.cost_estimate import RunCost, StageCost
    from whetstone.training.evaluating import EvaluationRecord, evaluate, protocol_of
    from whetstone.training.exporting import ExportResult, export_model
    from whetstone.training.final import final_agent, final_policy
    from whetstone.training.interruption import Interrupted
    from whetstone.training.permission import known_effects, permit_run, tool_effects
    from whetstone.training.pinned import pin_choices
    from whetstone.training.run import train
    from whetstone.training.summary import AblationSummary, RunSummary
    from whetstone.training.telling import headline
    from whetstone.training.trial import plan_cost

__getattr__, __dir__ = window(__name__)

__all__ = [
    "AblationSummary",
    "Agent",
    "EvaluationRecord",
    "ExportResult",
    "Interrupted",
    "RunCost",
    "RunSummary",
    "StageCost",
    "agent_of",
    "evaluate",
    "evaluate_agent",
    "export_model",
    "final_agent",
    "final_policy",
    "headline",
    "known_effects",
    "permit_run",
    "pin_choices",
    "plan_cost",
    "protocol_of",
    "recipe_of",
    "tool_effects",
    "train",
]
