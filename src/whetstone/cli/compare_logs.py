"""`whetstone compare-logs`: compare evaluation logs of Inspect, lm-evaluation-harness and Whetstone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import click

from whetstone import evaluation
from whetstone.errors import RecipeError
from whetstone.strict_json import to_json


@click.command("compare-logs")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare_logs(files: tuple[Path, ...], as_json: bool) -> None:
    """Compare evaluation logs task by task: FILEs of Inspect (.json) or lm-evaluation-harness (samples_….jsonl).

    `whetstone evaluate … --inspect FILE` writes such a log.
    """
    named = {str(file): evaluation.read_task_scores(file) for file in files}
    if len(named) < len(files):
        raise RecipeError("FILE: a log is listed twice; name each file once")
    means = {name: (fmean(tasks.values()), len(tasks)) for name, tasks in named.items()}
    try:
        pairs = evaluation.compare_pairs({name: {0: tasks} for name, tasks in named.items()})
    except ValueError as error:
        raise RecipeError(f"{error}; compare logs of the same tasks, which have the same ids") from None
    if as_json:
        rows = [{"log": name, "success": mean, "tasks": tasks} for name, (mean, tasks) in means.items()]
        click.echo(to_json({"logs": rows, "pairs": [asdict(pair) for pair in pairs]}))
        return
    for name, (mean, tasks) in means.items():
        click.echo(f"{mean:6.1%}  {tasks:>6} tasks  {name}")
    for pair in pairs:
        click.echo(f"{pair.one} − {pair.other}: {pair.difference:+.1%} over {pair.tasks} tasks, p {pair.p_tasks:.3g}")
