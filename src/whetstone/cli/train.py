"""`whetstone train`: train all stages of a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whetstone import record, training
from whetstone.cli import shell_completion
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.errors import OutputError
from whetstone.recipe import load_recipe
from whetstone.reporting import Dashboard, Progress, shows_a_dashboard
from whetstone.strict_json import to_json

if TYPE_CHECKING:
    from whetstone.training import RunSummary


@click.command("train")
@click.argument("recipe", shell_complete=shell_completion.complete_recipes)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=shell_completion.complete_overrides)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=shell_completion.run_folders,
    help="Directory of this run; a new run needs a new one [runs/RECIPE].",
)
@click.option("--resume", is_flag=True, help="Continue the run in the run directory from its last checkpoint.")
@allow_effects_option
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Resume although code (rewards, tools) or a file with tasks or data was edited; the run records it.",
)
@click.option("--plain", "plain_lines", is_flag=True, help="Print lines instead of a panel.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON and no progress.")
def train_command(
    recipe: str,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    resume: bool,
    allow_effects: bool,
    accept_changes: bool,
    plain_lines: bool,
    as_json: bool,
) -> None:
    """Train RECIPE, a built-in name (`whetstone recipes` lists them) or a YAML file; or resume a run.

    `whetstone train RUN --resume` resumes the run in a directory with its own recipe. Keys that follow apply from its
    last checkpoint on: `--resume reinforcement.steps=200 reinforcement.learning_rate=1e-5`.

    The method of a paper is applied by name (`with=dapo,gigpo`), and any key can be set by its dotted path. In a
    terminal, a panel shows the progress. Without a terminal, with --plain or with NO_COLOR, lines are printed.

    SIGTERM, SIGHUP (a closed terminal) and Ctrl-C save the run and stop it (exit code 143, 129 and 130). A second
    signal stops it immediately, and the run can still be resumed.
    """
    if plain_lines:
        click.get_current_context().color = False
    own, overrides = record.is_run(Path(recipe)), add_permissions(overrides, allow_effects)
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
        _show(summary, as_json, progress)
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}; {summary.run_dir} is complete") from None


def _show(summary: RunSummary, as_json: bool, progress: Progress) -> None:
    """Print the results of a run.

    Lines that the progress already printed to the same terminal or file are left out.
    """
    if as_json:
        click.echo(to_json(summary.written))
        return
    results = dict(summary.evaluations) | {name: each.after for name, each in summary.ablations.items()}
    for name, evaluation in results.items():
        line = training.run_headline(evaluation.to_json())
        if not progress.is_on_output(f"{name}: {line}"):
            click.echo(f"{name:<14} {line}")
    colors = {"better": "green", "worse": "red"}
    sentences: list[tuple[str, str | None]] = [(e["sentence"], "yellow") for e in summary.written.get("overlap", [])]
    sentences += [(stage.sentence, colors.get(stage.outcome)) for stage in summary.stages]
    for sentence, color in sentences:
        if not progress.is_on_output(sentence):
            click.secho(sentence, fg=color)
    minutes, report = sum(summary.seconds.values()) / 60, summary.run_dir / "report.html"
    click.echo(f"{minutes:.1f} minutes of training   {report}")
