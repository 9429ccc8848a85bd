"""Looking things up in a corpus of one's own: `search` finds passages, `open` shows one with what is around it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import httpx2

from whetstone.errors import InfrastructureError, RecipeError, ToolError, explained
from whetstone.network import Answer, asked, trusted
from whetstone.plugins import find_part
from whetstone.tools.backend_failures import BackendError, is_retryable, is_sent
from whetstone.tools.blame import blamed
from whetstone.tools.index import Embedding, Hit, Index, built_index
from whetstone.tools.schema import Tool, tool_from_function

_MOST_RESULTS = 20
_SNIPPET_CHARACTERS = 300


class Search:
    """Search in a folder of documents: two tools, `search` and `open`. The index is built once and kept.

    Args:
        corpus: A folder of text, Markdown, HTML, reStructuredText and JSON Lines, or one such file.
        embedding: A folder with an encoder, or `package.module:function` that makes vectors of texts; null: words
            alone.
        mode: By what passages are found; null: by both where there is an embedding, else by words.
        words: Most words of a passage.
        index: The folder indexes are kept in; null: with the user's caches.

    Raises:
        TaskError: The corpus cannot be read.
        RecipeError: `mode` asks for vectors and there is no embedding, or a library is not installed.
    """

    effects = "read"
    stateless = True

    def __init__(
        self,
        *,
        corpus: str,
        embedding: str | None = None,
        mode: Literal["words", "vectors", "both"] | None = None,
        words: int = 200,
        index: str | None = None,
    ) -> None:
        self.mode = mode or ("both" if embedding else "words")
        if self.mode != "words" and embedding is None:
            raise RecipeError(f"search by {self.mode} needs an `embedding`")
        self.index = _index(corpus, embedding, words, index)

    def tools(self) -> list[Tool]:
        """Both tools; the second is called `open`."""
        return [tool_from_function(self.search), tool_from_function(self.open_passage).named("open")]

    def search(self, query: str, count: int = 5) -> str:
        """Find passages of the documents.

        Args:
            query: What to look for, in a few words.
            count: How many results, up to 20.
        """
        found: list[Hit] = {"words": self.index.by_words, "vectors": self.index.by_vectors, "both": self.index.by_both}[
            self.mode
        ](query, max(1, min(count, _MOST_RESULTS)))
        if not found:
            return "nothing found"
        return "\n\n".join(_shown(hit) for hit in found)

    def open_passage(self, id: str) -> str:
        """Show a passage whole, and the ones before and behind it.

        Args:
            id: As `search` gave it.
        """
        passage = self.index.passage(id)
        if passage is None:
            raise ToolError(f'there is no passage "{id}"; ids come from search')
        document, _, number = id.rpartition("#")
        around = [passage]
        if document and number.isdigit():
            before, behind = (self.index.passage(f"{document}#{int(number) + step}") for step in (-1, 1))
            around = [piece for piece in (before, passage, behind) if piece is not None]
        return f"{passage.title}\n\n" + "\n\n".join(piece.text for piece in around)


class HttpSearch:
    """Search by a server that others run: one tool, `search`.

    The server is asked with `POST url {"query": …, "count": …}` and answers with `{"results": [{"title", "text"}, …]}`;
    a list of lists under `result`, as retrieval servers of the field give it, is read, too.

    Args:
        url: Where it is.
        timeout_seconds: How long it may take.
    """

    effects = "read"
    stateless = True

    def __init__(self, *, url: str, timeout_seconds: float = 10.0) -> None:
        self.url, self.timeout_seconds = url, timeout_seconds

    async def search(self, query: str, count: int = 5) -> str:
        """Find passages.

        Args:
            query: What to look for, in a few words.
            count: How many results, up to 20.
        """
        question = {"query": query, "count": max(1, min(count, _MOST_RESULTS))}
        try:
            answer = await self._post(question)
        except httpx2.HTTPError as error:
            raise self._error(explained(error), was_sent=is_sent(error)) from None
        if answer.status >= 300:
            after = answer.headers.get("retry-after")
            failed = self._error(f"status {answer.status}", status=answer.status, retry_after=after)
            blame = failed.blame
            raise failed if is_retryable(answer.status) or blame is None else await blame()
        try:
            said = answer.json()
            results = said["results"] if "results" in said else said["result"][0]
            return "\n\n".join(_as_text(result) for result in results) or "nothing found"
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InfrastructureError(f"the search server {self.url}: {explained(error)}") from None

    async def _post(self, question: dict[str, Any]) -> Answer:
        async with httpx2.AsyncClient(timeout=self.timeout_seconds, verify=trusted()) as client:
            return await asked(client, "POST", self.url, seconds=self.timeout_seconds, json=question)

    def _error(self, failure: str, **options: Any) -> BackendError:
        """Return the error of a search that failed; a search for one word decides whether the server is down."""
        failure = f"the search server {self.url}: {failure}"
        plain = functools.partial(self._post, {"query": "word", "count": 1})
        return BackendError(failure, blame=functools.partial(blamed, failure, plain, below=400), **options)


def _as_text(result: object) -> str:
    if isinstance(result, dict):
        inner = result.get("document", result)
        if isinstance(inner, dict):
            text = str(inner.get("text", inner.get("contents", "")))
            return "\n".join(filter(None, (str(inner.get("title", "")), text)))
        return str(inner)
    return str(result)


def _shown(hit: Hit) -> str:
    text = " ".join(hit.passage.text.split())
    snippet = text if len(text) <= _SNIPPET_CHARACTERS else f"{text[:_SNIPPET_CHARACTERS]} …"
    return f"[{hit.passage.id}] {hit.passage.title}\n{snippet}"


@functools.cache
def _index(corpus: str, embedding: str | None, words: int, index: str | None) -> Index:
    found: Embedding | None = None
    if embedding is not None and ":" in embedding:
        found = find_part("embedding", embedding, {})
    elif embedding is not None:
        found = find_part("embedding", "whetstone.tools.embedding:encoder_in", {})(embedding)
    folder = Path(index) if index is not None else None
    return built_index(Path(corpus), words=words, embedding=found, name=embedding or "", folder=folder)
