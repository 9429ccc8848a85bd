"""Thousands of tools, of which few are in view: the agent looks for those it needs and puts away those it does not.

Three ways, after MemTool: the agent alone decides (`agent`: `find_tools` and `remove_tools`), the catalogue decides by
the task before the first turn (`task`), or both (`both`: chosen by the task at first, more by the agent).

Easy to get wrong: what a find puts on offer is told in the find's own answer, so that the context only grows; the list
at its beginning is that of the first turn.

Source: MemTool 2025, arXiv:2507.21428; Toolshed 2024, arXiv:2410.14594, for what is looked through.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from whetstone.chat.message import ToolSpec
from whetstone.errors import RecipeError, TaskError, ToolError
from whetstone.plugins import find_part
from whetstone.tools.index import in_memory
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import OPTIONAL, Episode
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.simulated import Answers, read_lines


class Catalogue:
    """Tools behind `find_tools`.

    Args:
        file: JSON Lines with one tool per line in the OpenAI format; `answers` has their results.
        functions: Python functions as tools, each `package.module:function`; can be combined with `file`.
        answers: JSON Lines that answer for the tools of the file; see `Simulated`.
        selected_by: Selection of the visible tools: by the `agent`, by the `task`, or `both`.
        max_visible: Maximum number of tools in view at once.
        results_per_search: Number of tools that a search adds.

    Raises:
        RecipeError: There is no tool, or two of one name.
        TaskError: A file cannot be read.
    """

    effects = MappingProxyType({"find_tools": "read", "remove_tools": "read"})
    changing = True

    def __init__(
        self,
        *,
        file: str | None = None,
        functions: Sequence[str] = (),
        answers: str | None = None,
        selected_by: Literal["agent", "task", "both"] = "agent",
        max_visible: int = 16,
        results_per_search: int = 5,
    ) -> None:
        self.selected_by, self.max_visible, self.results_per_search = selected_by, max_visible, results_per_search
        self.known: dict[str, Tool] = {}
        answering = Answers(answers) if answers is not None else None
        for spec in specs_in(file) if file is not None else ():
            tool = tool_from_schema(spec, functools.partial(_answered, answering, spec.name))
            self._add(replace(tool, effects="read"))
        for name in functions:
            self._add(tool_from_function(find_part("tool", name, {}, optional=OPTIONAL)))
        if not self.known:
            raise RecipeError("catalogue: neither `file` nor `functions` has a tool")
        self.finder = Finder([tool.spec for tool in self.known.values()])
        self.live: dict[str, Tool] = {}

    def open(self, episode: Episode) -> None:
        """Begin with nothing in view, or with what the task calls for."""
        self.live = {}
        if self.selected_by != "agent":
            self._bring(self.finder.found(episode.task.prompt, self.results_per_search))

    def tools(self) -> list[Tool]:
        """Those that look for others, and those in view."""
        own = (
            []
            if self.selected_by == "task"
            else [tool_from_function(self.find_tools), tool_from_function(self.remove_tools)]
        )
        return [*own, *self.live.values()]

    def every_tool(self) -> list[Tool]:
        """Return all tools that a search can find."""
        return list(self.known.values())

    async def find_tools(self, query: str) -> str:
        """Look for tools that can do something; those found can be called from then on.

        Args:
            query: What they should do.
        """
        names = self.finder.found(query, self.results_per_search)
        if not names:
            return "no tool found"
        self._bring(names)
        return "\n".join(
            json.dumps(self.known[name].spec.to_openai()["function"], ensure_ascii=False) for name in names
        )

    async def remove_tools(self, names: list[str]) -> str:
        """Put away tools that are not needed any more.

        Args:
            names: Their names.
        """
        unknown = [name for name in names if name not in self.live]
        if unknown:
            raise ToolError(f"not in view: {', '.join(unknown)}; in view are: {', '.join(self.live) or 'none'}")
        for name in names:
            del self.live[name]
        return f"{len(names)} removed, {len(self.live)} in view"

    def _bring(self, names: Iterable[str]) -> None:
        """Into view; beyond `max_visible` those that came first go."""
        for name in names:
            self.live.pop(name, None)
            self.live[name] = self.known[name]
        while len(self.live) > self.max_visible:
            del self.live[next(iter(self.live))]

    def _add(self, tool: Tool) -> None:
        if tool.spec.name in self.known:
            raise RecipeError(f'catalogue: two tools are named "{tool.spec.name}"')
        self.known[tool.spec.name] = tool


class Finder:
    """Tools by what they say of themselves: names, descriptions, parameters.

    Args:
        specs: All of them.
    """

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._index = in_memory((spec.name, _words_of(spec)) for spec in specs)

    def found(self, query: str, count: int) -> list[str]:
        """The names of the best, by BM25."""
        return [hit.passage.id for hit in self._index.by_words(query, count)]


def sufficiency_at_k(found: Sequence[str], needed: Iterable[str], k: int) -> float:
    """1 where the first `k` hold every tool that is needed, else 0; 1 where none is.

    Source: QTA 2024, arXiv:2410.03212.
    """
    return float(set(needed) <= set(found[:k]))


def recall_at_k(found: Sequence[str], needed: Iterable[str], k: int) -> float:
    """The share of the tools that are needed among the first `k`; 1 where none is."""
    wanted = set(needed)
    return len(wanted & set(found[:k])) / len(wanted) if wanted else 1.0


def specs_in(file: str) -> list[ToolSpec]:
    """The tools of a file of JSON Lines.

    Raises:
        TaskError: No such file, or a line that is no tool.
    """
    found = []
    for number, row in enumerate(read_lines(file), 1):
        try:
            found.append(ToolSpec.from_openai(row))
        except ValueError as error:
            raise TaskError(f"{file}:{number}: {error}") from None
    return found


def _words_of(spec: ToolSpec) -> str:
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", spec.name).replace("_", " ").replace("-", " ")
    properties = spec.properties
    about = " ".join(f"{name.replace('_', ' ')} {inner.get('description', '')}" for name, inner in properties.items())
    return f"{apart} {apart} {spec.description} {about}"


async def _answered(answers: Answers | None, name: str, arguments: dict[str, Any]) -> Any:
    if answers is None:
        raise ToolError(f"{name} has no answers; the catalogue was given none")
    return await answers.answer(name, arguments)
