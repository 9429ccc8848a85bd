"""`whetstone show`: print a summary of a run, or one of its trajectories as a conversation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import orjson

from whetstone import analysis, record, training
from whetstone.cli.format_message import format_message, load_judgment, show_judgment
from whetstone.cli.shell_completion import run_folders, trajectory_ids
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.failure_causes import format_causes
from whetstone.reporting.dashboard import format_sparkline
from whetstone.reporting.metric_names import lookup_metric
from whetstone.strict_json import to_json
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import encode_trajectory
from whetstone.truncate_text import truncate_middle

_CURVES = (
    "reward/mean", "episode/success", "loss/total", "policy/entropy", "policy/reference_kl",
    "policy/update_kl", "episode/turns", "episode/tool_calls",
    "group/zero_variance_fraction", "episode/invalid_fraction", "update/grad_norm", "sampler/mismatch_kl",
    "throughput/tokens_per_second",
)  # fmt: skip
_WIDTH = 40
_LONGEST = 2000
"""Maximum number of characters of a message without `--full`."""
_IDS = 4


@click.command("show")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False), shell_complete=run_folders)
@click.option(
    "--trajectory", "id", metavar="ID", shell_complete=trajectory_ids, help="Show this trajectory, turn by turn."
)
@click.option("--credit/--no-credit", default=True, help="Recompute the advantage of each turn.  [default: yes]")
@click.option("--full", is_flag=True, help="Show long messages in full.")
@click.option(
    "--appendix",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write recipe, seeds, versions, curves (CSV) and intervals of the run, or of a comparison, into a new folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_command(run_dir: Path, id: str | None, credit: bool, full: bool, appendix: Path | None, as_json: bool) -> None:
    """Show RUN_DIR, finished or running: configuration, progress and results. Or show one of its trajectories.

    With --appendix, RUN_DIR can also be the output directory of `whetstone compare`.
    """
    if appendix is not None:
        if id is not None:
            raise RecipeError("--trajectory: has no effect with --appendix")
        files = [str(path) for path in analysis.write_appendix(run_dir, appendix)]
        click.echo(to_json({"files": files}) if as_json else "\n".join(files))
        return
    run = analysis.RunText(run_dir)
    if id is None:
        _show_run(run, as_json)
        return
    folder, trajectory = run.find_trajectory(id)
    credited, unknown = _credit(folder, trajectory) if credit else ({}, "")
    if as_json:
        report = {"trajectory": _decode(trajectory), "credit": credited}
        click.echo(to_json(report))
        return
    _show_trajectory(trajectory, credited, unknown, full)


def _show_run(run: analysis.RunText, as_json: bool) -> None:
    recipe = run.recipe.recipe
    if as_json:
        report: dict[str, Any] = {
            "recipe": run.recipe.to_dict(),
            "evaluations": dict(run.evaluations),
            "summary": run.summary,
        }
        report |= load_judgment(run.summary, run.rows)
        report["changes"] = [change.to_json() for change in record.read_changes(run.run_dir)]
        click.echo(to_json({**report, "last": run.rows[-1] if run.rows else None, "steps": len(run.rows)}))
        return
    state = "finished" if run.summary is not None else "not finished: running or stopped"
    click.secho(sanitize_text(f"{run.run_dir}  {recipe.title}"), bold=True)
    reward = f", reward {recipe.reward.name}"
    click.echo(sanitize_text(f"tasks {recipe.tasks.source}, environment {recipe.environment.name}{reward}; {state}"))
    for change in record.read_changes(run.run_dir):
        click.echo(sanitize_text(f"the recipe changed {change}"))
    if run.summary is not None and run.summary.get("failed", {}).get("episodes"):
        failed = run.summary["failed"]
        click.echo(sanitize_text(f"{failed['episodes']} episodes have no score: {format_causes(failed['causes'])}"))
    for name, evaluation in run.evaluations:
        click.echo(sanitize_text(f"  {name:<22} {training.run_headline(evaluation)}"))
    show_judgment(run.summary, run.rows)
    for stage, rows in run.list_stages():
        planned = getattr(recipe, stage, None)
        of = f" of {planned.steps}" if planned is not None else ""
        click.secho(f"\n{stage}, {len(rows)}{of} steps, {_minutes(rows)}", bold=True)
        for name in _CURVES:
            values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
            if any(values):
                about = lookup_metric(name)
                unit = f" {about.unit}" if about is not None else ""
                trend = f"{values[0]:.4g} → {values[-1]:.4g}{unit}"
                click.echo(f"  {name:<30} {format_sparkline(values, _WIDTH):<{_WIDTH}} {trend}")
    if ids := run.last_ids(_IDS):
        click.secho("\ntrajectories of the last file", bold=True)
        for each in ids:
            click.echo(sanitize_text(f"  whetstone show {run.run_dir} --trajectory '{each}'"))


def _minutes(rows: Sequence[Mapping[str, Any]]) -> str:
    seconds = rows[-1].get("time/elapsed_seconds") or math.nan
    return f"{seconds / 60:.1f} minutes of training so far" if math.isfinite(seconds) else "time unknown"


def _credit(folder: Path, trajectory: Trajectory) -> tuple[dict[str, Any], str]:
    """Recompute the credit of a trajectory.

    Returns:
        (credit by turn and in total, reason if it cannot be computed).
    """
    try:
        explanation = asyncio.run(analysis.Explainer(folder).explain_trajectory(trajectory.id, weights=False))
    except WhetstoneError as error:
        return {}, str(error)
    turns = {
        turn: fmean(each.advantage for each in explanation.tokens if each.turn == turn)
        for turn in sorted({each.turn for each in explanation.tokens})
    }
    return {"update": explanation.update, "turns": turns, "chain": [asdict(link) for link in explanation.chain]}, ""


def _show_trajectory(trajectory: Trajectory, credit: Mapping[str, Any], unknown: str, full: bool) -> None:
    click.secho(sanitize_text(trajectory.id), bold=True)
    parent = f", forked from {trajectory.parent} at turn {trajectory.fork_turn}" if trajectory.parent else ""
    click.echo(sanitize_text(f"task {trajectory.task_id}, {trajectory.provenance}{parent}"))
    for message in trajectory.opening:
        click.echo(_shorten(format_message(message), full))
    score = trajectory.score
    for number, turn in enumerate(trajectory.turns):
        notes = [f"agent {turn.agent}"] if turn.agent else []
        if turn.conversation:
            notes.append(f"conversation {turn.conversation}")
        notes += [f"{len(turn.action.ids)} tokens", f"{turn.generation_seconds:.2f} s"]
        if turn.reward is not None:
            notes.append(f"reward {turn.reward:+.4g}")
        if score is not None and score.turns is not None and number < len(score.turns):
            notes.append(f"process reward {score.turns[number]:+.4g}")
        if number in credit.get("turns", {}):
            notes.append(f"advantage {credit['turns'][number]:+.4g}")
        click.secho(sanitize_text(f"turn {number}  {', '.join(notes)}"), fg="cyan")
        click.echo(_shorten(format_message(turn.message), full))
        for message in turn.observation:
            click.echo(_shorten(format_message(message), full))
    error = f" ({trajectory.error})" if trajectory.error else ""
    line = "no score" if score is None else f"reward {score.value:g}"
    parts = "".join(f", {name} {value:g}" for name, value in score.parts.items()) if score is not None else ""
    click.secho(sanitize_text(f"ended by {trajectory.ended}{error}: {line}{parts}"), bold=True)
    for each in score.judgements if score is not None else ():
        line = ", ".join(f"{name} {value}" for name, value in each.answer.items())
        click.echo(_shorten(sanitize_text(f"judged: {each.question}\n  {line}"), full))
    if credit:
        baseline = next((link for link in credit["chain"] if link["what"] == "baseline"), None)
        compared = f", compared with {baseline['value']:.4g}: {baseline['said']}" if baseline is not None else ""
        click.echo(sanitize_text(f"trained in update {credit['update']}{compared}"))
    elif unknown:
        click.echo(sanitize_text(f"no credit: {unknown}"))


def _shorten(text: str, full: bool) -> str:
    return text if full else truncate_middle(text, _LONGEST)[0]


def _decode(trajectory: Trajectory) -> Any:
    return orjson.loads(encode_trajectory(trajectory))
