"""`whetstone train`: all stages of a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whetstone import record, training
from whetstone.cli import completing
from whetstone.cli.effects import allow_effects_option, ask_once, permitting
from whetstone.errors import OutputError
from whetstone.plain_json import to_json
from whetstone.recipe import load_recipe
from whetstone.reporting import Dashboard, Progress, shows_a_dashboard

if TYPE_CHECKING:
    from whetstone.training import RunSummary


@click.command()
@click.argument("recipe", shell_complete=completing.recipes)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completing.overrides)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=completing.run_folders,
    help="Where the run is kept [runs/RECIPE].",
)
@click.option("--resume", is_flag=True, help="Continue the run in the run directory from its last checkpoint.")
@allow_effects_option
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Resume although the run's own code (rewards, tools, estimators) was edited; recorded in environment.json.",
)
@click.option("--plain", "plain_lines", is_flag=True, help="Print lines, also where the terminal could show a panel.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON and no progress.")
def train(
    recipe: str,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    resume: bool,
    allow_effects: bool,
    accept_changes: bool,
    plain_lines: bool,
    as_json: bool,
) -> None:
    """Train RECIPE, a built-in name (`whetstone recipes` lists them) or a YAML file; or continue a run.

    `whetstone train RUN --resume` continues the run in a directory with its own recipe. Keys that follow apply from its
    last checkpoint on: `--resume reinforcement.steps=200 reinforcement.learning_rate=1e-5`.

    A method of a paper is laid over it by its name (`with=dapo,gigpo`), and any key can be set by its dotted path.
    In a terminal a panel shows how it goes; elsewhere, with --plain and where NO_COLOR is set, lines do.

    SIGTERM, SIGHUP (a closed terminal) and Ctrl-C save the run and stop it (exit code 143, 129 and 130). A second
    signal stops it immediately, and the run can still be resumed.
    """
    if plain_lines:
        click.get_current_context().color = False
    own, overrides = record.is_run(Path(recipe)), permitting(overrides, allow_effects)
    resolved = None if own else load_recipe(recipe, overrides)
    name = Path(recipe).name if resolved is None else resolved.name
    if shows_a_dashboard(plain_lines=plain_lines) and not as_json:
        progress: Progress = Dashboard(str(run_dir or name))
    else:
        progress = Progress(quiet=as_json, plain_lines=plain_lines or "NO_COLOR" in os.environ)
    summary = training.train(
        resolved or recipe,
        run_dir,
        resume=resume,
        changes=overrides if own else (),
        progress=progress,
        ask=ask_once(),
        accept_changes=accept_changes,
    )
    try:
        _show(summary, as_json)
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}; {summary.run_dir} is complete") from None


def _show(summary: RunSummary, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(summary.written))
        return
    for name, evaluation in summary.evaluations.items():
        click.echo(f"{name:<14} {training.headline(evaluation.to_json())}")
    for name, ablation in summary.ablations.items():
        click.echo(f"{name:<14} {training.headline(ablation.after.to_json())}")
    for entry in summary.written.get("overlap", []):
        click.secho(entry["sentence"], fg="yellow")
    minutes, report = sum(summary.seconds.values()) / 60, summary.run_dir / "report.html"
    for stage in summary.stages:
        click.secho(stage.sentence, fg={"better": "green", "worse": "red"}.get(stage.outcome))
    click.echo(f"{minutes:.1f} minutes of training   {report}")
