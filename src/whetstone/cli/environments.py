"""`whetstone environments`: try whether one keeps its promises, or serve one over HTTP for any client."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

import whetstone.environments
import whetstone.rewards
import whetstone.tasks
import whetstone.tools
from whetstone import assembly, training
from whetstone.cli.check_output import show as show_check
from whetstone.cli.effects import allow_effects_option, ask_once, call_tools_option, check_policy, say_refused
from whetstone.cli.listening import access_log_option, bound_to, start_access_log
from whetstone.cli.tasks import all_sources, read_options
from whetstone.contracts import fulfils
from whetstone.environments.catalogue import REWARD_OF
from whetstone.environments.dependencies import check_needs
from whetstone.environments.protocol import OPTIONAL_OF_USERS, Checks, Needs, optional_protocols
from whetstone.environments.remote.guard import TOKEN
from whetstone.environments.remote.server import Episodes, application
from whetstone.errors import RecipeError, WhetstoneError, did_you_mean
from whetstone.evaluation.checks import Check, CheckStatus
from whetstone.evaluation.contract import Contract, check_contract
from whetstone.network.loopback import LOOPBACK
from whetstone.plain_json import to_json
from whetstone.plugins import checked_options, find_part, has_all_of, made_of, named_part, options_of
from whetstone.recipe.settings import EnvironmentSettings
from whetstone.serving.connections import runner
from whetstone.tasks.protocol import OPTIONAL as SOURCE_OPTIONAL
from whetstone.tools import CallPolicy
from whetstone.tools.protocol import OPTIONAL as TOOL_OPTIONAL
from whetstone.tools.side_effects import checked_effect, describe_effects, describe_remedy
from whetstone.user_code import describe_exception


@click.group()
def environments() -> None:
    """Try an environment; serve one."""


@environments.command()
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", "source", help="Where its tasks come from; the source of the same name unless said.")
@click.option("--reward", help="What judges; the environment's own verdict unless said.")
@click.option(
    "--episodes", type=click.IntRange(min=1), default=20, show_default=True, help="Of the expert, and of chance."
)
@click.option("--max-turns", type=click.IntRange(min=1), default=60, show_default=True)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    environment: str,
    options: tuple[str, ...],
    source: str | None,
    reward: str | None,
    episodes: int,
    max_turns: int,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Try ENVIRONMENT: expert and random scores, reward range, whether nonsense or stopping at once ever wins, the
    same again by seed and wherever shared chance stands, in another process and beside others, snapshots, endings,
    strange actions, speed. Exits with 1 where a promise is broken.

    Options go to the environment, to its tasks, or to both, wherever there is one of that name.

    Tools are called for real only if they declare that they read. `--call-tools` calls those that declare nothing,
    `--allow-effects` those that change something. Their effects are options, too: `effects='{refund: write}'`.
    """
    own_options, settings = _split_effects(environment, options)
    contract = contract_of(
        environment, own_options, source=source, reward=reward, episodes=episodes, max_turns=max_turns
    )
    effects = training.known_effects(contract.make, settings)
    calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
    say_refused(calls, effects)
    if environment in calls.refused(effects):
        raise RecipeError(f"nothing is tried: the environment {environment} is not played")
    calls = replace(calls, effects=dict(settings.effects or {}))
    contract.make = functools.partial(assembly.gated, contract.make, environment, calls)
    found = asyncio.run(_checked(contract, as_json))
    bad = [each.name for each in found if each.verdict is CheckStatus.FAIL]
    if as_json:
        click.echo(to_json({"environment": environment, "kept": not bad, "found": contract.found,
                               "checks": [asdict(each) for each in found]}))  # fmt: skip
    else:
        click.echo(f"broken: {', '.join(bad)}" if bad else f"{environment} keeps its promises")
    sys.exit(1 if bad else 0)


@environments.command()
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", "source", help="Where its tasks come from; the source of the same name unless said.")
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address on which the server listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8100, show_default=True, help="Port; 0 picks a free one."
)
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Maximum concurrent episodes; further ones are refused.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Close an episode after this many seconds without a request.",
)
@allow_effects_option
@access_log_option("-")
def serve(
    environment: str,
    options: tuple[str, ...],
    source: str | None,
    address: str,
    port: int,
    capacity: int,
    idle_seconds: float,
    allow_effects: bool,
    access_log: str,
) -> None:
    """Serve ENVIRONMENT and its tasks over HTTP until stopped. Elsewhere a recipe says
    `environment: {name: remote, url: http://HOST:8100}`, and `tasks: {source: remote, url: …}`.

    Whoever may ask is told the tasks with their answers. So beyond this machine a token is asked for, which both sides
    find in the environment variable WHETSTONE_TOKEN; where it is not set, one is made and shown."""
    own_options, settings = _split_effects(environment, options)
    contract = contract_of(environment, own_options, source=source)
    effects, calls = training.known_effects(contract.make, settings), CallPolicy(effects=dict(settings.effects or {}))
    if refused := calls.refused(effects):
        if not allow_effects and not ask_once()(f"Let clients call {', '.join(refused)} for real?"):
            remedy = describe_remedy(refused, for_check=True)
            raise RecipeError(f"{environment}: not served: {describe_effects(refused)}; {remedy}")
        calls = replace(calls, allowed=True)
    make = functools.partial(assembly.gated, contract.make, environment, calls)
    episodes = Episodes(make, capacity=capacity, idle_seconds=idle_seconds)
    token = os.environ.get(TOKEN, "")
    made = "" if token or address in LOOPBACK else secrets.token_urlsafe(24)
    served = application(environment, episodes, contract.source, token=token or made)
    server = runner(served)
    start_access_log(access_log)
    with bound_to(address, port) as bound:
        click.echo(f"{environment} at http://{address}:{bound.getsockname()[1]}, {capacity} episodes at once")
        if made:
            click.echo(f"who asks needs {TOKEN}={made}")
        server.run(sockets=[bound])


def _split_effects(environment: str, options: Sequence[str]) -> tuple[dict[str, Any], EnvironmentSettings]:
    """Return the options without `effects`, and the settings of the environment with them.

    Raises:
        RecipeError: An option is not of the form KEY=VALUE, or an effect does not exist.
    """
    values = read_options(options)
    declared = values.pop("effects", None)
    for name, effect in declared.items() if isinstance(declared, Mapping) else ():
        checked_effect(effect, f"effects.{name}")
    if declared is not None and not isinstance(declared, Mapping):
        raise RecipeError(f"effects: effects by tool, such as {{refund: write}}, got {declared!r}")
    return values, EnvironmentSettings(name=environment, effects=declared)


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
    part = _find_environment(environment)
    name = source or environment
    is_source = isinstance(part, type) and issubclass(part, whetstone.tasks.Source)
    if (":" not in name and name not in all_sources()) or (":" in name and source is None and not is_source):
        said = (
            f'--tasks: no task source "{source}"'
            if source
            else f"say where the tasks of {environment} come from: --tasks"
        )
        raise RecipeError(f"{said}{did_you_mean(name, all_sources())}")
    source_part = find_part("task source", name, all_sources(), optional=SOURCE_OPTIONAL)
    ours, theirs = options_of(part), options_of(source_part)
    for key in options:
        if key not in ours and key not in theirs:
            raise RecipeError(f"{key}: neither {environment} nor its tasks have such an option"
                              f"{did_you_mean(key, [*ours, *theirs])}")  # fmt: skip
    given = {key: value for key, value in options.items() if key in ours}
    if isinstance(given.get("tools"), list):
        tools = whetstone.tools.TOOLS
        given["tools"] = [named_part("tool", tool, tools, optional=TOOL_OPTIONAL) for tool in given["tools"]]
    if "user" in given:
        given["user"] = named_part("user", given["user"], whetstone.environments.USERS, optional=OPTIONAL_OF_USERS)
    make = functools.partial(_made, environment, checked_options(part, given))
    of_tasks = checked_options(source_part, {key: value for key, value in options.items() if key in theirs})
    judge = whetstone.rewards.make_reward(reward or REWARD_OF.get(environment, "verdict"), whetstone.rewards.REWARDS)
    check_needs(environment, part.needs if fulfils(part, Needs) else ())
    tried = make()
    if fulfils(tried, Checks):
        tried.check()
    return Contract(
        make=make,
        source=_with_tasks(name, made_of("task source", name, source_part, of_tasks, optional=SOURCE_OPTIONAL)),
        again=lambda: source_part(**of_tasks),
        reward=judge,
        episodes=episodes,
        max_turns=max_turns,
    )


def _with_tasks(name: str, source: Any) -> whetstone.tasks.Source:
    """The source, which has a task.

    Raises:
        RecipeError: It has no methods for tasks, or no task.
    """
    has_all_of(source, whetstone.tasks.Source, "task source", name)
    try:
        source.task(0)
    except WhetstoneError:
        raise
    except (Exception, SystemExit) as error:
        said = describe_exception(error).splitlines()[0]
        raise RecipeError(f'task source "{name}" has no tasks: the first one raised {said}') from error
    return source  # type: ignore[no-any-return]


def _made(environment: str, options: Mapping[str, Any]) -> Any:
    """By its name, so that another process can make it, too."""
    return _find_environment(environment)(**options)


def _find_environment(name: str) -> Any:
    """Return an environment class, or a function that creates an environment for a game."""
    part = find_part("environment", name, whetstone.environments.ENVIRONMENTS, optional=optional_protocols)
    return whetstone.environments.played(part) if whetstone.environments.is_game(part) else part
