"""What was learned, on one page? `report.html`: before and after with intervals, curves, conversations side by side.

The page stands alone: no script, no address, nothing to fetch. It says what the numbers say, also where nothing
was learned.

Easy to get wrong: what a tool or a model wrote is foreign text; all of it is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from whetstone.atomic_write import write_text
from whetstone.causes import listed
from whetstone.chat import Message
from whetstone.errors import RunDirectoryError
from whetstone.evaluation.stage_results import compare_rates, last_evaluation, read_stage_results
from whetstone.recipe.continuing import parse_changes
from whetstone.recipe.variables import mask_recipe_text
from whetstone.reporting import charts
from whetstone.reporting.alarms import find_alarms, stored_alarms
from whetstone.reporting.front import front_chart
from whetstone.reporting.learning import kept_sentence, learned_from, learning_rows, noise_advice
from whetstone.reporting.metrics import Journal
from whetstone.reporting.trajectories import read_trajectories
from whetstone.tool_calls import describe_failing_tools, statistics_of_run
from whetstone.trajectory import Trajectory

STAGE_NAMES = {"untrained": "untrained", "supervised": "after the warm-up", "reinforcement": "after reinforcement"}
_PAIRS = 3
_WINDOWS = 6
"""Rows of the table of what steps learned from."""
_CURVES = (
    (
        "reinforcement",
        {"reward": "reward/mean"},
        False,
        "Reinforcement: mean reward of fresh training episodes. What is optimised; success is what is wanted.",
    ),
    (
        "supervised",
        {"loss": "loss/supervised"},
        False,
        "Warm-up: how surprised the model is by the expert's tokens. Falls.",
    ),
    (
        "reinforcement",
        {"success": "episode/success"},
        True,
        "Reinforcement: success on fresh training tasks, sampled. Rises where something is learned.",
    ),
    (
        "reinforcement",
        {"groups without a difference": "group/zero_variance_fraction"},
        True,
        "Groups in which all did equally well teach nothing. High at the end means little is left to learn.",
    ),
    (
        "reinforcement",
        {"sampled": "cost_per_group/sampled_tokens", "shared by forks": "cost_per_group/reused_tokens"},
        False,
        "Tokens of a group: drawn from the policy, whatever became of them, and those that forks did not draw again.",
    ),
    (
        "reinforcement",
        {"entropy (nats per token)": "policy/entropy"},
        False,
        "How undecided the policy is. A fall to 0 while success stands still is a policy that stopped exploring.",
    ),
    (
        "reinforcement",
        {"turns": "episode/turns", "tool calls": "episode/tool_calls"},
        False,
        "Turns and tool calls of an episode.",
    ),
    (
        "reinforcement",
        {"tokens per second": "throughput/tokens_per_second"},
        False,
        "Sampled tokens per second of the whole step, tools and update included.",
    ),
    (
        "reinforcement",
        {"mean": "policy/staleness_mean", "oldest": "policy/staleness_max"},
        False,
        "How many updates the tokens that were learned from lay back.",
    ),
    (
        "reinforcement",
        {"gradient norm": "update/grad_norm"},
        False,
        "The gradient's norm before it is clipped. Leaps tell of an unstable update.",
    ),
    (
        "reinforcement",
        {"mismatch (k3)": "sampler/mismatch_kl"},
        False,
        "How far sampler and learner disagree on the same tokens. Rounding only: close to 0 all along.",
    ),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One task, before and after."""

    task_id: str
    before: Trajectory
    after: Trajectory


def write_report(run_dir: Path) -> Path:
    """Write `report.html` from what is in the run directory; returns its path.

    Raises:
        RunDirectoryError: There is no finished run in it.
        SaveError: It could not be written.
    """
    path = run_dir / "summary.json"
    if not path.is_file():
        raise RunDirectoryError(f"{run_dir}: no finished run to report on (summary.json is missing)")
    summary = json.loads(path.read_text(encoding="utf-8"))
    rows = Journal(run_dir).read()
    stages = {_called(name, summary): result for name, result in summary["evaluations"].items()}
    recipe, changes = run_dir / "recipe.yaml", run_dir / "changes.json"
    sampled = [row for row in rows if row["stage"] == "reinforcement"]
    tools = statistics_of_run(sampled, run_dir)
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
        compared=_compared(list(stages)),
        ablations=[ablation_sentence(name, told, after) for name, told in summary["ablations"].items()],
        bars=charts.bars(_bar_rows(summary, stages)),
        front=front_chart(_costs(summary, stages)),
        kinds=_kinds(summary["evaluations"], rows),
        curves=_drawn(rows),
        before_name=_called(before_name, summary),
        pairs=pairs,
        tools=tools,
        failing_tools=describe_failing_tools(tools),
        learning=learning_rows(rows, windows=_WINDOWS),
        learned_from=learned_from,
        noise_advice=noise_advice(rows),
        reasons=sorted({reason for result in stages.values() for reason in result["ended"]}),
        mismatch=max((row["sampler/mismatch_kl"] for row in rows if row.get("sampler/mismatch_kl")), default=None),
        recipe=mask_recipe_text(recipe.read_text(encoding="utf-8")) if recipe.is_file() else "",
        changes=parse_changes(json.loads(changes.read_text(encoding="utf-8"))) if changes.is_file() else [],
        lines=_lines,
    )
    write_text(run_dir / "report.html", html)
    return run_dir / "report.html"


def _called(stage: str, summary: Mapping[str, Any]) -> str:
    """An evaluation in words; a policy that comes from a folder was trained before, by somebody."""
    if stage == "untrained" and "nothing" not in summary.get("policy", "nothing"):
        return "before"
    return STAGE_NAMES.get(stage, stage)


def method_sentence(summary: Mapping[str, Any]) -> str:
    """What the run learned by: paper, credit, objective, rollout and reward by the names a recipe has for them."""
    method: Mapping[str, str] = summary.get("method") or {}
    if not method:
        return ""
    parts = [f"{key} {value}" for key, value in method.items() if value and key != "paper"]
    paper = f" ({method['paper']})" if method.get("paper") else ""
    return f"Method{paper}: {', '.join(parts)}."


def failure_sentences(summary: Mapping[str, Any]) -> list[str]:
    """What kept episodes from being scored, stage by stage; nothing where all were."""
    found = []
    for name, result in summary["evaluations"].items():
        if result.get("causes"):
            told, count = _called(name, summary), result["episodes"] + result["invalid"]
            found.append(f"{told}: {result['invalid']} of {count} episodes have no score: {listed(result['causes'])}.")
    failed = summary.get("failed") or {}
    if failed.get("episodes"):
        found.append(f"reinforcement: {failed['episodes']} episodes have no score: {listed(failed['causes'])}.")
    return found


def _compared(stages: Sequence[str]) -> str:
    """Which stages the notes on kinds of tasks compare."""
    return f"from {stages[-2]} to {stages[-1]}" if len(stages) > 1 else ""


def ablation_sentence(name: str, told: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What the ablation shows, claimed only where the intervals support it."""
    share, (low, high) = told["after"]["success"], told["after"]["interval"]
    if share is None:
        return f"Of the ablation {name.replace('_', ' ')} no episode could be scored."
    how = name.replace("without_", "without the ").replace("_", " ")
    said = (
        f"The same agent, trained the same way but {how}, solves {100 * share:.1f} % "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
    )
    if high < after["interval"][0]:
        what = name.removeprefix("without_").replace("_", " ") if name.startswith("without_") else "what was left out"
        return f"{said}: it is the {what} that does it."
    return f"{said}, which is not clearly less than with it."


def kind_note(shares: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """What happened to one kind of task over the stages, in words."""
    rates = [result["success"] for _, result in shares]
    if len(rates) < 2 or None in rates[-2:]:
        return ""
    (_, before), (_, after) = shares[-2], shares[-1]
    outcome = compare_rates(before, after).outcome
    if outcome == "better":
        return "learned" if before["success"] > 0 else "never solved before, learned"
    if after["success"] >= 0.95 and before["success"] >= 0.95:
        return "known before"
    if outcome == "worse":
        return "unlearned"
    if after["success"] == 0:
        return "never solved"
    return "no clear change: the interval of the difference includes 0"


def _bar_rows(summary: Mapping[str, Any], stages: Mapping[str, Any]) -> list[tuple[str, float, tuple[float, float]]]:
    told = [*stages.items(), *((name.replace("_", " "), each["after"]) for name, each in summary["ablations"].items())]
    return [(name, each["success"], tuple(each["interval"])) for name, each in told if each["success"] is not None]


def _costs(summary: Mapping[str, Any], stages: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """(cost, share solved) of each evaluation and ablation."""
    told = {**stages, **{name.replace("_", " "): each["after"] for name, each in summary["ablations"].items()}}
    scored = {name: each for name, each in told.items() if each["success"] is not None}
    return {name: [(each.get("cost", 0.0), each["success"])] for name, each in scored.items()}


def _kinds(evaluations: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry a kind of task: its rates, its curve, and what happened."""
    names = sorted({kind for result in evaluations.values() for kind in result["kinds"]})
    found = []
    for kind in names:
        shares = [(stage, result["kinds"][kind]) for stage, result in evaluations.items() if kind in result["kinds"]]
        series = _series(rows, "reinforcement", f"success/{kind}")
        curve = charts.curves({kind: series}, x_label="reinforcement step", percent=True) if series[0] else ""
        found.append({"name": kind.replace("_", " "), "rates": dict(shares), "note": kind_note(shares), "curve": curve})
    return found


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(svg, caption) of every curve there are numbers for."""
    drawn = []
    for stage, keys, percent, caption in _CURVES:
        series = {name: _series(rows, stage, key) for name, key in keys.items()}
        series = {name: points for name, points in series.items() if points[0]}
        if any(any(values) for _, values in series.values()):  # what is 0 all along has nothing to show
            drawn.append((charts.curves(series, x_label=f"{stage} step", percent=percent), caption))
    return drawn


def _series(rows: Sequence[Mapping[str, Any]], stage: str, key: str) -> tuple[list[float], list[float]]:
    points = [(row["step"], row[key]) for row in rows if row.get("stage") == stage and row.get(key) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _pairs(run_dir: Path, evaluations: Sequence[str]) -> tuple[str, list[Pair]]:
    """The same tasks before and after: those newly solved first, each of another kind where there are enough."""
    paths = {name: run_dir / "trajectories" / f"evaluation-{name}.jsonl" for name in evaluations}
    there = [name for name in evaluations if paths[name].is_file()]
    if len(there) < 2:
        return "", []
    before_name = there[-2]
    before = {t.task_id: t for t in read_trajectories(paths[before_name])}
    after = {t.task_id: t for t in read_trajectories(paths[there[-1]])}
    pairs = [Pair(task, before[task], after[task]) for task in before if task in after]
    pairs.sort(key=lambda pair: (pair.before.solved, not pair.after.solved))
    chosen: list[Pair] = []
    for fresh in (True, False):
        for pair in pairs:
            shapes = {_shape(other.task_id) for other in chosen}
            if len(chosen) < _PAIRS and pair not in chosen and (not fresh or _shape(pair.task_id) not in shapes):
                chosen.append(pair)
    return before_name, chosen


def _shape(task_id: str) -> str:
    """A task id with its digits gone: tasks that differ in numbers alone look alike."""
    return "".join(character for character in task_id if not character.isdigit())


def _lines(trajectory: Trajectory) -> list[tuple[str, str, str]]:
    """(role, kind, text) for each bubble of a conversation."""
    shown: list[tuple[str, str, str]] = []
    for message in trajectory.messages:
        shown += _bubbles(message)
    return shown


def _bubbles(message: Message) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = [(message.role, "said", message.text)] if message.text else []
    found += [(message.role, "call", f"{call.name} {_arguments(call.arguments)}") for call in message.tool_calls]
    found += [(message.role, "unreadable", what) for what in message.malformed]
    return found or [(message.role, "said", "(nothing)")]


def _arguments(text: str) -> str:
    """A single argument as itself, several as they stand."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return text
    if isinstance(arguments, dict) and len(arguments) == 1:
        return str(next(iter(arguments.values())))
    return text
