"""`whetstone tasks`: show tasks; score the tasks that a run was trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import whetstone.environments
import whetstone.tasks
from whetstone import record
from whetstone.analysis.task_scores import task_scores
from whetstone.atomic_write import write_text
from whetstone.errors import RecipeError
from whetstone.plugins import find_part, validate_options
from whetstone.recipe import load_recipe, yaml_value
from whetstone.strict_json import to_json
from whetstone.tasks.protocol import OPTIONAL
from whetstone.tasks.task_dates import DateRange, select_dated_tasks

_SHOWN = 20


@click.group("tasks")
def tasks_command() -> None:
    """Show tasks; score the tasks that a run was trained on."""


@tasks_command.command("show")
@click.argument("source")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-n", "count", type=click.IntRange(min=1), default=3, show_default=True, help="Number of tasks.")
@click.option("--held-out", is_flag=True, help="Held-out tasks instead of training tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, including private data.")
def show_tasks_command(source: str, options: tuple[str, ...], count: int, held_out: bool, as_json: bool) -> None:
    """Show tasks of SOURCE, a task source by name, or `package.module:name`; options as KEY=VALUE."""
    if source.endswith((".yaml", ".yml")):
        named = load_recipe(source).recipe.tasks
        like = " ".join([named.source, *(f"{key}={value}" for key, value in named.options.items())])
        raise RecipeError(f"{source}: is a recipe; its tasks are shown by `whetstone tasks show {like}`")
    part = find_part("task source", source, list_sources(), optional=OPTIONAL)
    values = read_options(options)
    dates = DateRange(*(values.pop(key, None) for key in ("date", "since", "until", "held_out_since", "cutoff")))
    task_source = part(**validate_options(part, values))
    if dates.column is not None:
        click.echo(select_dated_tasks(task_source, dates), err=True)
    selected = list(task_source.held_out(count)) if held_out else [task_source.task(index) for index in range(count)]
    for task in selected:
        if as_json:
            row = {"id": task.id, "prompt": task.prompt, "tags": dict(task.tags), "private": dict(task.private)}
            click.echo(to_json(row, other=str))
            continue
        click.secho(task.id, bold=True, nl=False)
        click.echo(f"  {', '.join(f'{name}: {value}' for name, value in task.tags.items())}")
        click.echo(f"  {task.prompt or '(the environment provides the prompt)'}")
        for name, value in task.private.items():
            written = json.dumps(value, ensure_ascii=False, default=str)
            click.secho(f"    {name}: {written if len(written) <= 100 else written[:99] + '…'}", dim=True)


@tasks_command.command("score")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--windows", type=click.IntRange(min=2), help="Points of a curve  [number of passes over the tasks].")
@click.option(
    "--fraction",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1 / 6,
    show_default="a sixth",
    help="Fraction of the tasks to select, the best first.",
)
@click.option("--min-score", type=float, help="Select all tasks with at least this score instead (0.6 in the paper).")
@click.option("--output-file", type=click.Path(path_type=Path, dir_okay=False), help="File for the selected tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score_tasks_command(
    run_dir: Path,
    windows: int | None,
    fraction: float,
    min_score: float | None,
    output_file: Path | None,
    as_json: bool,
) -> None:
    """Score the tasks of RUN_DIR by the alignment of their success curve with the mean curve; select the best.

    The output file is read by `curriculum: {name: task_subset, path: FILE}`; `with=limr` sets everything else.
    """
    record.run_recipe(run_dir)  # raises if it is not a run
    scores = task_scores(run_dir, windows=windows)
    best = scores.select_best(share=fraction, at_least=min_score)
    if not best:
        raise RecipeError(
            f"--min-score {min_score:g}: no task has this score; the best has {scores.tasks[0].score:.3g}"
        )
    if output_file is not None:
        write_text(output_file, json.dumps(best))
    if as_json:
        rows = [asdict(task) for task in scores.tasks]
        click.echo(to_json({"chosen": best, "dropped": scores.dropped, "tasks": rows}))
        return
    for task in scores.tasks[:_SHOWN]:
        click.echo(f"{task.score:7.3f}  {task.index:>6}  {task.id}  {' '.join(f'{r:.2f}' for r in task.curve)}")
    more = len(scores.tasks) - _SHOWN
    click.echo(f"{f'… and {more} more; ' if more > 0 else ''}{len(best)} of {len(scores.tasks)} tasks selected")
    if scores.dropped:
        click.echo(f"{scores.dropped} tasks were sampled too rarely for a score")
    if output_file is not None:
        click.echo(f"wrote {output_file}; whetstone train RECIPE with=limr curriculum.path={output_file}")


def list_sources() -> dict[str, Any]:
    """Return all built-in task sources by name."""
    return {**whetstone.tasks.SOURCES, **whetstone.environments.TASKS_OF_WORLDS}


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE options, with values in YAML.

    Raises:
        RecipeError: If an option does not have this form.
    """
    read = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise RecipeError(f"{option}: an option must have the form KEY=VALUE")
        read[key] = yaml_value(value, option)
    return read
