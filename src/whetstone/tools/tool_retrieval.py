"""Tool retrieval: of a catalog with thousands of tools, only a few are visible to the model at a time.

Visible tools are selected by the agent (`agent`: `find_tools` and `remove_tools`), by a search for the task prompt
before the first turn (`task`), or by both (`both`: the search first, then the agent).

Note:
    Tools that a search adds are listed in the search result, so that the context only grows. The tool list at the
    start of the context stays that of the first turn.

Source: MemTool 2025, arXiv:2507.21428; Toolshed 2024, arXiv:2410.14594, for the searched text, example requests and
query expansion; QTA 2024, arXiv:2410.03212, for sufficiency.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from whetstone.chat.message import ToolSpec
from whetstone.errors import RecipeError, TaskError, ToolError
from whetstone.plugins import find_part
from whetstone.tools.corpus_index import Embedding, fuse_rankings, in_memory
from whetstone.tools.generated_tools import generate_tools
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import OPTIONAL, Episode
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.search import load_embedding
from whetstone.tools.simulated import Answers, read_lines
from whetstone.tools.thread_runner import call_user_function


class ToolCatalog:
    """Catalog of many tools, of which only a few are visible.

    `find_tools` and `remove_tools` change the selection. If a task has the names of its needed tools under `tools` in
    its private data, the verdict contains `recall_at_k` and `sufficiency_at_k` of the searches, where k is
    `results_per_search`, and `called`, the fraction of needed tools that were called. `success` requires all of them;
    the `score` is the recall.

    Args:
        file: JSON Lines with one tool per line in the OpenAI format; `answers` has their results. A line can have
            example requests, as a list of texts under `requests`.
        functions: Python functions as tools, each `package.module:function`; can be combined with `file`.
        answers: JSON Lines with results for the tools of the file; see `Simulated`.
        selected_by: Selection of the visible tools: by the `agent`, by the `task`, or `both`.
        max_visible: Maximum number of tools visible at once.
        results_per_search: Number of tools that a search adds.
        generated: Number of generated tools, up to 500; see the task source `tool_requests`.
        example_requests: Whether the searched text of a tool contains its example requests.
        embedding: Folder with an encoder, or `package.module:function` that maps texts to vectors; null: search only by
            words.
        mode: Search by `words` (BM25), `vectors` or `both`; null: both if there is an embedding, otherwise words.
        expansion: Query expansion: `clauses`, or `package.module:function`, sync or async, from a query to further
            queries; all are searched, and the ranks are combined. null: only the query itself.

    Raises:
        RecipeError: If there is no tool, two tools share a name, or `mode` requires vectors and there is no embedding.
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
        generated: int = 0,
        example_requests: bool = True,
        embedding: str | None = None,
        mode: Literal["words", "vectors", "both"] | None = None,
        expansion: str | None = None,
    ) -> None:
        self.selected_by, self.max_visible, self.results_per_search = selected_by, max_visible, results_per_search
        mode = mode or ("both" if embedding else "words")
        if mode != "words" and embedding is None:
            raise RecipeError(f"catalog: mode {mode} requires an `embedding`")
        self.expansion = None if expansion is None else find_part("expansion", expansion, {"clauses": split_clauses})
        versions = tuple((path, _file_version(path)) for path in (file, answers))
        self.known, self.finder = _load_tools(versions, tuple(functions), generated, example_requests, embedding, mode)
        self.live: dict[str, Tool] = {}
        self._needed: list[str] = []
        self._found: set[str] = set()
        self._called: set[str] = set()

    async def open(self, episode: Episode) -> None:
        """Start an episode with no visible tools, or with the tools that match the task prompt."""
        self.live, self._found, self._called = {}, set(), set()
        self._needed = list(episode.task.private.get("tools", ()))
        if unknown := [name for name in self._needed if name not in self.known]:
            raise TaskError(f"task {episode.task.id}: needs the tool {unknown[0]}, which is not in the catalog")
        if self.selected_by != "agent":
            self._bring(await self._search(episode.task.prompt))

    def charge(self, name: str) -> tuple[str, float]:
        """Count a call of a needed tool; a call costs nothing."""
        self._called.add(name)
        return "", 0.0

    def verdict(self) -> dict[str, float | bool]:
        """Return how many needed tools were found and called; empty if the task does not name them."""
        if not self._needed:
            return {}
        recall = recall_at_k(sorted(self._found), self._needed, len(self._found))
        called = recall_at_k(sorted(self._called), self._needed, len(self._called))
        sufficiency = float(recall == 1)
        metrics = {"recall_at_k": recall, "sufficiency_at_k": sufficiency, "called": called}
        return {"success": called == 1, "score": recall, **metrics}

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
        names = await self._search(query)
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

    async def _search(self, query: str) -> list[str]:
        queries = [query]
        if self.expansion is not None:
            expanded = await call_user_function(self.expansion, query)
            if isinstance(expanded, str) or not all(isinstance(each, str) for each in expanded):
                raise TypeError("expansion: must return a list of texts")
            queries += expanded
        names = self.finder.search_all(queries, self.results_per_search)
        self._found.update(names)
        return names

    def _bring(self, names: Iterable[str]) -> None:
        """Make tools visible; beyond `max_visible`, the tools that were added first are removed."""
        for name in names:
            self.live.pop(name, None)
            self.live[name] = self.known[name]
        while len(self.live) > self.max_visible:
            del self.live[next(iter(self.live))]


@functools.lru_cache(maxsize=8)
def _load_tools(
    files: tuple[tuple[str | None, object], ...],
    functions: tuple[str, ...],
    generated: int,
    example_requests: bool,
    embedding: str | None,
    mode: Literal["words", "vectors", "both"],
) -> tuple[dict[str, Tool], Finder]:
    """Return the tools of a catalog by name and their index; the catalogs of all episodes share them.

    Args:
        files: Paths of the tools and of their results, each with its version on disk.
        functions: See `ToolCatalog`, as all further arguments.
    """
    (file, _), (answers, _) = files
    answering = Answers(answers) if answers is not None else None
    documents = documents_in(file) if file is not None else []
    tools = [tool_from_schema(spec, functools.partial(_look_up_result, answering, spec.name)) for spec, _ in documents]
    of_catalog = generate_tools(generated) if generated else []
    tools += [tool_from_schema(spec, functools.partial(_confirm_call, spec.name)) for spec, _ in of_catalog]
    tools = [replace(tool, effects="read") for tool in tools]
    tools += [tool_from_function(find_part("tool", name, {}, optional=OPTIONAL)) for name in functions]
    if not tools:
        raise RecipeError("catalog: there are no tools; set `file`, `functions` or `generated`")
    known: dict[str, Tool] = {}
    for tool in tools:
        if tool.spec.name in known:
            raise RecipeError(f'catalog: two tools are named "{tool.spec.name}"; rename one of them')
        known[tool.spec.name] = tool
    requests = {spec.name: texts for spec, texts in (*documents, *of_catalog)} if example_requests else {}
    encoder = None if embedding is None else load_embedding(embedding)
    return known, Finder([tool.spec for tool in tools], requests=requests, embedding=encoder, mode=mode)


def _file_version(path: str | None) -> tuple[int, int] | None:
    """Return size and modification time of a file; None if it does not exist."""
    if path is None or not Path(path).exists():
        return None
    return Path(path).stat().st_size, Path(path).stat().st_mtime_ns


class Finder:
    """Search of tools by name, description, parameters and example requests.

    Args:
        specs: Declarations of all tools.
        requests: Example requests by tool name.
        embedding: Function from [N] texts to [N, D] vectors; required unless `mode` is `words`.
        mode: Search by `words` (BM25), `vectors` or `both`.
    """

    def __init__(
        self,
        specs: Sequence[ToolSpec],
        *,
        requests: Mapping[str, Sequence[str]] = MappingProxyType({}),
        embedding: Embedding | None = None,
        mode: Literal["words", "vectors", "both"] = "words",
    ) -> None:
        texts = ((spec.name, " ".join((_describe_spec(spec), *requests.get(spec.name, ())))) for spec in specs)
        self._index, self.mode = in_memory(texts, embedding if mode != "words" else None), mode

    def search(self, query: str, count: int) -> list[str]:
        """Return the names of the best `count` tools for a query, best first."""
        return [hit.passage.id for hit in self._index.search(query, count, self.mode)]

    def search_all(self, queries: Sequence[str], count: int) -> list[str]:
        """Return the names of the best `count` tools for several queries, by reciprocal rank fusion."""
        if len(queries) == 1:
            return self.search(queries[0], count)
        rankings = [self._index.search(query, 4 * count, self.mode) for query in queries]
        return [hit.passage.id for hit in fuse_rankings(rankings, count)]


def split_clauses(query: str) -> list[str]:
    """Split a request into its clauses, at punctuation and at "and" or "then"; empty if there is only one.

    >>> split_clauses("Book a flight to Rome, and then reserve a hotel.")
    ['Book a flight to Rome', 'reserve a hotel']
    """
    parts = [part.strip() for part in re.split(r"[.,;:?!\n]|\b(?:and|then|also)\b", query, flags=re.IGNORECASE)]
    clauses = [part for part in parts if part]
    return clauses if len(clauses) > 1 else []


def recall_at_k(names: Sequence[str], needed: Iterable[str], k: int) -> float:
    """Return the fraction of needed tools in the first `k` tools; 1 if no tool is needed.

    Args:
        names: Names of found tools, best first.
        needed: Names of needed tools.
        k: Number of found tools that count.

    Source: Toolshed 2024, arXiv:2410.14594.
    """
    required = set(needed)
    return len(required & set(names[:k])) / len(required) if required else 1.0


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
    """Read tool declarations in the OpenAI format from a JSON Lines file; see `documents_in`."""
    return [spec for spec, _ in documents_in(file)]


def documents_in(file: str) -> list[tuple[ToolSpec, tuple[str, ...]]]:
    """Read tool declarations with their example requests from a JSON Lines file.

    Raises:
        TaskError: If the file does not exist, a line is not a tool, or two tools share a name.
    """
    documents: dict[str, tuple[ToolSpec, tuple[str, ...]]] = {}
    for number, row in enumerate(read_lines(file), 1):
        try:
            spec = ToolSpec.from_openai(row)
        except ValueError as error:
            raise TaskError(f"{file}:{number}: {error}") from None
        requests = row.get("requests", [])
        if not isinstance(requests, list) or not all(isinstance(text, str) for text in requests):
            raise TaskError(f"{file}:{number}: requests: must be a list of texts, got {str(requests)[:80]}")
        if spec.name in documents:
            raise TaskError(f'{file}:{number}: a second tool is named "{spec.name}"; rename one of them')
        documents[spec.name] = spec, tuple(requests)
    return list(documents.values())


def _describe_spec(spec: ToolSpec) -> str:
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", spec.name).replace("_", " ").replace("-", " ")
    properties = spec.properties
    about = " ".join(f"{name.replace('_', ' ')} {inner.get('description', '')}" for name, inner in properties.items())
    return f"{words} {words} {spec.description} {about}"


async def _confirm_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}: done for {arguments['number']}"


async def _look_up_result(answers: Answers | None, name: str, arguments: dict[str, Any]) -> Any:
    if answers is None:
        raise ToolError(f"{name} has no answers; the catalogue was given none")
    return await answers.answer(name, arguments)
