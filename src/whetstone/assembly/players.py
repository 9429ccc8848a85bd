"""Players of an evaluation that are not models: the expert of the tasks, a function, or a person at the terminal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import click

from whetstone.assembly.assembly import RunComponents
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import InfrastructureError
from whetstone.plugins import find_part
from whetstone.rollout import Actor, ModelActor
from whetstone.tools import FrozenModel
from whetstone.tools.sanitize_text import sanitize_text

_CALL = re.compile(r"/call\s+(\S+)\s*(.*)", re.DOTALL)


def is_player(name: str) -> bool:
    """Return whether a name is that of a player: `expert`, `person`, or a function as `package.module:function`.

    Args:
        name: Value of `--policy`; the path of an existing file or folder is no player.
    """
    is_function = ":" in name and "//" not in name
    return (name in ("expert", "person") or is_function) and not Path(name).exists()


def build_player(assembly: RunComponents, name: str) -> Actor:
    """Build the actor of a player.

    A function is called as one of a recipe's `models`: (messages so far, tools, seed) → next message, text or
    `Message`. A person reads new messages at the terminal, and writes a text, or a call as `/call TOOL {"key": 1}`.

    Args:
        assembly: Components of the evaluation.
        name: Name of the player; see `is_player`.

    Raises:
        RecipeError: If the task source has no expert, or the function does not exist.
    """
    if name == "expert":
        return assembly.expert_actor()
    respond = _Person() if name == "person" else find_part("player", name, {})
    return ModelActor(FrozenModel(name, respond), assembly.chat)


class _Person:
    """Person at the terminal, who answers one request at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __call__(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> Message:
        async with self._lock:
            return await asyncio.to_thread(self._ask, conversation, tools)

    def _ask(self, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        own = max((k for k, message in enumerate(conversation) if message.role == "assistant"), default=-1)
        for message in conversation[own + 1 :]:
            click.echo(f"{message.role}: {sanitize_text(message.text)}", err=True)
        if tools and own < 0:
            click.echo(f"tools: {', '.join(tool.name for tool in tools)} (/call TOOL {{…}})", err=True)
        try:
            line = input("you: ")
        except EOFError:
            raise InfrastructureError("the person left; run the command in a terminal") from None
        call = _CALL.fullmatch(line.strip())
        return assistant("", ToolCall(call[1], call[2] or "{}")) if call else assistant(line)
