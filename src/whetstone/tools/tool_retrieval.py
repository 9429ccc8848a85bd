"""Tool retrieval: of a catalog with thousands of tools, only a few are visible to the model at a time.

Visible tools are selected by the agent (`agent`: `find_tools` and `remove_tools`), by a search for the task prompt
before the first turn (`task`), or by both (`both`: the search first, then the agent).

Note:
    Tools that a search adds are listed in the search result, so that the context only grows. The tool list at the
    start of the context stays that of the first turn.

Source: MemTool 2025, arXiv:2507.21428; Toolshed 2024, arXiv:2410.14594, for the searched text.
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
from whetstone.tools.corpus_index import in_memory
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import OPTIONAL, Episode
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.simulated import Answers, read_lines


class ToolCatalog:
    """Catalog of many tools, of which only a few are visible.

    `find_tools` and `remove_tools` change the selection.

    Args:
        file: JSON Lines with one tool per line in the OpenAI format; `answers` has their results.
        functions: Python functions as tools, each `package.module:function`; can be combined with `file`.
        answers: JSON Lines with results for the tools of the file; see `Simulated`.
        selected_by: Selection of the visible tools: by the `agent`, by the `task`, or `both`.
        max_visible: Maximum number of tools visible at once.
        results_per_search: Number of tools that a search adds.

    Raises:
        RecipeError: If there is no tool, or two tools share a name.
        TaskError: If a file cannot be read.
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
            tool = tool_from_schema(spec, functools.partial(_look_up_result, answering, spec.name))
            self._add(replace(tool, effects="read"))
        for name in functions:
            self._add(tool_from_function(find_part("tool", name, {}, optional=OPTIONAL)))
        if not self.known:
            raise RecipeError("catalog: there are no tools; set `file` or `functions`")
        self.finder = Finder([tool.spec for tool in self.known.values()])
        self.live: dict[str, Tool] = {}

    def open(self, episode: Episode) -> None:
        """Start an episode with no visible tools, or with the tools that match the task prompt."""
        self.live = {}
        if self.selected_by != "agent":
            self._bring(self.finder.search(episode.task.prompt, self.results_per_search))

    def tools(self) -> list[Tool]:
        """Return `find_tools` and `remove_tools` (unless the task selects), and the visible tools."""
        own = (
            []
            if self.selected_by == "task"
            else [tool_from_function(self.find_tools), tool_from_function(self.remove_tools)]
        )
        return [*own, *self.live.values()]

    def every_tool(self) -> list[Tool]:
        """Return all tools of the catalog."""
        return list(self.known.values())

    async def find_tools(self, query: str) -> str:
        """Look for tools that can do something; those found can be called from then on.

        Args:
            query: What they should do.
        """
        names = self.finder.search(query, self.results_per_search)
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
        """Make tools visible; beyond `max_visible`, the tools that were added first are removed."""
        for name in names:
            self.live.pop(name, None)
            self.live[name] = self.known[name]
        while len(self.live) > self.max_visible:
            del self.live[next(iter(self.live))]

    def _add(self, tool: Tool) -> None:
        if tool.spec.name in self.known:
            raise RecipeError(f'catalog: two tools are named "{tool.spec.name}"')
        self.known[tool.spec.name] = tool


class Finder:
    """BM25 search of tools by name, description and parameters.

    Args:
        specs: Declarations of all tools.
    """

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._index = in_memory((spec.name, _describe_spec(spec)) for spec in specs)

    def search(self, query: str, count: int) -> list[str]:
        """Return the names of the best `count` tools for a query, best first."""
        return [hit.passage.id for hit in self._index.by_words(query, count)]


def sufficiency_at_k(names: Sequence[str], needed: Iterable[str], k: int) -> float:
    """Return 1 if the first `k` tools include every needed tool, else 0.

    The result is 1 if no tool is needed.

    Args:
        names: Names of found tools, best first.
        needed: Names of needed tools.
        k: Number of found tools that count.

    Source: QTA 2024, arXiv:2410.03212.
    """
    return float(set(needed) <= set(names[:k]))


def specs_in(file: str) -> list[ToolSpec]:
    """Read tool declarations in the OpenAI format from a JSON Lines file.

    Raises:
        TaskError: If the file does not exist, or a line is not a tool.
    """
    specs = []
    for number, row in enumerate(read_lines(file), 1):
        try:
            specs.append(ToolSpec.from_openai(row))
        except ValueError as error:
            raise TaskError(f"{file}:{number}: {error}") from None
    return specs


def _describe_spec(spec: ToolSpec) -> str:
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", spec.name).replace("_", " ").replace("-", " ")
    properties = spec.properties
    about = " ".join(f"{name.replace('_', ' ')} {inner.get('description', '')}" for name, inner in properties.items())
    return f"{words} {words} {spec.description} {about}"


async def _look_up_result(answers: Answers | None, name: str, arguments: dict[str, Any]) -> Any:
    if answers is None:
        raise ToolError(f"{name} has no answers; the catalogue was given none")
    return await answers.answer(name, arguments)
