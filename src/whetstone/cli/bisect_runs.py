"""`whetstone bisect`: the first difference of two runs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whetstone import analysis
from whetstone.cli import shell_completion
from whetstone.strict_json import to_json
from whetstone.tools.sanitize_text import sanitize_text

if TYPE_CHECKING:
    from whetstone.analysis import FirstDifference

_INPUTS_SHOWN = 12


@click.command("bisect")
@click.argument("run_a", type=click.Path(path_type=Path, file_okay=False), shell_complete=shell_completion.run_folders)
@click.argument("run_b", type=click.Path(path_type=Path, file_okay=False), shell_complete=shell_completion.run_folders)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bisect_command(run_a: Path, run_b: Path, as_json: bool) -> None:
    """Find the first difference of RUN_A and RUN_B, in causal order.

    Inputs first: recipe keys, files, environment. Then, step by step: task, context, log-prob, sampled token,
    observation, reward, advantage, update, weight. The exit code is 1 if the runs differ, 0 if they do not.
    """
    comparison = analysis.compare_runs(run_a, run_b)
    if as_json:
        click.echo(to_json(asdict(comparison)))
    else:
        for name, a, b in comparison.inputs[:_INPUTS_SHOWN]:
            click.echo(sanitize_text(f"input  {name}: {a} | {b}"))
        if len(comparison.inputs) > _INPUTS_SHOWN:
            click.echo(f"input  {len(comparison.inputs) - _INPUTS_SHOWN} more (--json lists them)")
        _show(comparison.first)
        if comparison.first is None:
            through = ", ".join(f"step {min(counts)} of {stage}" for stage, counts in comparison.steps.items())
            click.echo(f"no difference through {through or 'the start: no step is on record'}")
        for stage, (steps_a, steps_b) in comparison.steps.items():
            if steps_a != steps_b:
                click.echo(f"{stage}: {steps_a} steps in A, {steps_b} in B; {min(steps_a, steps_b)} are compared")
    if comparison.first is not None or comparison.inputs:
        sys.exit(1)


def _show(first: FirstDifference | None) -> None:
    if first is None:
        return
    where = [first.stage, f"step {first.step}"] if first.step else [first.stage]
    where += [] if first.group is None else [f"group {first.group}"]
    where += [f"task {first.task}"] if first.task else []
    where += [f"trajectory {first.trajectory}"] if first.trajectory else []
    where += [] if first.turn is None else [f"turn {first.turn}"]
    where += [] if first.token is None else [f"token {first.token}"]
    click.secho(sanitize_text(f"first difference: {first.level}{f' {first.name}' if first.name else ''}"), bold=True)
    click.echo(sanitize_text(f"  {', '.join(where)}"))
    if first.text:
        click.echo(sanitize_text(f"  after {first.text!r}"))
    click.echo(sanitize_text(f"  A: {first.a}"))
    click.echo(sanitize_text(f"  B: {first.b}"))
