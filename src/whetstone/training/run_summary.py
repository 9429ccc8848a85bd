"""Builds the one-line headline of an evaluation and the summary of a finished run: success, method and throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.evaluation.stage_results import StageResult, compare_stage, numbers_of
from whetstone.failure_causes import count_causes, format_causes
from whetstone.recipe import (
    DistillationSettings,
    OfflineSettings,
    PreferenceSettings,
    PretrainingSettings,
    Recipe,
    Resolved,
    SamplingSettings,
    SupervisedSettings,
)
from whetstone.record import RunRecord, read_json
from whetstone.record.checkpoint import KEPT
from whetstone.record.run_directory import OVERLAP
from whetstone.reporting import describe_learning, learning_rows
from whetstone.reporting.trajectories import read_task_outcomes
from whetstone.tool_calls import describe_failing_tools, load_tool_statistics
from whetstone.training.stopping import STEPS, stopping_reason

SKIPPED_ROWS = "skipped_rows.json"
"""File of a run with the number of invalid rows that were skipped, by the recipe key of their file."""
WITHOUT_USE = {
    "supervised": "demonstrations are not trained",
    "preference": "answers are left out",
    "offline": "episodes are left out",
}
"""Predicate for samples that a stage does not train on, by stage."""


def run_headline(evaluation: Mapping[str, Any]) -> str:
    """Describe an evaluation in one line, with the causes of episodes without a score.

    >>> run_headline({"success": 0.712, "interval": (0.671, 0.75), "episodes": 500, "invalid": 0})
    'success 71.2 % (95 % interval 67.1 to 75.0, 500 episodes)'

    Args:
        evaluation: Content of an evaluation file.
    """
    low, high = evaluation["interval"]
    episodes, invalid, causes = evaluation["episodes"], evaluation["invalid"], evaluation.get("causes") or {}
    why = f"; {invalid} of {episodes + invalid} episodes have no score: {format_causes(causes)}" if causes else ""
    if evaluation.get("too_long"):
        why += f"; {evaluation['too_long']} tasks are left out: their prompts leave no room in the model's context"
    if evaluation["success"] is None:
        return f"success unknown: no episode could be scored{why}"
    success = 100 * evaluation["success"]
    text = f"success {success:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}, {episodes} episodes)"
    for name, each in (evaluation.get("members") or {}).items():
        share = "unknown" if each["success"] is None else f"{100 * each['success']:.1f} %"
        text += f"; {name} in seat {each['seat']} {share}"
    return f"{text}{why}"


def describe_method(recipe: Recipe) -> dict[str, str]:
    """Return the names of the components that determine the training of a recipe, by label."""
    if recipe.reinforcement is None:
        return _without_sampling(recipe)
    return {
        "paper": recipe.paper,
        "advantage": recipe.advantage.name,
        "objective": recipe.objective.name,
        "strategy": recipe.rollout.strategy.name,
        "reward": recipe.reward.name,
        "updates": f"{recipe.reinforcement.steps} of {recipe.reinforcement.tasks_per_step} tasks",
    }


def _without_sampling(recipe: Recipe) -> dict[str, str]:
    if recipe.supervised is not None and recipe.supervised.data is None:
        return {"imitation of": f"the expert of {recipe.tasks.source}", "paper": recipe.paper}
    stage, settings = list(recipe.own_stages.items())[-1]
    facts = {"stage": stage, "paper": recipe.paper}
    if isinstance(settings, DistillationSettings) and recipe.teacher is not None:
        facts["teacher"] = recipe.teacher.path or "the policy itself"
        facts["privileged context"] = recipe.teacher.privileged_context or "none"
        facts["objective"] = settings.objective.name
    if isinstance(settings, SamplingSettings):
        facts |= {
            "strategy": recipe.rollout.strategy.name,
            "steps": f"{settings.steps} of {settings.tasks_per_step} tasks",
        }
    if isinstance(settings, PreferenceSettings | OfflineSettings | PretrainingSettings | SupervisedSettings):
        facts["data"] = settings.data.path if settings.data is not None else ""
    if isinstance(settings, PreferenceSettings):
        facts["objective"] = settings.objective.name
    elif isinstance(settings, OfflineSettings):
        facts |= {"advantage": recipe.advantage.name, "objective": recipe.objective.name}
    return facts


def mean_throughput(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean number of tokens per second of each stage.

    Args:
        rows: Rows of `metrics.jsonl`.
    """
    rates: dict[str, list[float]] = {}
    for row in rows:
        value = row.get("throughput/tokens_per_second")
        if value is not None:
            rates.setdefault(row["stage"], []).append(value)
    return {stage: sum(values) / len(values) for stage, values in rates.items()}


def build_summary(
    resolved: Resolved,
    run_dir: Path,
    rows: list[dict[str, Any]],
    *,
    seconds: Mapping[str, float],
    parameters: int,
) -> dict[str, Any]:
    """Build the content of `summary.json` of a finished run.

    Args:
        resolved: Recipe of the run.
        run_dir: Run directory with the evaluations.
        rows: Rows of `metrics.jsonl`.
        seconds: Training time of each stage, in seconds.
        parameters: Number of parameters of the policy.
    """
    recipe = resolved.recipe
    evaluations = {}
    for name in ("untrained", *recipe.own_stages):
        evaluation = read_json(run_dir / "evaluations" / f"{name}.json")
        if evaluation is not None:
            evaluations[name] = evaluation
    during = {
        int(path.stem.rpartition("-")[2]): read_json(path)
        for path in sorted((run_dir / "evaluations").glob("reinforcement-*.json"))
    }
    return {
        "recipe": resolved.name,
        "title": recipe.title or resolved.name,
        "seed": recipe.seed,
        "untrained": numbers_of(next(iter(evaluations.values()))),
        "stages": [result.to_json() for result in compare_stages(recipe, run_dir)],
        "evaluations": evaluations,
        "during": during,
        "ablations": {},
        "kept": read_json(run_dir / KEPT),
        "ends": {name: stopping_reason(rows, name, settings) or STEPS for name, settings in recipe.own_stages.items()},
        "failed": _failed(run_dir),
        "skipped_rows": read_json(run_dir / SKIPPED_ROWS) or {},
        "overlap": read_json(run_dir / OVERLAP) or [],
        "seconds": dict(seconds),
        "throughput": mean_throughput(rows),
        "parameters": parameters,
        "policy": recipe.policy.path or "tiny, randomly initialized",
        "method": describe_method(recipe),
    }


def compare_stages(recipe: Recipe, run_dir: Path) -> list[StageResult]:
    """Compare each evaluated stage of a run with its own start, paired over tasks.

    Stages that do not change the policy are left out.
    """
    results: list[StageResult] = []
    before = "untrained"
    for name, settings in recipe.own_stages.items():
        if isinstance(settings, SamplingSettings):
            continue  # the policy is unchanged
        paths = [run_dir / "evaluations" / f"{stage}.json" for stage in (before, name)]
        evaluations = [evaluation for path in paths if (evaluation := read_json(path)) is not None]
        if len(evaluations) == 2:
            files = [run_dir / "trajectories" / f"evaluation-{stage}.jsonl" for stage in (before, name)]
            first, second = (read_task_outcomes(file) if file.is_file() else {} for file in files)
            results.append(compare_stage(name, evaluations[0], evaluations[1], (first, second)))
        before = name
    return results


def _failed(run_dir: Path) -> dict[str, Any]:
    """Return the number and causes of episodes of reinforcement without a score."""
    causes = RunRecord(run_dir).causes
    return {"episodes": len(causes), "causes": count_causes(causes)}


def describe_unlearned(
    rows: Sequence[Mapping[str, Any]], stage: str, run_dir: Path, failing_tools: Sequence[str]
) -> list[str]:
    """Describe failing tools, and why no update of a stage changed the weights.

    Args:
        rows: Rows of `metrics.jsonl`.
        stage: Name of the stage.
        run_dir: Run directory.
        failing_tools: Lines about failing tools that were reported during the stage.

    Returns:
        Lines for the log; empty if neither is the case.
    """
    rows = [row for row in rows if row["stage"] == stage]
    lines = describe_failing_tools(load_tool_statistics(rows, run_dir))
    tools = lines or failing_tools
    rows = [row for row in rows if "update/skipped_fraction" in row]
    if not rows or any(row["update/skipped_fraction"] < 1 for row in rows):
        return lines
    if tools:
        why = "no call of a tool succeeds"
    elif any(row.get("update/nonfinite_fraction") for row in rows):
        why = "gradients were not finite"
    elif stage == "reinforcement":
        why = describe_learning(learning_rows(rows, windows=1)[0]).removeprefix("nothing: ")
    else:
        why = "the gradient was 0"
    if (
        stage == "reinforcement"
        and not tools
        and not any(row.get("episode/success") or row.get("reward/mean") for row in rows)
    ):
        why += ", no episode earned anything: start with demonstrations (supervised), easier tasks, reward in parts"
    more = f"; `whetstone why {run_dir}` has each step" if stage == "reinforcement" else ""
    return [*lines, f"no update changed the weights: {why}{more}"]
