"""`whetstone chat`: speak with a policy in the terminal; its tools work."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

import whetstone.rollout
from whetstone.cli import completing
from whetstone.cli.effects import allow_effects_option, ask_once, permitting
from whetstone.cli.run_or_model import assembled
from whetstone.cli.shown import shown
from whetstone.cli.unread import LEARNING, say_unread
from whetstone.contracts import fulfils
from whetstone.environments.protocol import HoldsTools
from whetstone.errors import InfrastructureError, PromptTooLong, RecipeError, explained

if TYPE_CHECKING:
    from whetstone.assembly import Assembly
    from whetstone.inference import Engine


_OF_EPISODES = ("rollout.strategy", "rollout.group_size", "rollout.temperature", "evaluation", "reward")


@click.command()
@click.argument("run_or_model", shell_complete=completing.run_folders)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--recipe", help="Whose tools a model has; none unless said. A run has its own.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.7, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed for sampling.")
@allow_effects_option
def chat(
    run_or_model: str,
    overrides: tuple[str, ...],
    recipe: str | None,
    temperature: float,
    seed: int,
    allow_effects: bool,
) -> None:
    """Speak with RUN_OR_MODEL, a run at its last checkpoint or a model as `policy.path` names it.

    A line of yours, then what it says and calls, with what its tools answer. Ctrl-D ends; lines may come from a pipe.
    """
    say_unread(overrides, (*LEARNING, *_OF_EPISODES), "what is said is neither judged nor learned from")
    assembly = assembled(run_or_model, permitting(overrides, allow_effects), recipe, ask=ask_once())
    if not fulfils(assembly.environment(), HoldsTools):
        named = assembly.resolved.recipe.environment.name
        raise RecipeError(f'the environment "{named}" is no set of tools, and only those can be spoken with')
    with asyncio.Runner() as runner:
        engine = assembly.engine(heard=lambda line: click.echo(line, err=True))
        talk = _conversation(assembly, engine, temperature, seed)
        try:
            for line in _lines():
                runner.run(_answered(talk, line))
        except PromptTooLong as full:
            click.echo(f"whetstone: {full}; start another one", err=True)
        except InfrastructureError as error:
            raise RecipeError(f"what a tool stands on is gone: {explained(error)}") from error
        finally:
            runner.run(_closed(talk, engine))


def _conversation(assembly: Assembly, engine: Engine, temperature: float, seed: int) -> whetstone.rollout.Conversation:
    environment = assembly.environment()
    settings = assembly.resolved.recipe.environment
    limits = whetstone.rollout.Limits(settings.max_turns, assembly.policy.context_length, settings.timeout_seconds)
    sampling = assembly.policy_actor(engine, temperature=temperature).sampling
    return whetstone.rollout.Conversation(
        environment,
        engine,
        assembly.chat,
        task=assembly.source.task(0),
        sampling=sampling,
        limits=limits,
        seed=seed,
    )


def _lines() -> Iterator[str]:
    """What is typed, or comes through a pipe; empty lines say nothing."""
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


async def _answered(talk: whetstone.rollout.Conversation, line: str) -> None:
    async for message in talk.say(line):
        click.secho(shown(message), dim=message.role == "tool")


async def _closed(talk: whetstone.rollout.Conversation, engine: Engine) -> None:
    await talk.close()
    await engine.close()
