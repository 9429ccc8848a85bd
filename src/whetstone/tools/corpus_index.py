"""Search index of a corpus with BM25 and vectors: built once, stored on disk, memory-mapped by every process.

Words are indexed with BM25 (Tantivy) and vectors with usearch, if an embedding is set. Both are combined by rank.
Because the files are memory-mapped, an index of millions of passages costs a process almost no memory until it is
searched.

Note:
    An index must not outlive its corpus. Its name is a hash of the files and of all settings, so that a changed corpus
    has a new index.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from whetstone.cache_dir import cache_dir
from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.tools.corpus import Passage, list_files, read_passages

Embedding = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Function from [N] texts to [N, D] vectors."""
_Item = TypeVar("_Item")
RANK_CONSTANT = 60
_BATCH = 256
_MOST_QUERY_WORDS = 64


@dataclass(frozen=True, slots=True)
class Hit:
    """Search result: a passage with its score."""

    passage: Passage
    """Passage that was found."""
    score: float
    """Score of the search method; higher is better, and scores of different methods are not comparable."""


def build_index(
    corpus: Path, *, words: int, embedding: Embedding | None, name: str, folder: Path | None = None
) -> Index:
    """Return the index of a corpus; build and store it if it does not exist.

    Args:
        corpus: Folder, or a single file.
        words: Maximum number of words per passage.
        embedding: Function from [N] texts to [N, D] vectors; None: search only by words.
        name: Name that identifies the embedding.
        folder: Folder of the indexes; None: the user's cache folder.

    Raises:
        TaskError: If the corpus cannot be read.
        RecipeError: If the search library is not installed.
    """
    made_of = hashlib.sha256(f"{corpus.resolve()} {words} {name} {_tantivy().__version__}".encode())
    for path in list_files(corpus):
        state = path.stat()
        made_of.update(f"{path} {state.st_size} {state.st_mtime_ns}".encode())
    parent = folder or cache_dir() / "indexes"
    place = parent / made_of.hexdigest()[:24]
    if not place.is_dir():
        write_index(place, read_passages(corpus, words=words), embedding)
    return open_index(place, embedding)


def write_index(place: Path, passages: Iterable[Passage], embedding: Embedding | None = None) -> None:
    """Build an index and write it atomically: another process sees it complete or not at all.

    Args:
        place: Folder of the index.
        passages: Passages in order.
        embedding: Function from [N] texts to [N, D] vectors; None: index only words.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=place.parent, prefix=".building-"))
    try:
        (aside / "words").mkdir()
        index = _tantivy().Index(_schema(), path=str(aside / "words"))
        writer = index.writer(heap_size=256 << 20, num_threads=1)
        vectors: Any = None
        number = 0
        for batch in _batches(passages):
            for passage in batch:
                writer.add_document(_document(passage, number))
                number += 1
            if embedding is not None:
                batch_vectors = embedding([f"{passage.title}\n{passage.text}" for passage in batch])
                if vectors is None:
                    vectors = _usearch().Index(ndim=batch_vectors.shape[1], metric="cos")
                vectors.add(np.arange(number - len(batch), number), batch_vectors)
        writer.commit()
        writer.wait_merging_threads()
        if vectors is not None:
            vectors.save(str(aside / "vectors"))
        try:
            aside.rename(place)
        except OSError:
            if not place.is_dir():  # unless another process has built it meanwhile
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@functools.cache
def open_index(place: Path, embedding: Embedding | None = None) -> Index:
    """Return an existing index; opened once per process."""
    vectors = _usearch().Index.restore(str(place / "vectors"), view=True) if embedding is not None else None
    return Index(_tantivy().Index.open(str(place / "words")), vectors, embedding)


def in_memory(texts: Iterable[tuple[str, str]], embedding: Embedding | None = None) -> Index:
    """Return an index of (id, text) pairs that exists only in memory; with vectors if there is an embedding."""
    texts = list(texts)
    index = _tantivy().Index(_schema())
    writer = index.writer(heap_size=64 << 20, num_threads=1)
    for number, (id, text) in enumerate(texts):
        writer.add_document(_document(Passage(id, "", text), number))
    writer.commit()
    index.reload()
    if embedding is None or not texts:
        return Index(index)
    vectors = np.concatenate([embedding([text for _, text in batch]) for batch in _batches(texts)])
    index_of_vectors = _usearch().Index(ndim=vectors.shape[1], metric="cos")
    index_of_vectors.add(np.arange(len(texts)), vectors)
    return Index(index, index_of_vectors, embedding)


def fuse_rankings(rankings: Iterable[Sequence[Hit]], count: int) -> list[Hit]:
    """Return the best `count` passages by reciprocal rank fusion: the sum of 1 / (60 + rank) over the rankings.

    Equal scores are sorted by id.

    Source: reciprocal rank fusion, 2009, https://doi.org/10.1145/1571941.1572114.
    """
    scores: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for hits in rankings:
        for rank, hit in enumerate(hits, 1):
            scores[hit.passage.id] = scores.get(hit.passage.id, 0.0) + 1 / (RANK_CONSTANT + rank)
            passages[hit.passage.id] = hit.passage
    best = sorted(scores, key=lambda id: (-scores[id], id))[:count]
    return [Hit(passages[id], scores[id]) for id in best]


class Index:
    """Search index of passages, by words (BM25), by vectors, or by both.

    Args:
        words: Tantivy index of the words.
        vectors: usearch index of the vectors; None: search only by words.
        embedding: Function that made the vectors.
    """

    def __init__(self, words: Any, vectors: Any = None, embedding: Embedding | None = None) -> None:
        self._index, self._searcher = words, words.searcher()
        self._vectors, self._embedding = vectors, embedding

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def by_words(self, query: str, count: int) -> list[Hit]:
        """Return the best `count` passages by BM25; empty if the query has no word."""
        words = re.findall(r"\w+", query)[:_MOST_QUERY_WORDS]
        if not words:
            return []
        parsed = self._index.parse_query(" ".join(word.lower() for word in words), ["title", "text"])
        return [Hit(self._passage(place), score) for score, place in self._searcher.search(parsed, count).hits]

    def by_vectors(self, query: str, count: int) -> list[Hit]:
        """Return the nearest `count` passages by cosine similarity; requires an embedding."""
        assert self._vectors is not None
        assert self._embedding is not None
        matches = self._vectors.search(self._embedding([query])[0], count)
        by_key = (
            (int(key), 1.0 - float(distance)) for key, distance in zip(matches.keys, matches.distances, strict=True)
        )
        return [Hit(passage, score) for key, score in by_key if (passage := self._find_by_number(key)) is not None]

    def by_both(self, query: str, count: int) -> list[Hit]:
        """Return the best `count` passages by reciprocal rank fusion of both searches; see `fuse_rankings`."""
        return fuse_rankings((self.by_words(query, 4 * count), self.by_vectors(query, 4 * count)), count)

    def search(self, query: str, count: int, mode: Literal["words", "vectors", "both"]) -> list[Hit]:
        """Return the best `count` passages by `words`, `vectors` or `both`."""
        methods = {"words": self.by_words, "vectors": self.by_vectors, "both": self.by_both}
        return methods[mode](query, count)

    def get_passage(self, id: str) -> Passage | None:
        """Return the passage with an id; None if it does not exist."""
        query = _tantivy().Query.term_query(self._index.schema, "id", id)
        hits = self._searcher.search(query, 1).hits
        return self._passage(hits[0][1]) if hits else None

    def _find_by_number(self, number: int) -> Passage | None:
        query = _tantivy().Query.term_query(self._index.schema, "number", number)
        hits = self._searcher.search(query, 1).hits
        return self._passage(hits[0][1]) if hits else None

    def _passage(self, place: Any) -> Passage:
        document = self._searcher.doc(place)
        return Passage(document.get_first("id"), document.get_first("title") or "", document.get_first("text") or "")


def _schema() -> Any:
    builder = _tantivy().SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw")
    builder.add_text_field("title", stored=True, tokenizer_name="en_stem")
    builder.add_text_field("text", stored=True, tokenizer_name="en_stem")
    builder.add_unsigned_field("number", indexed=True)
    return builder.build()


def _document(passage: Passage, number: int) -> Any:
    fields = {"id": passage.id, "title": passage.title, "text": passage.text, "number": number}
    return _tantivy().Document.from_dict(fields, _schema())


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError:
        raise RecipeError(f"search requires Tantivy: {install_command('search')}") from None
    return tantivy


def _usearch() -> Any:
    try:
        import usearch.index
    except ImportError:
        raise RecipeError(f"vector search requires usearch: {install_command('search')}") from None
    return usearch.index
