"""Search tools: `search` and `open` in a custom corpus, and `search` by a retrieval server."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import httpx2

from whetstone.errors import InfrastructureError, RecipeError, ToolError, summarize_exception
from whetstone.network import BoundedResponse, fetch_bounded, ssl_context
from whetstone.plugins import find_part
from whetstone.tools.backend_failures import BackendError, is_retryable, is_sent
from whetstone.tools.corpus_index import Embedding, Hit, Index, build_index
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.server_health import classify_failure

_MOST_RESULTS = 20
_SNIPPET_CHARACTERS = 300


class Search:
    """Search in a folder of documents: two tools, `search` and `open`. The index is built once and cached.

    Args:
        corpus: Folder of text, Markdown, HTML, reStructuredText and JSON Lines, or one such file.
        embedding: Folder with an encoder, or `package.module:function` that maps texts to vectors; null: search only by
            words.
        mode: Search by `words`, `vectors` or `both`; null: both if there is an embedding, otherwise words.
        words: Maximum number of words per passage.
        index: Folder of the indexes; null: the user's cache folder.

    Raises:
        TaskError: If the corpus cannot be read.
        RecipeError: If `mode` requires vectors and there is no embedding, or a library is not installed.
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
            raise RecipeError(f"search: mode {self.mode} requires an `embedding`")
        self.index = _index(corpus, embedding, words, index)

    def tools(self) -> list[Tool]:
        """Return both tools; `open_passage` is named `open` for the model."""
        return [tool_from_function(self.search), tool_from_function(self.open_passage).named("open")]

    def search(self, query: str, count: int = 5) -> str:
        """Find passages of the documents.

        Args:
            query: What to look for, in a few words.
            count: How many results, up to 20.
        """
        hits = self.index.search(query, max(1, min(count, _MOST_RESULTS)), self.mode)
        if not hits:
            return "nothing found"
        return "\n\n".join(_format_results(hit) for hit in hits)

    def open_passage(self, id: str) -> str:
        """Show a passage whole, and the ones before and behind it.

        Args:
            id: As `search` gave it.
        """
        passage = self.index.get_passage(id)
        if passage is None:
            raise ToolError(f'there is no passage "{id}"; ids come from search')
        document, _, number = id.rpartition("#")
        around = [passage]
        if document and number.isdigit():
            before, after = (self.index.get_passage(f"{document}#{int(number) + step}") for step in (-1, 1))
            around = [piece for piece in (before, passage, after) if piece is not None]
        return f"{passage.title}\n\n" + "\n\n".join(piece.text for piece in around)


class HttpSearch:
    """Search by a retrieval server: one tool, `search`.

    The request is `POST url {"query": …, "count": …}`, the response `{"results": [{"title", "text"}, …]}`. A list of
    lists under `result`, as other retrieval servers return it, is also accepted.

    Args:
        url: Address of the server.
        timeout_seconds: Time limit of a search, in seconds.
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
            raise self._error(summarize_exception(error), was_sent=is_sent(error)) from None
        if answer.status >= 300:
            after = answer.headers.get("retry-after")
            failed = self._error(f"status {answer.status}", status=answer.status, retry_after=after)
            blame = failed.blame
            raise failed if is_retryable(answer.status) or blame is None else await blame()
        try:
            body = answer.json()
            results = body["results"] if "results" in body else body["result"][0]
            return "\n\n".join(_as_text(result) for result in results) or "nothing found"
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InfrastructureError(f"the search server {self.url}: {summarize_exception(error)}") from None

    async def _post(self, question: dict[str, Any]) -> BoundedResponse:
        async with httpx2.AsyncClient(timeout=self.timeout_seconds, verify=ssl_context()) as client:
            return await fetch_bounded(client, "POST", self.url, seconds=self.timeout_seconds, json=question)

    def _error(self, failure: str, **options: Any) -> BackendError:
        """Return the error of a failed search.

        A search for one word decides later whether the server is down.
        """
        failure = f"the search server {self.url}: {failure}"
        plain = functools.partial(self._post, {"query": "word", "count": 1})
        return BackendError(failure, blame=functools.partial(classify_failure, failure, plain, below=400), **options)


def _as_text(result: object) -> str:
    if isinstance(result, dict):
        inner = result.get("document", result)
        if isinstance(inner, dict):
            text = str(inner.get("text", inner.get("contents", "")))
            return "\n".join(filter(None, (str(inner.get("title", "")), text)))
        return str(inner)
    return str(result)


def _format_results(hit: Hit) -> str:
    text = " ".join(hit.passage.text.split())
    snippet = text if len(text) <= _SNIPPET_CHARACTERS else f"{text[:_SNIPPET_CHARACTERS]} …"
    return f"[{hit.passage.id}] {hit.passage.title}\n{snippet}"


@functools.cache
def _index(corpus: str, embedding: str | None, words: int, index: str | None) -> Index:
    encoder = load_embedding(embedding) if embedding is not None else None
    folder = Path(index) if index is not None else None
    return build_index(Path(corpus), words=words, embedding=encoder, name=embedding or "", folder=folder)


def load_embedding(name: str) -> Embedding:
    """Return an embedding: `package.module:function`, or the encoder of a folder.

    Raises:
        RecipeError: If the function or the encoder does not exist.
    """
    if ":" in name:
        return find_part("embedding", name, {})  # type: ignore[no-any-return]
    return find_part("embedding", "whetstone.tools.embedding:encoder_in", {})(name)  # type: ignore[no-any-return]
