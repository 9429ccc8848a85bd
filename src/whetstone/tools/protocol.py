"""The seam of the tools room: what a tool may give back, and what tools of one episode may hold together.

A tool is a typed function. Tools that remember something are the public methods of a class, made anew for each episode:

    class Basket:
        def __init__(self, *, size: int = 10) -> None: ...
        def add(self, item: str) -> str: ...

Its keyword-only arguments are options in a recipe. What it may have besides, each plain or async:

    tools()                  the tools, where they are not the public methods
    open(episode)            once before the first call
    close()                  once behind the last, on every path
    verdict()                behind the last call: what became of it, as a mapping with `success`, `score`, …
    charge(name)             before each call, of any tool: (why it cannot be paid for, if so; what it costs)
    changing                 True where `tools()` is not always the same
    must_agree               by name, options that tools which share something must have alike
    replayable               False where the same calls do not lead to the same place again
    stateless                True where an answer depends on its call alone
    declared                 by name, how it works where models get used to it: how long variables last
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from whetstone.chat.message import Image, Text
from whetstone.trajectory import Task

Outcome = Literal["ok", "tool_error", "tool_failed", "timeout", "stopped", "budget_exhausted", "refused_by_policy"]
LIFETIME = frozenset({"open", "close", "tools", "charge", "verdict"})
"""Public methods of a class of tools that are none."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool gives back where a value or a text alone does not say it."""

    content: tuple[Text | Image, ...]
    outcome: Outcome = "ok"


@dataclass(frozen=True, slots=True)
class Episode:
    """What tools of one episode know of it, and share."""

    task: Task
    seed: int
    shared: dict[str, Any] = field(default_factory=dict)
    """By name, what one tool has made and others use, too: the folder of a sandbox."""
