"""`whetstone chat`: chat with a policy in the terminal; its tools work."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

import whetstone.rollout
from whetstone.capabilities import implements_protocol
from whetstone.cli import shell_completion
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.cli.format_message import format_message
from whetstone.cli.policy_argument import load_policy_argument, member_option
from whetstone.cli.unused_overrides import LEARNING, warn_unused_overrides
from whetstone.environments.protocol import HoldsTools
from whetstone.errors import InfrastructureError, PromptTooLong, RecipeError, summarize_exception

if TYPE_CHECKING:
    from whetstone.assembly import RunComponents
    from whetstone.inference import Engine


_OF_EPISODES = ("rollout.strategy", "rollout.group_size", "rollout.temperature", "evaluation", "reward")


@click.command("chat")
@click.argument("run_or_model", shell_complete=shell_completion.run_folders)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--recipe", help="Recipe with the tools of a model [none]. A run has its own.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.7, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed for sampling.")
@member_option
@allow_effects_option
def chat_command(
    run_or_model: str,
    overrides: tuple[str, ...],
    recipe: str | None,
    temperature: float,
    seed: int,
    member: str | None,
    allow_effects: bool,
) -> None:
    """Chat with RUN_OR_MODEL, a run at its last checkpoint or a model as in `policy.path`.

    Each line of input is a user message. The response, the tool calls and their results are printed. Ctrl-D ends the
    chat; input can come from a pipe.
    """
    warn_unused_overrides(overrides, (*LEARNING, *_OF_EPISODES), "a chat is neither scored nor trained on")
    allowed = add_permissions(overrides, allow_effects)
    assembly = load_policy_argument(run_or_model, allowed, recipe, member=member, ask=ask_once())
    if not implements_protocol(assembly.environment(), HoldsTools):
        named = assembly.resolved.recipe.environment.name
        raise RecipeError(f'environment: "{named}" is not a set of tools; a chat requires environment: {{name: tools}}')
    with asyncio.Runner() as runner:
        engine = assembly.build_engine(heard=lambda line: click.echo(line, err=True))
        talk = _conversation(assembly, engine, temperature, seed)
        try:
            for line in _lines():
                runner.run(_send_line(talk, line))
        except PromptTooLong as full:
            click.echo(f"whetstone: {full}; start another chat", err=True)
        except InfrastructureError as error:
            raise RecipeError(f"a resource of a tool is not available: {summarize_exception(error)}") from error
        finally:
            runner.run(_close(talk, engine))


def _conversation(
    assembly: RunComponents, engine: Engine, temperature: float, seed: int
) -> whetstone.rollout.ChatSession:
    environment = assembly.environment()
    settings = assembly.resolved.recipe.environment
    limits = whetstone.rollout.EpisodeLimits(
        settings.max_turns, assembly.policy.context_length, settings.timeout_seconds
    )
    sampling = assembly.policy_actor(engine, temperature=temperature).sampling
    return whetstone.rollout.ChatSession(
        environment,
        engine,
        assembly.chat,
        task=assembly.source.task(0),
        sampling=sampling,
        limits=limits,
        seed=seed,
    )


def _lines() -> Iterator[str]:
    """Yield the user messages: lines of standard input, without empty ones."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


async def _send_line(talk: whetstone.rollout.ChatSession, line: str) -> None:
    async for message in talk.say(line):
        click.secho(format_message(message), dim=message.role == "tool")


async def _close(talk: whetstone.rollout.ChatSession, engine: Engine) -> None:
    await talk.close()
    await engine.close()
