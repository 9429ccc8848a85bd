"""`whetstone environments`: check the contract of an environment, serve one over HTTP, or export one."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import whetstone.environments
import whetstone.rewards
import whetstone.tasks
import whetstone.tools
from whetstone import assembly, training
from whetstone.capabilities import implements_protocol
from whetstone.cli.check_output import print_check as show_check
from whetstone.cli.effects import allow_effects_option, ask_once, call_tools_option, check_policy, report_refused
from whetstone.cli.server_options import access_log_option, bind_socket, start_access_log
from whetstone.cli.tasks import list_sources, read_options
from whetstone.environments.dependencies import check_requirements
from whetstone.environments.exchange.exported_episode import Pays, bind_named_options
from whetstone.environments.exchange.write_export import ExportFormat, write_export
from whetstone.environments.harbor.check_folders import FolderReport, check_folders, count_statuses
from whetstone.environments.protocol import HasRequirements, SelfChecking, optional_protocols
from whetstone.environments.registry import REWARD_OF
from whetstone.environments.remote.auth import TOKEN
from whetstone.environments.remote.environment_server import ServedEpisodes, build_environment_app
from whetstone.errors import RecipeError, WhetstoneError, did_you_mean
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.evaluation.environment_checks import Contract, check_contract
from whetstone.network.host_header import LOOPBACK
from whetstone.plugins import (
    check_interface,
    find_part,
    get_component_options,
    instantiate_component,
    validate_options,
)
from whetstone.recipe.settings import EnvironmentSettings
from whetstone.serving.http_server import build_server
from whetstone.strict_json import to_json
from whetstone.tasks.protocol import OPTIONAL as SOURCE_OPTIONAL
from whetstone.tools import CallPolicy
from whetstone.tools.side_effects import checked_effect, describe_effects, describe_remedy
from whetstone.user_code import describe_exception


@click.group("environments")
def environments_command() -> None:
    """Check an environment; serve or export one."""


@environments_command.command("check")
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", "source", help="Task source [the source of the same name].")
@click.option("--reward", help="Reward [the verdict of the environment].")
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Episodes of the expert, and of random actions.",
)
@click.option("--max-turns", type=click.IntRange(min=1), default=60, show_default=True)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_environment_command(
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
    """Check the contract of ENVIRONMENT.

    The checks: expert and random scores, range of the reward, success of invalid actions or of an immediate stop,
    determinism by seed and with perturbed global random state, a second process, concurrent episodes, snapshots, end
    reasons, unusual actions, speed. The exit code is 1 if a check fails.

    If ENVIRONMENT is a folder, check its Harbor task folders: whether the tests reject an untouched container and
    accept the solution, and which folders need a network, have no tests, or have a canary string. Options are those of
    the environment `harbor`.

    Options apply to the environment, to its tasks, or to both, if they have an option of that name.

    Tools are called for real only if they declare the effect `read`. `--call-tools` also calls tools without a declared
    effect, `--allow-effects` those with side effects. The option `effects='{refund: write}'` declares effects.
    """
    if (path := Path(environment)).is_dir():
        _check_folders(path, read_options(options), as_json)
    own_options, settings = _split_effects(environment, options)
    contract = create_contract(
        environment, own_options, source=source, reward=reward, episodes=episodes, max_turns=max_turns
    )
    effects = training.known_effects(contract.make, settings)
    calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
    report_refused(calls, effects)
    if environment in calls.refused(effects):
        raise RecipeError(
            f"{environment}: nothing is checked, because its side effects are not permitted; see --allow-effects"
        )
    calls = replace(calls, effects=dict(settings.effects or {}))
    contract.make = functools.partial(assembly.apply_call_policy, contract.make, environment, calls)
    checks = asyncio.run(_run_check(contract, as_json))
    bad = [each.name for each in checks if each.verdict is CheckStatus.FAIL]
    if as_json:
        click.echo(to_json({"environment": environment, "kept": not bad, "found": contract.numbers,
                               "checks": [asdict(each) for each in checks]}))  # fmt: skip
    else:
        click.echo(f"failed: {', '.join(bad)}" if bad else f"{environment} passes all checks")
    sys.exit(1 if bad else 0)


@environments_command.command("serve")
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", "source", help="Task source [the source of the same name].")
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
def serve_environment_command(
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
    """Serve ENVIRONMENT and its tasks over HTTP until stopped.

    Recipes on other machines use `environment: {name: remote, url: http://HOST:8100}` and
    `tasks: {source: remote, url: …}`.

    Clients receive the tasks with their answers. On an address other than localhost, a token is therefore required,
    which both sides read from the environment variable WHETSTONE_TOKEN. If it is not set, a token is generated and
    printed.
    """
    own_options, settings = _split_effects(environment, options)
    contract = create_contract(environment, own_options, source=source)
    effects, calls = training.known_effects(contract.make, settings), CallPolicy(effects=dict(settings.effects or {}))
    if refused := calls.refused(effects):
        if not allow_effects and not ask_once()(f"Let clients call {', '.join(refused)} for real?"):
            remedy = describe_remedy(refused, for_check=True)
            raise RecipeError(f"{environment}: not served: {describe_effects(refused)}; {remedy}")
        calls = replace(calls, allowed=True)
    make = functools.partial(assembly.apply_call_policy, contract.make, environment, calls)
    episodes = ServedEpisodes(make, capacity=capacity, idle_seconds=idle_seconds)
    token = os.environ.get(TOKEN, "")
    generated = "" if token or address in LOOPBACK else secrets.token_urlsafe(24)
    served = build_environment_app(environment, episodes, contract.source, token=token or generated)
    server = build_server(served)
    start_access_log(access_log)
    with bind_socket(address, port) as bound:
        click.echo(f"{environment} at http://{address}:{bound.getsockname()[1]}, up to {capacity} episodes")
        if generated:
            click.echo(f"clients require {TOKEN}={generated}")
        server.run(sockets=[bound])


@environments_command.command("export")
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--to", "kind", type=click.Choice(("openenv", "verifiers", "harbor")), required=True, help="Format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="New folder.")
@click.option("--tasks", "source", help="Task source [the source of the same name].")
@click.option("--num-tasks", type=click.IntRange(min=1), default=20, show_default=True, help="Number of tasks.")
@click.option("--held-out", is_flag=True, help="Export held-out tasks instead of training tasks.")
@click.option(
    "--pays",
    type=click.Choice(("success", "score")),
    default="success",
    show_default=True,
    help="Reward: 1 for success, or the score of the verdict.",
)
@click.option("--image", default="whetstone", show_default=True, help="Image with Whetstone, for containers.")
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export_environment_command(
    environment: str,
    options: tuple[str, ...],
    kind: ExportFormat,
    output: Path,
    source: str | None,
    num_tasks: int,
    held_out: bool,
    pays: Pays,
    image: str,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Write ENVIRONMENT and its tasks as an OpenEnv server, a taskset of verifiers, or Harbor folders.

    Tasks are written with the data of their reward. The expert of the task source plays each task first; its actions
    are the solutions of Harbor folders. Its tools are called for real: without `--call-tools` only those that declare
    the effect `read`, and with side effects only with `--allow-effects`.
    """
    own_options, settings = _split_effects(environment, options)
    if environment in REWARD_OF:
        raise RecipeError(f"{environment}: its reward is {REWARD_OF[environment]}, not a verdict, and is not exported")
    if settings.effects:
        raise RecipeError("effects: an export has no declared effects; remove the option")
    contract = create_contract(environment, own_options, source=source)
    effects = training.known_effects(contract.make, settings)
    refused = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools).refused(effects)
    if refused:
        remedy = describe_remedy(refused, for_check=True)
        raise RecipeError(
            f"{environment}: nothing is exported, because the expert's tools are not called: "
            f"{describe_effects(refused)}; {remedy}"
        )
    part = get_component_options(_find_environment(environment))
    written = write_export(
        output,
        kind,
        environment=environment,
        options={key: value for key, value in own_options.items() if key in part},
        source=contract.source,
        num_tasks=num_tasks,
        held_out=held_out,
        pays=pays,
        image=image,
    )
    if as_json:
        click.echo(to_json({"folder": str(output), **asdict(written)}))
    else:
        click.echo(f"wrote {output}: {written.tasks} tasks, {written.solved} solved by the expert")


def _check_folders(path: Path, options: Mapping[str, Any], as_json: bool) -> None:
    """Print the report of Harbor folders, and exit: 1 if one is not solved."""

    async def run() -> list[FolderReport]:
        reports = []
        async for report in check_folders(path, dict(options)):
            reports.append(report)
            if not as_json:
                marks = [f"canary string in {report.canary}: only for evaluation"] if report.canary else []
                click.echo("; ".join(filter(None, [f"{report.status:<16} {report.name}", report.reason, *marks])))
        return reports

    reports = asyncio.run(run())
    counts = count_statuses(reports)
    if as_json:
        click.echo(to_json({"folders": [asdict(report) for report in reports], "counts": counts}))
    else:
        click.echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    sys.exit(0 if set(counts) <= {"solved"} else 1)


def _split_effects(environment: str, options: Sequence[str]) -> tuple[dict[str, Any], EnvironmentSettings]:
    """Split KEY=VALUE options into `effects` and options of the environment.

    Returns:
        Options without `effects`, and environment settings with the effects.

    Raises:
        RecipeError: If an option does not have the form KEY=VALUE, or an effect does not exist.
    """
    values = read_options(options)
    declared = values.pop("effects", None)
    for name, effect in declared.items() if isinstance(declared, Mapping) else ():
        checked_effect(effect, f"effects.{name}")
    if declared is not None and not isinstance(declared, Mapping):
        raise RecipeError(
            f"effects: expected a mapping from tools to effects, such as {{refund: write}}, got {declared!r}"
        )
    return values, EnvironmentSettings(name=environment, effects=declared)


async def _run_check(contract: Contract, quiet: bool) -> list[Check]:
    checks = []
    async for each in check_contract(contract):
        checks.append(each)
        if not quiet:
            show_check(each)
    return checks


def create_contract(
    environment: str,
    options: Mapping[str, Any],
    *,
    source: str | None = None,
    reward: str | None = None,
    episodes: int = 20,
    max_turns: int = 60,
) -> Contract:
    """Create the contract check of an environment by name.

    Args:
        environment: Name of the environment, or `package.module:Class`.
        options: Options of the environment, of its tasks, or of both.
        source: Task source; None: the source with the environment's name.
        reward: Reward; None: the verdict of the environment.
        episodes: Number of episodes of the expert, and of random actions.
        max_turns: Maximum number of turns per episode.

    Raises:
        RecipeError: If a name or option is wrong; the message has the nearest valid one.
    """
    part = _find_environment(environment)
    name = source or environment
    is_source = isinstance(part, type) and issubclass(part, whetstone.tasks.Source)
    if (":" not in name and name not in list_sources()) or (":" in name and source is None and not is_source):
        problem = (
            f'--tasks: no task source "{source}"'
            if source
            else f"--tasks: missing; {environment} has no task source of its name"
        )
        raise RecipeError(f"{problem}{did_you_mean(name, list_sources())}")
    source_part = find_part("task source", name, list_sources(), optional=SOURCE_OPTIONAL)
    own_options, task_options = get_component_options(part), get_component_options(source_part)
    for key in options:
        if key not in own_options and key not in task_options:
            raise RecipeError(f"{key}: not an option of {environment} or its tasks"
                              f"{did_you_mean(key, [*own_options, *task_options])}")  # fmt: skip
    values = {key: value for key, value in options.items() if key in own_options}
    values = bind_named_options(values)
    make = functools.partial(_create_environment, environment, validate_options(part, values))
    of_tasks = validate_options(source_part, {key: value for key, value in options.items() if key in task_options})
    judge = whetstone.rewards.make_reward(reward or REWARD_OF.get(environment, "verdict"), whetstone.rewards.REWARDS)
    check_requirements(environment, part.needs if implements_protocol(part, HasRequirements) else ())
    tried = make()
    check_interface(tried, whetstone.environments.Environment, "environment", environment)
    if implements_protocol(tried, SelfChecking):
        tried.check()
    return Contract(
        make=make,
        source=_with_tasks(
            name, instantiate_component("task source", name, source_part, of_tasks, optional=SOURCE_OPTIONAL)
        ),
        make_source=lambda: source_part(**of_tasks),
        reward=judge,
        episodes=episodes,
        max_turns=max_turns,
    )


def _with_tasks(name: str, source: Any) -> whetstone.tasks.Source:
    """Check that a task source has at least one task, and return it.

    Raises:
        RecipeError: If the source lacks the methods of a task source, or has no task.
    """
    check_interface(source, whetstone.tasks.Source, "task source", name)
    try:
        source.task(0)
    except WhetstoneError:
        raise
    except (Exception, SystemExit) as error:
        reason = describe_exception(error).splitlines()[0]
        raise RecipeError(f'task source "{name}" has no tasks: the first one raised {reason}') from error
    return source  # type: ignore[no-any-return]


def _create_environment(environment: str, options: Mapping[str, Any]) -> Any:
    """Create an environment by name.

    A partial of this function can be pickled, for checks in a second process.
    """
    return _find_environment(environment)(**options)


def _find_environment(name: str) -> Any:
    """Return an environment class, or a function that wraps a game class as an environment."""
    part = find_part("environment", name, whetstone.environments.ENVIRONMENTS, optional=optional_protocols)
    return whetstone.environments.as_environment(part) if whetstone.environments.is_game(part) else part
