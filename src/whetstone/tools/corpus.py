"""Chunking of a corpus into passages: documents by paragraphs, JSON Lines by line.

Text, Markdown, HTML and reStructuredText are supported.

Note:
    A passage that is cut in the middle of a sentence answers nothing. Paragraphs stay whole if they fit, and are joined
    until they fill a passage.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import orjson

from whetstone.errors import TaskError

SUFFIXES = frozenset({".txt", ".md", ".rst", ".html", ".htm", ".py", ".jsonl"})


@dataclass(frozen=True, slots=True)
class Passage:
    """Chunk of a document, the unit of search results."""

    id: str
    """Identifier, unique in the corpus: name of the document, `#`, number of the chunk."""
    title: str
    """Title of the document; may be empty."""
    text: str
    """Text of the passage."""


def list_files(corpus: Path) -> list[Path]:
    """Return all readable files of a corpus, sorted by name.

    Args:
        corpus: Folder, or a single file.

    Raises:
        TaskError: If the folder or file does not exist, or the folder has no readable file.
    """
    if corpus.is_file():
        return [corpus]
    files = sorted(path for path in corpus.rglob("*") if path.is_file() and path.suffix.lower() in SUFFIXES)
    if not files:
        known = ", ".join(sorted(SUFFIXES))
        what = f"no file with a suffix of {known}" if corpus.exists() else "no such folder"
        raise TaskError(f"{corpus}: {what}")
    return files


def read_passages(corpus: Path, *, words: int) -> Iterator[Passage]:
    """Yield the passages of a corpus, each with at most `words` words.

    A line of JSON Lines is a document: `text` or `contents`, with optional `title` and `id`.

    Args:
        corpus: Folder, or a single file.
        words: Maximum number of words per passage.

    Raises:
        TaskError: If a line of JSON Lines is not a document.
    """
    for path in list_files(corpus):
        name = path.name if corpus.is_file() else str(path.relative_to(corpus))
        if path.suffix.lower() == ".jsonl":
            yield from _lines(path, name, words)
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        title = name
        if path.suffix.lower() in (".html", ".htm"):
            reader = _Text()
            reader.feed(text)
            text, title = reader.text(), reader.title.strip() or name
        for number, piece in enumerate(split_paragraphs(text, words)):
            yield Passage(f"{name}#{number}", title, piece)


def split_paragraphs(text: str, words: int) -> Iterator[str]:
    """Yield consecutive paragraphs joined up to `words` words.

    A longer paragraph is split between words.
    """
    paragraphs: list[str] = []
    count = 0
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = paragraph.strip("\n")
        size = len(paragraph.split())
        if not size:
            continue
        if paragraphs and count + size > words:
            yield "\n\n".join(paragraphs)
            paragraphs, count = [], 0
        while size > words:
            tokens = list(re.finditer(r"\S+", paragraph))
            cut = tokens[words].start()
            yield paragraph[:cut].rstrip()
            paragraph, size = paragraph[cut:], size - words
        paragraphs.append(paragraph)
        count += size
    if paragraphs:
        yield "\n\n".join(paragraphs)


def _lines(path: Path, name: str, words: int) -> Iterator[Passage]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
                text = row.get("text", row.get("contents"))
            except (ValueError, AttributeError):
                raise TaskError(f"{path}:{number}: not a JSON object") from None
            if not isinstance(text, str):
                raise TaskError(f'{path}:{number}: a document requires "text" or "contents", got {", ".join(row)}')
            document = str(row.get("id", f"{name}:{number}"))
            cut = list(split_paragraphs(text, words))
            for piece, passage in enumerate(cut):
                yield Passage(document if len(cut) == 1 else f"{document}#{piece}", str(row.get("title", "")), passage)


class _Text(HTMLParser):
    """HTML parser that extracts the visible text and the title of a page."""

    _BLOCKS = frozenset(
        {"p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "dt", "dd", "br"}
    )
    _UNSEEN = frozenset({"script", "style", "nav", "head"})

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self._said: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._UNSEEN or tag == "title":
            self._inside.append(tag)
        if tag in self._BLOCKS:
            self._said.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            del self._inside[self._inside.index(tag) :]

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "title":
            self.title += data
        elif not self._inside:
            self._said.append(data)

    def text(self) -> str:
        return html.unescape("".join(self._said))
