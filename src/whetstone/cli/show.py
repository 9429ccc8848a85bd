"""`whetstone show`: a run on a page of text, or one of its trajectories as a conversation."""

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
from whetstone.causes import listed
from whetstone.cli.completing import run_folders, trajectory_ids
from whetstone.cli.shown import judgment_of, show_judgment, shown
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.plain_json import to_json
from whetstone.reporting.dashboard import sparkline
from whetstone.reporting.metric_names import described
from whetstone.shortening import shortened
from whetstone.tools.plain_text import plain
from whetstone.trajectory import Trajectory
from whetstone.trajectory_json import encoded_trajectory

_CURVES = (
    "reward/mean", "episode/success", "loss/total", "policy/entropy", "policy/reference_kl",
    "policy/update_kl", "episode/turns", "episode/tool_calls",
    "group/zero_variance_fraction", "episode/invalid_fraction", "update/grad_norm", "sampler/mismatch_kl",
    "throughput/tokens_per_second",
)  # fmt: skip
_WIDTH = 40
_LONGEST = 2000
"""Letters of one message."""
_IDS = 4


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False), shell_complete=run_folders)
@click.option("--trajectory", "id", metavar="ID", shell_complete=trajectory_ids, help="Show this one, turn by turn.")
@click.option("--credit/--no-credit", default=True, help="Compute each turn's advantage again.  [default: yes]")
@click.option("--full", is_flag=True, help="Show long messages whole.")
@click.option(
    "--appendix",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write recipe, seeds, versions, curves (CSV) and intervals of the run, or of a comparison, into a new folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run_dir: Path, id: str | None, credit: bool, full: bool, appendix: Path | None, as_json: bool) -> None:
    """Show RUN_DIR, over or still going on: what it is, how it goes, what it came to. Or one trajectory of it.

    With --appendix RUN_DIR can also be the output directory of `whetstone compare`.
    """
    if appendix is not None:
        if id is not None:
            raise RecipeError("--trajectory: has no effect with --appendix")
        files = [str(path) for path in analysis.write_appendix(run_dir, appendix)]
        click.echo(to_json({"files": files}) if as_json else "\n".join(files))
        return
    run = analysis.ShownRun(run_dir)
    if id is None:
        _show_run(run, as_json)
        return
    folder, trajectory = run.trajectory(id)
    credited, unknown = _credit(folder, trajectory) if credit else ({}, "")
    if as_json:
        told = {"trajectory": _decoded(trajectory), "credit": credited}
        click.echo(to_json(told))
        return
    _show_trajectory(trajectory, credited, unknown, full)


def _show_run(run: analysis.ShownRun, as_json: bool) -> None:
    recipe = run.recipe.recipe
    if as_json:
        report: dict[str, Any] = {
            "recipe": run.recipe.stored(),
            "evaluations": dict(run.evaluations),
            "summary": run.summary,
        }
        report |= judgment_of(run.summary, run.rows)
        report["changes"] = [change.to_json() for change in record.read_changes(run.run_dir)]
        click.echo(to_json({**report, "last": run.rows[-1] if run.rows else None, "steps": len(run.rows)}))
        return
    state = "over" if run.summary is not None else "not over: it goes on, or was stopped"
    click.secho(plain(f"{run.run_dir}  {recipe.title}"), bold=True)
    reward = f", reward {recipe.reward.name}"
    click.echo(plain(f"tasks {recipe.tasks.source}, environment {recipe.environment.name}{reward}; {state}"))
    for change in record.read_changes(run.run_dir):
        click.echo(plain(f"the recipe changed {change}"))
    if run.summary is not None and run.summary.get("failed", {}).get("episodes"):
        failed = run.summary["failed"]
        click.echo(plain(f"{failed['episodes']} episodes have no score: {listed(failed['causes'])}"))
    for name, evaluation in run.evaluations:
        click.echo(plain(f"  {name:<22} {training.headline(evaluation)}"))
    show_judgment(run.summary, run.rows)
    for stage, rows in run.stages():
        planned = getattr(recipe, stage, None)
        of = f" of {planned.steps}" if planned is not None else ""
        click.secho(f"\n{stage}, {len(rows)}{of} steps, {_minutes(rows)}", bold=True)
        for name in _CURVES:
            values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
            if any(values):
                about = described(name)
                unit = f" {about.unit}" if about is not None else ""
                said = f"{values[0]:.4g} → {values[-1]:.4g}{unit}"
                click.echo(f"  {name:<30} {sparkline(values, _WIDTH):<{_WIDTH}} {said}")
    if ids := run.last_ids(_IDS):
        click.secho("\ntrajectories of its last file", bold=True)
        for each in ids:
            click.echo(plain(f"  whetstone show {run.run_dir} --trajectory '{each}'"))


def _minutes(rows: Sequence[Mapping[str, Any]]) -> str:
    seconds = rows[-1].get("time/elapsed_seconds") or math.nan
    return f"{seconds / 60:.1f} minutes of training so far" if math.isfinite(seconds) else "time unknown"


def _credit(folder: Path, trajectory: Trajectory) -> tuple[dict[str, Any], str]:
    """(what credit came to, by turn and in whole; why it is not known)"""
    try:
        found = asyncio.run(analysis.Explainer(folder).explain(trajectory.id, weights=False))
    except WhetstoneError as error:
        return {}, str(error)
    turns = {
        turn: fmean(each.advantage for each in found.tokens if each.turn == turn)
        for turn in sorted({each.turn for each in found.tokens})
    }
    return {"update": found.update, "turns": turns, "chain": [asdict(link) for link in found.chain]}, ""


def _show_trajectory(trajectory: Trajectory, credit: Mapping[str, Any], unknown: str, full: bool) -> None:
    click.secho(plain(trajectory.id), bold=True)
    parent = f", forked from {trajectory.parent} at turn {trajectory.fork_turn}" if trajectory.parent else ""
    click.echo(plain(f"task {trajectory.task_id}, {trajectory.provenance}{parent}"))
    for message in trajectory.opening:
        click.echo(_within(shown(message), full))
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
        click.secho(plain(f"turn {number}  {', '.join(notes)}"), fg="cyan")
        click.echo(_within(shown(turn.message), full))
        for message in turn.observation:
            click.echo(_within(shown(message), full))
    error = f" ({trajectory.error})" if trajectory.error else ""
    said = "no score" if score is None else f"reward {score.value:g}"
    parts = "".join(f", {name} {value:g}" for name, value in score.parts.items()) if score is not None else ""
    click.secho(plain(f"ended by {trajectory.ended}{error}: {said}{parts}"), bold=True)
    for each in score.judgements if score is not None else ():
        said = ", ".join(f"{name} {value}" for name, value in each.said.items())
        click.echo(_within(plain(f"judged: {each.question}\n  {said}"), full))
    if credit:
        baseline = next((link for link in credit["chain"] if link["what"] == "baseline"), None)
        compared = f", compared with {baseline['value']:.4g}: {baseline['said']}" if baseline is not None else ""
        click.echo(plain(f"learned from by update {credit['update']}{compared}"))
    elif unknown:
        click.echo(plain(f"no credit: {unknown}"))


def _within(text: str, full: bool) -> str:
    return text if full else shortened(text, _LONGEST)[0]


def _decoded(trajectory: Trajectory) -> Any:
    return orjson.loads(encoded_trajectory(trajectory))
