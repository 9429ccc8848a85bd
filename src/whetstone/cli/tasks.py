"""`whetstone tasks`: look at tasks, and try whether an environment keeps its promises."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from whetstone.cli.check_output import show as show_check
from whetstone.contracts import fulfils
from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS, USERS, is_game, played
from whetstone.environments.catalogue import REWARD_OF
from whetstone.environments.protocol import Checks
from whetstone.errors import RecipeError, WhetstoneError, did_you_mean
from whetstone.evaluation.checks import Check, Verdict
from whetstone.evaluation.contract import Contract, check_contract
from whetstone.plain_json import to_json
from whetstone.plugins import checked_options, find_part, has_all_of, made_of, named_part, options_of
from whetstone.recipe import load_recipe, yaml_value
from whetstone.rewards import REWARDS, make_reward
from whetstone.tasks import SOURCES, Source
from whetstone.tools import TOOLS

_SOURCES = {**SOURCES, **TASKS_OF_WORLDS}


@click.group()
def tasks() -> None:
    """Look at tasks; try an environment."""


@tasks.command()
@click.argument("source")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-n", "count", type=click.IntRange(min=1), default=3, show_default=True, help="How many.")
@click.option("--held-out", is_flag=True, help="Held-out tasks instead of training tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, private data among it.")
def show(source: str, options: tuple[str, ...], count: int, held_out: bool, as_json: bool) -> None:
    """Show tasks of SOURCE, a task source by its name, or `package.module:name`; options as KEY=VALUE."""
    if source.endswith((".yaml", ".yml")):
        named = load_recipe(source).recipe.tasks
        like = " ".join([named.source, *(f"{key}={value}" for key, value in named.options.items())])
        raise RecipeError(f"{source}: is a recipe; its tasks are shown by `whetstone tasks show {like}`")
    part = find_part("task source", source, _SOURCES)
    made = part(**checked_options(part, read_options(options)))
    shown = list(made.held_out(count)) if held_out else [made.task(index) for index in range(count)]
    for task in shown:
        if as_json:
            row = {"id": task.id, "prompt": task.prompt, "tags": dict(task.tags), "private": dict(task.private)}
            click.echo(to_json(row, other=str))
            continue
        click.secho(task.id, bold=True, nl=False)
        click.echo(f"  {', '.join(f'{name}: {value}' for name, value in task.tags.items())}")
        click.echo(f"  {task.prompt or '(the environment makes the opening)'}")
        for name, value in task.private.items():
            written = json.dumps(value, ensure_ascii=False, default=str)
            click.secho(f"    {name}: {written if len(written) <= 100 else written[:99] + '…'}", dim=True)


@tasks.command()
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", "source", help="Where its tasks come from; the source of the same name unless said.")
@click.option("--reward", help="What judges; the environment's own verdict unless said.")
@click.option(
    "--episodes", type=click.IntRange(min=1), default=20, show_default=True, help="Of the expert, and of chance."
)
@click.option("--max-turns", type=click.IntRange(min=1), default=60, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    environment: str,
    options: tuple[str, ...],
    source: str | None,
    reward: str | None,
    episodes: int,
    max_turns: int,
    as_json: bool,
) -> None:
    """Try ENVIRONMENT: expert and random scores, reward range, whether nonsense or stopping at once ever wins, the
    same again by seed and wherever shared chance stands, in another process and beside others, snapshots, endings,
    strange actions, speed. Exits with 1 where a promise is broken.

    Options go to the environment, to its tasks, or to both, wherever there is one of that name.
    """
    contract = contract_of(
        environment, read_options(options), source=source, reward=reward, episodes=episodes, max_turns=max_turns
    )
    found = asyncio.run(_checked(contract, as_json))
    bad = [each.name for each in found if each.verdict is Verdict.BAD]
    if as_json:
        click.echo(to_json({"environment": environment, "kept": not bad, "found": contract.found,
                               "checks": [asdict(each) for each in found]}))  # fmt: skip
    else:
        click.echo(f"broken: {', '.join(bad)}" if bad else f"{environment} keeps its promises")
    sys.exit(1 if bad else 0)


async def _checked(contract: Contract, quiet: bool) -> list[Check]:
    found = []
    async for each in check_contract(contract):
        found.append(each)
        if not quiet:
            show_check(each)
    return found


def contract_of(
    environment: str,
    options: Mapping[str, Any],
    *,
    source: str | None = None,
    reward: str | None = None,
    episodes: int = 20,
    max_turns: int = 60,
) -> Contract:
    """What is tried of an environment by its name.

    Raises:
        RecipeError: A name or option is wrong; the message has the nearest right one.
    """
    part = find_part("environment", environment, ENVIRONMENTS)
    part = played(part) if is_game(part) else part
    name = source or environment
    is_source = isinstance(part, type) and issubclass(part, Source)
    if (":" not in name and name not in _SOURCES) or (":" in name and source is None and not is_source):
        said = (
            f'--tasks: no task source "{source}"'
            if source
            else f"say where the tasks of {environment} come from: --tasks"
        )
        raise RecipeError(f"{said}{did_you_mean(name, _SOURCES)}")
    source_part = find_part("task source", name, _SOURCES)
    ours, theirs = options_of(part), options_of(source_part)
    for key in options:
        if key not in ours and key not in theirs:
            raise RecipeError(f"{key}: neither {environment} nor its tasks have such an option"
                              f"{did_you_mean(key, [*ours, *theirs])}")  # fmt: skip
    given = {key: value for key, value in options.items() if key in ours}
    if isinstance(given.get("tools"), list):
        given["tools"] = [named_part("tool", tool, TOOLS) for tool in given["tools"]]
    if "user" in given:
        given["user"] = named_part("user", given["user"], USERS)
    make = functools.partial(_made, environment, checked_options(part, given))
    of_tasks = checked_options(source_part, {key: value for key, value in options.items() if key in theirs})
    judge = make_reward(reward or REWARD_OF.get(environment, "verdict"), REWARDS)
    tried = make()
    if fulfils(tried, Checks):
        tried.check()
    return Contract(
        make=make,
        source=_with_tasks(name, made_of("task source", name, source_part, of_tasks)),
        again=lambda: source_part(**of_tasks),
        reward=judge,
        episodes=episodes,
        max_turns=max_turns,
    )


def _with_tasks(name: str, source: Any) -> Source:
    """The source, which has a task.

    Raises:
        RecipeError: It has no methods for tasks, or no task.
    """
    has_all_of(source, Source, "task source", name)
    try:
        source.task(0)
    except WhetstoneError:
        raise
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RecipeError(f'task source "{name}" has no tasks: the first one raised {said}') from error
    return source  # type: ignore[no-any-return]


def _made(environment: str, options: Mapping[str, Any]) -> Any:
    """By its name, so that another process can make it, too."""
    part = find_part("environment", environment, ENVIRONMENTS)
    return (played(part) if is_game(part) else part)(**options)


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE, each value as YAML reads it.

    Raises:
        RecipeError: One is not of that form.
    """
    read = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise RecipeError(f"an option is KEY=VALUE, got {option}")
        read[key] = yaml_value(value, option)
    return read
