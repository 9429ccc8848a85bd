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
from whetstone.cli.effects import allow_effects_option, ask_once, permitting
from whetstone.errors import RecipeError, did_you_mean
from whetstone.plain_json import to_json
from whetstone.reporting import Progress
from whetstone.reporting.comparison import table_lines, verdict_of, write_comparison
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
    help=f"What reinforcement may spend: {', '.join(UNITS)}; more than one may be given.",
)
@click.option("--output-dir", type=click.Path(path_type=Path), default=Path("comparisons"), show_default=True,
              help="Where runs are kept and the page goes; runs that are there are not made again.")  # fmt: skip
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare_command(
    recipes: tuple[str, ...], seeds: int, budget: tuple[str, ...], output_dir: Path, allow_effects: bool, as_json: bool
) -> None:
    """Compare RECIPEs: same tasks, same budget, several seeds; a table, learning curves, paired tests, one HTML page.

    A key may be given several values, `advantage=group_relative,gigpo`: each is a contender. What was run before is
    taken as it is, so that adding a contender runs one contender.
    """
    named = [given for given in recipes if not _KEY.match(given)]
    overrides = [given for given in recipes if _KEY.match(given)]
    if not named:
        raise RecipeError("name a recipe to compare; `whetstone recipes` lists those there are")
    limits = _limits(budget)
    contenders = analysis.contenders_of(named, permitting(tuple(overrides), allow_effects), budget=limits)
    analysis.check_contenders(contenders)
    first = min(contender.resolved.recipe.seed for contender in contenders)
    found = analysis.compare(
        contenders,
        seeds=range(first, first + seeds),
        folder=output_dir,
        budget=limits,
        progress=Progress(quiet=as_json),
        ask=ask_once(),
    )
    told = found.to_json()
    told["sentence"] = verdict_of(told)
    unit = next(iter(limits), "sampled_tokens")
    curves = {name: [analysis.learning_curve(run.folder, unit) for run in runs] for name, runs in found.runs.items()}
    page = output_dir / "comparison.html"
    write_comparison(page, told, curves, {c.name: c.resolved.dump() for c in contenders}, unit=unit)
    write_text(output_dir / "comparison.json", to_json(told, indent=1) + "\n")
    if as_json:
        click.echo(to_json(told))
        return
    for line in table_lines(told):
        click.echo(line)
    for line in _budget_lines(told):
        click.echo(line)
    reused = sum(row["reused"] for row in told["contenders"])
    click.secho(f"{reused} of {sum(len(row['seeds']) for row in told['contenders'])} runs were there; {page}", dim=True)


def _budget_lines(told: Mapping[str, Any]) -> list[str]:
    """Where the budget did not decide, or could not be kept."""
    found = []
    for row in told["contenders"]:
        shares = {unit: row["spent"][unit] / most for unit, most in told["budget"].items()}
        if shares and max(shares.values()) < 1:
            unit = max(shares, key=lambda unit: shares[unit])
            spent = f"{shares[unit]:.0%} of the budget ({unit}) spent"
            found.append(f"{row['name']}: ended with {spent} (reinforcement.steps, until)")
        elif shares and max(shares.values()) > 1.5:
            unit = max(shares, key=lambda unit: shares[unit])
            found.append(f"{row['name']}: spent {shares[unit]:.1f} times the budget ({unit}): one update takes more")
    return found


def _limits(budget: tuple[str, ...]) -> dict[str, float]:
    limits = {}
    for given in budget:
        unit, equals, most = given.partition("=")
        if unit not in UNITS:
            raise RecipeError(f"--budget {given}: UNIT=MOST{did_you_mean(unit, UNITS)}")
        if not equals:
            raise RecipeError(f"--budget {given}: say how much, such as {unit}=100000")
        try:
            limits[unit] = float(most.replace("_", ""))
        except ValueError:
            raise RecipeError(f'--budget {given}: "{most}" is not a number') from None
        if not 0 < limits[unit] < math.inf:
            raise RecipeError(f"--budget {given}: must be greater than 0")
        if unit != "seconds" and limits[unit] != int(limits[unit]):
            raise RecipeError(f"--budget {given}: {unit} are counted whole")
    return limits
