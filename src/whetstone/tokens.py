"""Tokens: ids with the media (images) that some of them are placeholders for, and columns per token.

    ids    1  2  9  9  9  3        9: the placeholder token of images
    media        [ image  ]        start 2, length 3, digest of its content
    keys   1  2  k₀ k₁ k₂ 3        k: derived from the digest

Two sequences may have equal ids and different images. Caches, prefix trees and routers therefore compare `keys`, never
`ids`. If a sequence has no media, `keys` is the same tuple as `ids`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

_KEY_BIT = 1 << 62
"""Set in every key of a medium: above any token id, and still a positive 64-bit integer."""


@dataclass(frozen=True, slots=True)
class Media:
    """One image in a token sequence."""

    start: int
    """Index of its first placeholder token."""
    length: int
    """Number of its placeholder tokens, 1 or more."""
    digest: str
    """Digest of its content; media with equal digests are the same."""
    payload: Any = field(default=None, compare=False, repr=False)
    """Content that a model reads, such as pixel values, or a reference to it; None if only the digest is known."""

    @property
    def end(self) -> int:
        """Index after its last placeholder token."""
        return self.start + self.length


@dataclass(frozen=True, slots=True, eq=False, init=False)
class TokenSequence:
    """A sequence of tokens, compared and hashed by `keys`.

    Args:
        ids: [T] token ids, placeholder tokens included.
        media: In order, without overlap.

    Raises:
        ValueError: Media overlap, are out of order, or extend beyond the tokens.
    """

    ids: tuple[int, ...]
    """[T] token ids."""
    media: tuple[Media, ...]
    """Media of the placeholder tokens, in order."""
    keys: tuple[int, ...]
    """[T] ids; for a placeholder token an integer derived from the digest, its index in the span and the length."""

    def __init__(self, ids: Iterable[int] = (), media: Iterable[Media] = ()) -> None:
        ids, media = tuple(ids), tuple(media)
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "media", media)
        object.__setattr__(self, "keys", keys_of(ids, media))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return self.keys == other.keys if isinstance(other, TokenSequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.keys)

    def __getitem__(self, span: slice) -> TokenSequence:
        """Return the tokens of a contiguous span."""
        start, end, step = span.indices(len(self.ids))
        if step != 1:
            raise ValueError(f"a token sequence has contiguous spans only, got step {step}")
        return TokenSequence(self.ids[start:end], media_within(self.media, start, end))

    def __add__(self, other: TokenSequence) -> TokenSequence:
        return TokenSequence(self.ids + other.ids, self.media + shift_media(other.media, len(self.ids)))

    def startswith(self, prefix: TokenSequence) -> bool:
        """Return whether the first tokens and media equal those of `prefix`."""
        return self.keys[: len(prefix.keys)] == prefix.keys


def keys_of(ids: tuple[int, ...], media: tuple[Media, ...]) -> tuple[int, ...]:
    """Return what identifies each token: see `TokenSequence.keys`.

    Raises:
        ValueError: Media overlap, are out of order, or extend beyond the tokens.
    """
    if not media:
        return ids
    check_spans(media, len(ids))
    keys = list(ids)
    for each in media:
        keys[each.start : each.end] = _keys_of_media(each.digest, each.length)
    return tuple(keys)


def check_spans(media: tuple[Media, ...], length: int) -> None:
    """Check the positions of media in a sequence of `length` tokens.

    Raises:
        ValueError: Media overlap, are out of order, or extend beyond the tokens.
    """
    end = 0
    for each in media:
        if each.length < 1 or not end <= each.start <= each.end <= length:
            raise ValueError(
                f"media at tokens {each.start} to {each.end} of {length}: spans must be in order, apart and within"
            )
        end = each.end


def shift_media(media: tuple[Media, ...], offset: int) -> tuple[Media, ...]:
    """Return the media of a sequence that follows `offset` other tokens."""
    return tuple(replace(each, start=each.start + offset) for each in media) if media else media


def media_within(media: tuple[Media, ...], start: int, end: int) -> tuple[Media, ...]:
    """Return the media of tokens `start` to `end`, with positions from `start`.

    Raises:
        ValueError: The span cuts a medium.
    """
    if not media:
        return media
    inside = tuple(each for each in media if each.end > start and each.start < end)
    for each in inside:
        if each.start < start or each.end > end:
            raise ValueError(
                f"tokens {start} to {end} cut the media at tokens {each.start} to {each.end}; keep its span whole"
            )
    return shift_media(inside, -start)


class Author(StrEnum):
    """Author of a token."""

    POLICY = "policy"
    """Sampled from the policy in training."""
    EXPERT = "expert"
    """Written by a demonstrator; trained by imitation only, no sampler log-prob."""
    ENVIRONMENT = "environment"
    """Prompts, tool results, and the text of the chat template between them."""
    INSERTED = "spliced"
    """Put into the policy's turns from outside. Trained only if its probability is known: its sampler log-prob."""
    CORRECTED = "patched"
    """A sampled span that was corrected later. It is trained, without a sampler log-prob: the context changed."""
    OTHER_AGENT = "partner"
    """Another model in the episode: a simulated user, an opponent."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids with the author, log-prob and policy version of each.

    All columns have the same length `T`.
    """

    ids: tuple[int, ...]
    """[T] token ids."""
    authors: tuple[Author, ...]
    """[T] author of each token."""
    logprobs: tuple[float, ...]
    """[T] natural-log probability under the *sampling* distribution (after temperature); NaN if not sampled."""
    versions: tuple[int, ...]
    """[T] policy version that sampled the token; -1 if no policy did."""
    entropies: tuple[float, ...]
    """[T] entropy in nats of the full sampling distribution at that token; NaN if not measured."""
    media: tuple[Media, ...] = ()
    """Images that placeholder tokens represent, in order."""
    measured: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By name, [T] further numbers that were measured while sampling; NaN if not measured."""

    def __post_init__(self) -> None:
        columns = [*(getattr(self, name) for name in _COLUMNS), *self.measured.values()]
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise ValueError(f"token columns differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, span: slice) -> Tokens:
        """Return the tokens of a contiguous span."""
        start, end, _ = span.indices(len(self.ids))
        columns: dict[str, Any] = {name: getattr(self, name)[start:end] for name in _COLUMNS}
        measured = {name: column[start:end] for name, column in self.measured.items()}
        return Tokens(**columns, media=media_within(self.media, start, end), measured=measured)

    @property
    def sequence(self) -> TokenSequence:
        """Return ids and media, without the other columns."""
        return TokenSequence(self.ids, self.media)

    @classmethod
    def written(cls, tokens: TokenSequence | Sequence[int], author: Author) -> Tokens:
        """Return tokens that were not sampled: no log-prob, no version, no entropy."""
        sequence = tokens if isinstance(tokens, TokenSequence) else TokenSequence(tokens)
        n, nothing = len(sequence), (math.nan,) * len(sequence)
        return cls(sequence.ids, (author,) * n, nothing, (-1,) * n, nothing, sequence.media)

    @classmethod
    def sampled(
        cls,
        ids: Sequence[int],
        *,
        logprobs: Sequence[float],
        versions: Sequence[int],
        entropies: Sequence[float],
        measured: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Tokens:
        """Return tokens that were sampled from the policy in training."""
        authors = (Author.POLICY,) * len(ids)
        return cls(tuple(ids), authors, tuple(logprobs), tuple(versions), tuple(entropies), measured=measured or {})

    @classmethod
    def joined(cls, pieces: Iterable[Tokens]) -> Tokens:
        """Concatenate pieces."""
        parts = list(pieces)
        starts = accumulate((len(p) for p in parts), initial=0)
        columns: dict[str, Any] = {
            name: tuple(chain.from_iterable(getattr(p, name) for p in parts)) for name in _COLUMNS
        }
        media = chain.from_iterable(shift_media(p.media, start) for p, start in zip(parts, starts, strict=False))
        measured = {
            name: tuple(chain.from_iterable(p.measured.get(name) or (math.nan,) * len(p) for p in parts))
            for name in sorted({name for p in parts for name in p.measured})
        }
        return cls(**columns, media=tuple(media), measured=measured)


_COLUMNS = ("ids", "authors", "logprobs", "versions", "entropies")


@lru_cache(maxsize=1024)
def _keys_of_media(digest: str, length: int) -> tuple[int, ...]:
    def key(index: int) -> int:
        digested = hashlib.sha256(f"{digest}\0{index}\0{length}".encode()).digest()
        return _KEY_BIT | int.from_bytes(digested[:8], "big") >> 2

    return tuple(key(index) for index in range(length))
