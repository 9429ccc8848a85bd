"""How does a folder become passages? Text, Markdown, HTML and reStructuredText by paragraphs, JSON Lines by line.

Easy to get wrong: a passage that is cut in the middle of a sentence answers nothing. Paragraphs are kept whole as long
as they fit, and put together until they fill a passage.
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
    """A piece of a document."""

    id: str
    """Unique in the corpus: the document's name, `#`, the number of the piece."""
    title: str
    text: str


def files_of(corpus: Path) -> list[Path]:
    """Every file that can be read, in the order of their names.

    Raises:
        TaskError: There is no such folder or file, or nothing in it that can be read.
    """
    if corpus.is_file():
        return [corpus]
    files = sorted(path for path in corpus.rglob("*") if path.is_file() and path.suffix.lower() in SUFFIXES)
    if not files:
        known = ", ".join(sorted(SUFFIXES))
        what = f"there is no file that ends in {known}" if corpus.exists() else "there is no such folder"
        raise TaskError(f"{corpus}: {what}")
    return files


def passages_of(corpus: Path, *, words: int) -> Iterator[Passage]:
    """The passages of a folder or a file, none longer than so many words.

    A line of JSON Lines is a document: `text` or `contents`, and `title` and `id` if there are any.

    Raises:
        TaskError: A line that is none.
    """
    for path in files_of(corpus):
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
        for number, piece in enumerate(pieces(text, words)):
            yield Passage(f"{name}#{number}", title, piece)


def pieces(text: str, words: int) -> Iterator[str]:
    """Whole paragraphs put together up to a number of words; a longer paragraph is cut between words."""
    held: list[str] = []
    count = 0
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = paragraph.strip("\n")
        size = len(paragraph.split())
        if not size:
            continue
        if held and count + size > words:
            yield "\n\n".join(held)
            held, count = [], 0
        while size > words:
            found = list(re.finditer(r"\S+", paragraph))
            cut = found[words].start()
            yield paragraph[:cut].rstrip()
            paragraph, size = paragraph[cut:], size - words
        held.append(paragraph)
        count += size
    if held:
        yield "\n\n".join(held)


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
                raise TaskError(f'{path}:{number}: a document has "text" or "contents", this has {", ".join(row)}')
            document = str(row.get("id", f"{name}:{number}"))
            cut = list(pieces(text, words))
            for piece, passage in enumerate(cut):
                yield Passage(document if len(cut) == 1 else f"{document}#{piece}", str(row.get("title", "")), passage)


class _Text(HTMLParser):
    """What a page says, without its markup."""

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
