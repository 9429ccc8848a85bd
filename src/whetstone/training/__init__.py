"""Training: runs, stages, evaluations, checkpoints and monitoring."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.training.agent_evaluation import (
        EvaluatedAgent as EvaluatedAgent,
        load_agent as load_agent,
        evaluate_agent as evaluate_agent,
        resolve_recipe as resolve_recipe,
    )
    from whetstone.training.cost_estimate import RunCost as RunCost, StageCost as StageCost
    from whetstone.training.evaluation_loop import (
        EvaluationRecord as EvaluationRecord,
        evaluate_policy as evaluate_policy,
        evaluation_protocol as evaluation_protocol,
    )
    from whetstone.training.exporting import ExportResult as ExportResult, export_model as export_model
    from whetstone.training.final_checkpoint import (
        final_agent as final_agent,
        final_policy as final_policy,
        require_member as require_member,
    )
    from whetstone.training.interruption import Interrupted as Interrupted
    from whetstone.training.permission import (
        known_effects as known_effects,
        permit_run as permit_run,
        tool_effects as tool_effects,
    )
    from whetstone.training.model_revisions import pin_choices as pin_choices
    from whetstone.training.opponent_evaluation import evaluate_opponents as evaluate_opponents
    from whetstone.training.publishing import (
        ENVIRONMENT_TAG as ENVIRONMENT_TAG,
        SecretSearch as SecretSearch,
        refuse_secrets as refuse_secrets,
        search_secrets as search_secrets,
        write_environment as write_environment,
        write_trajectory_dataset as write_trajectory_dataset,
    )
    from whetstone.training.run import train as train
    from whetstone.training.summary import AblationSummary as AblationSummary, RunSummary as RunSummary
    from whetstone.training.run_summary import run_headline as run_headline
    from whetstone.training.trial import plan_cost as plan_cost

__getattr__, __dir__ = export_lazily(__name__)
