"""HTML report of a run, `report.html`: success before and after with intervals, curves, example conversations.

The page is self-contained: no scripts, links or downloads. Its conclusions follow the intervals, also if nothing was
learned.

Note:
    Text of tools and models is untrusted; all of it is escaped.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from whetstone.atomic_write import write_text
from whetstone.chat import Message
from whetstone.errors import RunDirectoryError
from whetstone.evaluation.continual_learning import format_transfer
from whetstone.evaluation.stage_results import compare_rates, last_evaluation, read_stage_results
from whetstone.failure_causes import format_causes
from whetstone.recipe.resume_changes import parse_changes
from whetstone.recipe.variables import mask_recipe_text
from whetstone.reporting import charts
from whetstone.reporting.alarms import find_alarms, stored_alarms
from whetstone.reporting.learning_diagnostics import describe_learning, kept_sentence, learning_rows, noise_advice
from whetstone.reporting.metrics import Journal
from whetstone.reporting.pareto import front_chart
from whetstone.reporting.trajectories import read_trajectories
from whetstone.tool_calls import describe_failing_tools, load_tool_statistics
from whetstone.trajectory import Trajectory

STAGE_NAMES = {"untrained": "untrained", "supervised": "after the warm-up", "reinforcement": "after reinforcement"}
_PAIRS = 3
_WINDOWS = 6
"""Number of rows of the table of learning diagnostics."""
_CURVES = tomllib.loads((files(__package__) / "report_curves.toml").read_text("utf-8"))["curves"]


@dataclass(frozen=True, slots=True)
class TaskEpisodes:
    """Episodes of one task before and after training, shown side by side in the report."""

    task_id: str
    """Id of the task."""
    before: Trajectory
    """Episode of the first evaluation."""
    after: Trajectory
    """Episode of the last evaluation."""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` from the files of a run directory, and return its path.

    Raises:
        RunDirectoryError: The directory has no finished run.
        SaveError: The report could not be written.
    """
    path = run_dir / "summary.json"
    if not path.is_file():
        raise RunDirectoryError(
            f"{run_dir}: the run is not finished (summary.json is missing); write the report after its end"
        )
    summary = json.loads(path.read_text(encoding="utf-8"))
    rows = Journal(run_dir).read()
    stages = {_format_label(name, summary): result for name, result in summary["evaluations"].items()}
    recipe, changes = run_dir / "recipe.yaml", run_dir / "changes.json"
    sampled = [row for row in rows if row["stage"] == "reinforcement"]
    tools = load_tool_statistics(sampled, run_dir)
    page = Environment(
        loader=PackageLoader("whetstone", "reporting"), autoescape=True, undefined=StrictUndefined
    ).get_template("report.html.j2")
    after = last_evaluation(summary)
    folders = [run_dir / stage["folder"] for stage in summary.get("stages", ()) if "folder" in stage]
    sampled = [*rows, *(row for folder in folders for row in Journal(folder).read())]
    alarms = find_alarms(sampled)
    raised = {alarm.name for alarm in alarms}
    before_name, pairs = _pairs(run_dir, list(summary["evaluations"]))
    html = page.render(
        summary=summary,
        stages=stages,
        results=read_stage_results(summary),
        alarms=alarms,
        earlier={name: steps for name, steps in stored_alarms(sampled).items() if name not in raised},
        after=after,
        method=method_sentence(summary),
        failed=[*failure_sentences(summary), *(each["sentence"] for each in summary.get("overlap", []))],
        kept=kept_sentence(summary["kept"]) if summary.get("kept") else "",
        compared=_select_stages(list(stages)),
        ablations=[ablation_sentence(name, ablation, after) for name, ablation in summary["ablations"].items()],
        bars=charts.plot_bars(_bar_rows(summary, stages)),
        front=front_chart(_costs(summary, stages)),
        kinds=_kinds(summary["evaluations"], rows),
        members=_members(summary["evaluations"]),
        transfer=format_transfer(summary["suites"]) if summary.get("suites") else [],
        curves=_render_curves(rows),
        before_name=_format_label(before_name, summary),
        pairs=pairs,
        tools=tools,
        failing_tools=describe_failing_tools(tools),
        learning=learning_rows(rows, windows=_WINDOWS),
        learned_from=describe_learning,
        noise_advice=noise_advice(rows),
        reasons=sorted({reason for result in stages.values() for reason in result["ended"]}),
        mismatch=max((row["sampler/mismatch_kl"] for row in rows if row.get("sampler/mismatch_kl")), default=None),
        recipe=mask_recipe_text(recipe.read_text(encoding="utf-8")) if recipe.is_file() else "",
        changes=parse_changes(json.loads(changes.read_text(encoding="utf-8"))) if changes.is_file() else [],
        lines=_lines,
    )
    write_text(run_dir / "report.html", html)
    return run_dir / "report.html"


def _format_label(stage: str, summary: Mapping[str, Any]) -> str:
    """Return the label of an evaluation in the report.

    A policy that was loaded from a folder was trained before, so its first evaluation is not called untrained.
    """
    if stage == "untrained" and "nothing" not in summary.get("policy", "nothing"):
        return "before"
    return STAGE_NAMES.get(stage, stage)


def method_sentence(summary: Mapping[str, Any]) -> str:
    """Describe the method of the run: paper, advantage, objective, rollout and reward, by their recipe names."""
    method: Mapping[str, str] = summary.get("method") or {}
    if not method:
        return ""
    parts = [f"{key} {value}" for key, value in method.items() if value and key != "paper"]
    paper = f" ({method['paper']})" if method.get("paper") else ""
    return f"Method{paper}: {', '.join(parts)}."


def failure_sentences(summary: Mapping[str, Any]) -> list[str]:
    """Describe, by stage, why episodes have no score; empty if all have one."""
    sentences = []
    for name, result in summary["evaluations"].items():
        if result.get("causes"):
            label, count = _format_label(name, summary), result["episodes"] + result["invalid"]
            sentences.append(
                f"{label}: {result['invalid']} of {count} episodes have no score: {format_causes(result['causes'])}."
            )
    failed = summary.get("failed") or {}
    if failed.get("episodes"):
        sentences.append(
            f"reinforcement: {failed['episodes']} episodes have no score: {format_causes(failed['causes'])}."
        )
    return sentences


def _select_stages(stages: Sequence[str]) -> str:
    """Return the names of the stages that the notes on kinds of tasks compare."""
    return f"from {stages[-2]} to {stages[-1]}" if len(stages) > 1 else ""


def ablation_sentence(name: str, ablation: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Describe the effect of an ablation; an effect is claimed only if the intervals support it."""
    share, (low, high) = ablation["after"]["success"], ablation["after"]["interval"]
    if share is None:
        return f"Ablation {name.replace('_', ' ')}: no episode has a score."
    how = name.replace("without_", "without the ").replace("_", " ")
    result = (
        f"The same agent, trained the same way but {how}, solves {100 * share:.1f} % "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
    )
    if high < after["interval"][0]:
        what = name.removeprefix("without_").replace("_", " ") if name.startswith("without_") else "removed component"
        return f"{result}: the difference is due to the {what}."
    return f"{result}, which is not clearly less than with it."


def kind_note(shares: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Describe the change of success on one kind of task over the stages."""
    rates = [result["success"] for _, result in shares]
    if len(rates) < 2 or None in rates[-2:]:
        return ""
    (_, before), (_, after) = shares[-2], shares[-1]
    outcome = compare_rates(before, after).outcome
    if outcome == "better":
        return "learned" if before["success"] > 0 else "never solved before, learned"
    if after["success"] >= 0.95 and before["success"] >= 0.95:
        return "solved before"
    if outcome == "worse":
        return "worse than before"
    if after["success"] == 0:
        return "never solved"
    return "no clear change: the interval of the difference includes 0"


def _bar_rows(summary: Mapping[str, Any], stages: Mapping[str, Any]) -> list[tuple[str, float, tuple[float, float]]]:
    evaluations = [
        *stages.items(),
        *((name.replace("_", " "), each["after"]) for name, each in summary["ablations"].items()),
    ]
    return [
        (name, each["success"], tuple(each["interval"])) for name, each in evaluations if each["success"] is not None
    ]


def _costs(summary: Mapping[str, Any], stages: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return (cost, success fraction) of each evaluation and ablation."""
    evaluations = {**stages, **{name.replace("_", " "): each["after"] for name, each in summary["ablations"].items()}}
    scored = {name: each for name, each in evaluations.items() if each["success"] is not None}
    return {name: [(each.get("cost", 0.0), each["success"])] for name, each in scored.items()}


def _kinds(evaluations: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per kind of task: its rates, its curve and a note."""
    names = sorted({kind for result in evaluations.values() for kind in result["kinds"]})
    entries = []
    for kind in names:
        shares = [(stage, result["kinds"][kind]) for stage, result in evaluations.items() if kind in result["kinds"]]
        series = _series(rows, "reinforcement", f"success/{kind}")
        curve = charts.plot_curves({kind: series}, x_label="reinforcement step", percent=True) if series[0] else ""
        entries.append(
            {"name": kind.replace("_", " "), "rates": dict(shares), "note": kind_note(shares), "curve": curve}
        )
    return entries


def _members(evaluations: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one entry per trained member of `policies`, if several play seats: its seat, and its rates by stage."""
    members: dict[str, dict[str, Any]] = {}
    for stage, result in evaluations.items():
        for name, each in (result.get("members") or {}).items():
            members.setdefault(name, {"name": name, "seat": each["seat"], "rates": {}})["rates"][stage] = each
    return list(members.values())


def _render_curves(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (svg, caption) of every curve with data."""
    return [
        (charts.plot_curves(panel.series, x_label=panel.x_label, percent=panel.is_fraction), panel.caption)
        for panel in select_curves(rows)
    ]


def select_curves(rows: Sequence[Mapping[str, Any]]) -> list[charts.CurvePanel]:
    """Return the curves of a report that have data, the most important ones first.

    Args:
        rows: Rows of `metrics.jsonl`, as `Journal.read` returns them.
    """
    panels = []
    for curve in _CURVES:
        stage = curve["stage"]
        series = {name: _series(rows, stage, key) for name, key in curve["series"].items()}
        series = {name: points for name, points in series.items() if points[0]}
        if any(any(values) for _, values in series.values()):  # skip curves that are always 0
            panels.append(charts.CurvePanel(series, f"{stage} step", curve["is_fraction"], curve["caption"]))
    return panels


def _series(rows: Sequence[Mapping[str, Any]], stage: str, key: str) -> tuple[list[float], list[float]]:
    points = [(row["step"], row[key]) for row in rows if row.get("stage") == stage and row.get(key) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _pairs(run_dir: Path, evaluations: Sequence[str]) -> tuple[str, list[TaskEpisodes]]:
    """Select tasks with episodes before and after: newly solved ones first, of different kinds if possible."""
    paths = {name: run_dir / "trajectories" / f"evaluation-{name}.jsonl" for name in evaluations}
    stored = [name for name in evaluations if paths[name].is_file()]
    if len(stored) < 2:
        return "", []
    before_name = stored[-2]
    before = {t.task_id: t for t in read_trajectories(paths[before_name])}
    after = {t.task_id: t for t in read_trajectories(paths[stored[-1]])}
    pairs = [TaskEpisodes(task, before[task], after[task]) for task in before if task in after]
    pairs.sort(key=lambda pair: (pair.before.solved, not pair.after.solved))
    chosen: list[TaskEpisodes] = []
    for fresh in (True, False):
        for pair in pairs:
            shapes = {_shape(other.task_id) for other in chosen}
            if len(chosen) < _PAIRS and pair not in chosen and (not fresh or _shape(pair.task_id) not in shapes):
                chosen.append(pair)
    return before_name, chosen


def _shape(task_id: str) -> str:
    """Return a task ID without digits, which is the same for tasks that differ only in numbers."""
    return "".join(character for character in task_id if not character.isdigit())


def _lines(trajectory: Trajectory) -> list[tuple[str, str, str]]:
    """Convert a trajectory into the bubbles of a conversation: (role, kind, text)."""
    bubbles: list[tuple[str, str, str]] = []
    for message in trajectory.messages:
        bubbles += _bubbles(message)
    return bubbles


def _bubbles(message: Message) -> list[tuple[str, str, str]]:
    bubbles: list[tuple[str, str, str]] = [(message.role, "said", message.text)] if message.text else []
    bubbles += [(message.role, "call", f"{call.name} {_arguments(call.arguments)}") for call in message.tool_calls]
    bubbles += [(message.role, "unreadable", what) for what in message.malformed]
    return bubbles or [(message.role, "said", "(nothing)")]


def _arguments(text: str) -> str:
    """Format the arguments of a call: the value of a single one, else the JSON text."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return text
    if isinstance(arguments, dict) and len(arguments) == 1:
        return str(next(iter(arguments.values())))
    return text
