"""`whetstone rewards`: try whether a reward can be fooled; list those there are."""

from __future__ import annotations

import asyncio
import inspect
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.evaluation.audit
import whetstone.rewards
from whetstone import assembly, training
from whetstone.cli.check_output import show
from whetstone.cli.effects import allow_effects_option, call_tools_option, check_policy, say_refused
from whetstone.errors import RecipeError
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.plain_json import to_json
from whetstone.recipe import Resolved, load_recipe
from whetstone.rewards.protocol import let_go

if TYPE_CHECKING:
    from whetstone.evaluation.audit import Audit

_MOST_TURNS = 60


@click.group()
def rewards() -> None:
    """Try a reward; list rewards."""


@rewards.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def listed(as_json: bool) -> None:
    """Every reward a recipe can name, with what it says of itself."""
    said = {
        name: (inspect.getdoc(part) or "").partition("\n\n")[0].replace("\n", " ")
        for name, part in whetstone.rewards.REWARDS.items()
    }
    if as_json:
        click.echo(to_json(said))
        return
    for name, text in said.items():
        click.secho(f"{name:<16}", bold=True, nl=False)
        click.echo(f" {text}")


@rewards.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--model", "folder", required=True, type=click.Path(path_type=Path), help="The model; the line goes there."
)
@click.option(
    "--tasks", default=100, show_default=True, type=click.IntRange(min=5), help="A fifth is kept to try it on."
)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def train_model(
    recipe: str,
    overrides: tuple[str, ...],
    folder: Path,
    tasks: int,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Fit a reward model on RECIPE's tasks: what its expert does is better, what impostors do is worse.

    Written to the model folder as `reward_head.json`; a recipe uses it with
    `reward: {name: reward_model, path: FOLDER}`.
    """
    resolved = load_recipe(recipe, overrides)
    tried = _audit(resolved, tasks, call_tools=call_tools, allow_effects=allow_effects)

    async def played() -> None:
        async for _ in tried.checks():
            break  # all have played by the first

    asyncio.run(played())
    pairs = tried.pairs()
    if len(pairs) < 5:
        raise RecipeError(
            f"{recipe}: {len(pairs)} tasks have a good and a bad episode; take more --tasks, or one with an expert"
        )
    kept = max(1, len(pairs) // 5)
    model = whetstone.rewards.RewardModel(folder)
    loss = model.fit([pair for of_task in pairs[kept:] for pair in of_task])
    accuracy = model.accuracy([pair for of_task in pairs[:kept] for pair in of_task])
    path = model.save()
    said = {"path": str(path), "tasks": len(pairs) - kept, "loss": loss, "accuracy": accuracy, "tried_on": kept}
    if as_json:
        click.echo(to_json(said))
    else:
        click.echo(f"{path}  puts {accuracy:.1%} of the pairs of {kept} tasks it did not see in their order")


@rewards.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", default=6, show_default=True, type=click.IntRange(min=1), help="How many.")
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(
    recipe: str, overrides: tuple[str, ...], tasks: int, call_tools: bool, allow_effects: bool, as_json: bool
) -> None:
    """Try the reward of RECIPE: whether anybody who does not do the task is paid as if he did.

    An expert plays its tasks, and fifteen impostors: one that fails honestly, one at random, one that says nothing,
    gives up, guesses, calls tools for ever, copies what tools said, answers everything, talks to the judge, says
    garbage or nonsense, makes one move, stops at once, or is cut off before its end. Exits with 1 where the reward can
    be fooled, or is the same for every episode.

    Tools are called for real only if they declare that they read. `--call-tools` calls those that declare nothing,
    `--allow-effects` those that change something. A task whose expert needs another tool is left out.
    """
    resolved = load_recipe(recipe, overrides)
    tried = _audit(resolved, tasks, call_tools=call_tools, allow_effects=allow_effects)
    found = asyncio.run(_checked(tried, as_json))
    bad = [each.name for each in found if each.verdict is CheckStatus.FAIL]
    if as_json:
        said = {
            "recipe": resolved.name,
            "sound": not bad if tried.tried else None,
            "players": tried.table(),
            "checks": [asdict(each) for each in found],
        }
        click.echo(to_json(said))
    else:
        _show(tried)
        click.echo(_verdict(tried, resolved.name, bad))
    sys.exit(1 if bad or not tried.tried else 0)


def _audit(resolved: Resolved, tasks: int, *, call_tools: bool, allow_effects: bool) -> Audit:
    """Return the audit of a recipe's reward; report the tools that it does not call.

    Raises:
        WhetstoneError: As `assemble`; or the environment is not played.
    """
    effects = training.tool_effects(resolved)
    calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
    say_refused(calls, effects)
    settings = resolved.recipe.environment
    if settings.name in calls.refused(effects):
        raise RecipeError(f"nothing is audited: the environment {settings.name} is not played")
    source, make, reward = assembly.judged_parts(resolved, calls)
    turns = min(_MOST_TURNS, settings.max_turns)
    return whetstone.evaluation.audit.Audit(make, source, reward, tasks=tasks, max_turns=turns)


def _verdict(tried: Audit, name: str, bad: list[str]) -> str:
    """Return the last line of an audit.

    Args:
        bad: The names of the checks that failed.
    """
    if not tried.tried:
        return "undecided: no task was played"
    if tried.constant is not None:
        constant = f"the reward of {name} is constant: {tried.constant:.3g} in all {len(tried.tried)} episodes"
        others = [check for check in bad if check != whetstone.evaluation.audit.REWARD_VARIES]
        return f"{constant}; it also fails: {', '.join(others)}" if others else constant
    return f"can be fooled: {', '.join(bad)}" if bad else f"the reward of {name} was not fooled"


async def _checked(tried: Audit, quiet: bool) -> list[Check]:
    found = []
    async for each in tried.checks():
        found.append(each)
        if not quiet:
            show(each)
    await let_go(tried.reward)
    return found


def _show(tried: Audit) -> None:
    click.echo(f"\n{'player':<20} {'solved':>8} {'reward if solved':>17} {'reward if not solved':>21} {'unscored':>9}")
    for row in tried.table():
        paid = ["" if row[key] is None else f"{row[key]:.3g}" for key in ("score_deserved", "score_undeserved")]
        click.echo(f"{row['player']:<20} {row['deserved']:>8.0%} {paid[0]:>17} {paid[1]:>21} {row['invalid']:>9.0%}")
