"""`whetstone compare`: methods on the same tasks, with the same budget, over several seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from whetstone import analysis
from whetstone.atomic_write import write_text
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.errors import RecipeError, did_you_mean
from whetstone.reporting import Progress
from whetstone.reporting.comparison_page import summarize_verdict, table_lines, write_comparison
from whetstone.strict_json import to_json
from whetstone.training.budget import UNITS

_KEY = re.compile(r"[\w.]+=")


@click.command("compare")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE... [KEY=VALUE[,VALUE]...]")
@click.option(
    "--seeds",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of seeds, starting at the recipe's seed.",
)
@click.option(
    "--budget",
    multiple=True,
    metavar="UNIT=MOST",
    help=f"Budget of reinforcement: {', '.join(UNITS)}; can be repeated.",
)
@click.option("--output-dir", type=click.Path(path_type=Path), default=Path("comparisons"), show_default=True,
              help="Directory of the runs and of the page; existing runs are reused.")  # fmt: skip
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare_command(
    recipes: tuple[str, ...], seeds: int, budget: tuple[str, ...], output_dir: Path, allow_effects: bool, as_json: bool
) -> None:
    """Compare RECIPEs: same tasks, same budget, several seeds; a table, learning curves, paired tests, one HTML page.

    A key can have several values, `advantage=group_relative,gigpo`: each is a contender. Existing runs are reused, so
    that adding a contender runs only that contender.
    """
    named = [argument for argument in recipes if not _KEY.match(argument)]
    overrides = [argument for argument in recipes if _KEY.match(argument)]
    if not named:
        raise RecipeError("RECIPE: missing; `whetstone recipes` lists recipes")
    limits = _limits(budget)
    contenders = analysis.build_contenders(named, add_permissions(tuple(overrides), allow_effects), budget=limits)
    analysis.check_contenders(contenders)
    first = min(contender.resolved.recipe.seed for contender in contenders)
    result = analysis.compare(
        contenders,
        seeds=range(first, first + seeds),
        folder=output_dir,
        budget=limits,
        progress=Progress(quiet=as_json),
        ask=ask_once(),
    )
    report = result.to_json()
    report["sentence"] = summarize_verdict(report)
    unit = next(iter(limits), "sampled_tokens")
    curves = {name: [analysis.learning_curve(run.folder, unit) for run in runs] for name, runs in result.runs.items()}
    page = output_dir / "comparison.html"
    write_comparison(page, report, curves, {c.name: c.resolved.dump() for c in contenders}, unit=unit)
    write_text(output_dir / "comparison.json", to_json(report, indent=1) + "\n")
    if as_json:
        click.echo(to_json(report))
        return
    for line in table_lines(report):
        click.echo(line)
    for line in _budget_lines(report):
        click.echo(line)
    reused = sum(row["reused"] for row in report["contenders"])
    click.secho(
        f"{reused} of {sum(len(row['seeds']) for row in report['contenders'])} runs were reused; {page}", dim=True
    )


def _budget_lines(report: Mapping[str, Any]) -> list[str]:
    """Format one line per contender that did not reach the budget, or exceeded it."""
    lines = []
    for row in report["contenders"]:
        shares = {unit: row["spent"][unit] / most for unit, most in report["budget"].items()}
        if shares and max(shares.values()) < 1:
            unit = max(shares, key=lambda unit: shares[unit])
            spent = f"{shares[unit]:.0%} of the budget ({unit}) spent"
            lines.append(f"{row['name']}: ended with {spent} (reinforcement.steps, until)")
        elif shares and max(shares.values()) > 1.5:
            unit = max(shares, key=lambda unit: shares[unit])
            lines.append(f"{row['name']}: spent {shares[unit]:.1f} times the budget ({unit}): one update takes more")
    return lines


def _limits(budget: tuple[str, ...]) -> dict[str, float]:
    """Parse the options `--budget UNIT=MAXIMUM`.

    Raises:
        RecipeError: If a unit does not exist, or a maximum is not a positive number.
    """
    limits = {}
    for limit in budget:
        unit, equals, most = limit.partition("=")
        if unit not in UNITS:
            raise RecipeError(f'--budget {limit}: no unit named "{unit}"{did_you_mean(unit, UNITS)}')
        if not equals:
            raise RecipeError(f"--budget {limit}: no maximum; write UNIT=MAXIMUM, such as {unit}=100000")
        try:
            limits[unit] = float(most.replace("_", ""))
        except ValueError:
            raise RecipeError(f'--budget {limit}: "{most}" is not a number; write {unit}=100000') from None
        if not 0 < limits[unit] < math.inf:
            raise RecipeError(f"--budget {limit}: must be greater than 0")
        if unit != "seconds" and limits[unit] != int(limits[unit]):
            raise RecipeError(f"--budget {limit}: {unit} must be an integer")
    return limits
