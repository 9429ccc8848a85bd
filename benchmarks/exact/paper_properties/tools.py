"""Tools: code that calls tools, catalogs of tools, and tools whose calls can be undone."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.chat import ToolCall
from whetstone.environments.built_in.knapsack import Knapsack, KnapsackTasks
from whetstone.tasks.tool_requests import ToolRequests
from whetstone.tools import Python, Toolset
from whetstone.tools.generated_tools import generate_tools
from whetstone.tools.tool_retrieval import Finder, recall_at_k, split_clauses
from whetstone.trajectory import Task

_INSPECT = "items = {n: tools.inspect(n) for n in range(1, COUNT + 1)}"
_PARSE = (
    "parsed = {n: [int(w.strip(',')) for w in text.split() if w.strip(',').isdigit()] for n, text in items.items()}"
)
_CHOOSE = """from itertools import combinations
capacity, most = [int(w.strip(',')) for w in tools.rules().split() if w.strip(',').isdigit()]
sets = [s for n in range(1, most + 1) for s in combinations(parsed, n) if sum(parsed[i][0] for i in s) <= capacity]
tools.pack(list(max(sets, key=lambda s: sum(parsed[i][1] for i in s))))"""


async def _play(task: Task, persistence: str, repeats_state: bool) -> tuple[bool, int, int]:
    """Solve a knapsack by three calls of code; return (solved, missing variables, characters of code).

    A script for a persistent interpreter uses the names of earlier calls. A script for a new interpreter per call
    repeats the state that it has printed as a literal.
    """
    toolset = Toolset(
        [Python(persistence=persistence, sandbox="unsafe", max_tool_calls=20), Knapsack]  # type: ignore[arg-type]
    )
    await toolset.open(task, seed=0)
    missing, characters, state = 0, 0, ""
    count = len(task.private["items"])
    for code, name in ((_INSPECT.replace("COUNT", str(count)), "items"), (_PARSE, "parsed"), (_CHOOSE, "")):
        source = f"{state}{code}" + (f"\n{name}" if repeats_state and name else "")
        answer = await toolset.call(ToolCall("python", json.dumps({"code": source})))
        missing += "NameError" in answer.text
        characters += len(source)
        state = f"{name} = {answer.text}\n" if repeats_state else ""
    verdict = await toolset.verdict()
    await toolset.close()
    return bool(verdict["success"]), missing, characters


@exact(
    "agents-learn-their-runtime",
    of=[Python, Knapsack],
    note="scripts in the two styles replace the two trained policies",
)
def missing_variables_are_of_one_cell_of_four() -> list[Figure]:
    """Code that relies on lasting variables fails in a new interpreter per call and nowhere else; code that repeats its
    state works in both and is longer."""
    source = KnapsackTasks(seed=0, levels=[2])
    tasks = [source.task(index) for index in range(4)]

    async def play_all() -> dict[tuple[bool, str], list[tuple[bool, int, int]]]:
        return {
            (repeats, persistence): [await _play(task, persistence, repeats) for task in tasks]
            for repeats in (False, True)
            for persistence in ("persistent", "reset")
        }

    cells = asyncio.run(play_all())

    def total(repeats: bool, persistence: str, column: int) -> int:
        return sum(int(row[column]) for row in cells[repeats, persistence])

    return [
        Figure("solved of 4, lasting variables in a persistent interpreter", "=", 4, total(False, "persistent", 0)),
        Figure("missing variables there", "=", 0, total(False, "persistent", 1)),
        Figure("solved of 4, the same code with a new interpreter per call", "=", 0, total(False, "reset", 0)),
        Figure("missing variables there, two of three calls", "=", 8, total(False, "reset", 1)),
        Figure("solved of 4, repeated state in a new interpreter per call", "=", 4, total(True, "reset", 0)),
        Figure("solved of 4, repeated state in a persistent interpreter", "=", 4, total(True, "persistent", 0)),
        Figure("missing variables in both", "=", 0, total(True, "reset", 1) + total(True, "persistent", 1)),
        Figure("characters of code with repeated state, of code without", ">", 1.0,
               total(True, "reset", 2) / total(False, "persistent", 2)),
    ]  # fmt: skip


def _trigram_vectors(texts: Sequence[str]) -> Any:
    """Return normalized counts of hashed letter trigrams, an embedding without a model."""
    vectors = np.zeros((len(texts), 512), dtype=np.float32)
    for row, text in enumerate(texts):
        low = f" {text.lower()} "
        for start in range(len(low) - 2):
            vectors[row, zlib.crc32(low[start : start + 3].encode()) % 512] += 1
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


@exact(
    "toolshed",
    of=[Finder, split_clauses, recall_at_k],
    note="generated tools and requests: half of a request's words are synonyms that no description contains; vectors "
    "are letter trigrams, and expansion splits clauses instead of asking a model",
)
def enriched_documents_and_expansion_raise_recall() -> list[Figure]:
    """In a catalog of 500 tools, example requests raise Recall@5 of requests for two or three tools over the plain
    search by words or vectors, and query expansion raises it further. The words of a tool's name always find it."""
    tools = generate_tools(500)
    specs, requests = [spec for spec, _ in tools], {spec.name: texts for spec, texts in tools}
    source = ToolRequests(levels=[2, 3])
    tasks = [source.task(index) for index in range(200)]
    plain, enriched = Finder(specs), Finder(specs, requests=requests)
    vectors = Finder(specs, embedding=_trigram_vectors, mode="vectors")

    def recall(finder: Finder, *, expand: bool) -> float:
        return fmean(
            recall_at_k(
                finder.search_all([task.prompt, *(split_clauses(task.prompt) if expand else [])], 5),
                task.private["tools"],
                5,
            )
            for task in tasks
        )

    by_words, by_requests = recall(plain, expand=False), recall(enriched, expand=False)
    by_name = fmean(recall_at_k(plain.search(spec.name.replace("_", " "), 5), [spec.name], 5) for spec in specs)
    return [
        Figure("Recall@5 of a query with the words of a tool's name", "=", 1.0, by_name),
        Figure("Recall@5 with example requests, over BM25", ">", by_words, by_requests),
        Figure("the same, over vectors", ">", recall(vectors, expand=False), by_requests),
        Figure("Recall@5 with example requests and expansion", ">", by_requests, recall(enriched, expand=True)),
        Figure("Recall@5 with expansion and without examples, over BM25", ">=", by_words, recall(plain, expand=True)),
    ]
