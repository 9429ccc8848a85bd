"""Token sequences: ids, the images of placeholder tokens, and columns per token.

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
    """Image in a token sequence: its placeholder tokens, digest and content."""

    start: int
    """Index of the image's first placeholder token."""
    length: int
    """Number of the image's placeholder tokens, 1 or more."""
    digest: str
    """Digest of the image's content; images with equal digests are the same."""
    payload: Any = field(default=None, compare=False, repr=False)
    """Content that a model reads, such as pixel values, or a reference to it; None if only the digest is known."""

    @property
    def end(self) -> int:
        """Index after the image's last placeholder token."""
        return self.start + self.length


@dataclass(frozen=True, slots=True, eq=False, init=False)
class TokenSequence:
    """Token ids with images, compared and hashed by `keys`.

    Args:
        ids: [T] token ids, placeholder tokens included.
        media: Images in order, without overlap.

    Raises:
        ValueError: If images overlap, are out of order, or extend beyond the tokens.
    """

    ids: tuple[int, ...]
    """[T] token ids."""
    media: tuple[Media, ...]
    """Media of the placeholder tokens, in order."""
    keys: tuple[int, ...]
    """[T] identity of each token: its id; for a placeholder token an integer derived from the image's digest, its index
    in the span and the length."""

    def __init__(self, ids: Iterable[int] = (), media: Iterable[Media] = ()) -> None:
        ids, media = tuple(ids), tuple(media)
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "media", media)
        object.__setattr__(self, "keys", build_token_keys(ids, media))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return self.keys == other.keys if isinstance(other, TokenSequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.keys)

    def __getitem__(self, span: slice) -> TokenSequence:
        """Return the tokens of a slice with step 1, with the images in it.

        Raises:
            ValueError: If the slice has another step, or contains only a part of an image.
        """
        start, end, step = span.indices(len(self.ids))
        if step != 1:
            raise ValueError(f"a slice of a token sequence must have step 1, got {step}")
        return TokenSequence(self.ids[start:end], select_media(self.media, start, end))

    def __add__(self, other: TokenSequence) -> TokenSequence:
        return TokenSequence(self.ids + other.ids, self.media + shift_media(other.media, len(self.ids)))

    def startswith(self, prefix: TokenSequence) -> bool:
        """Return whether this sequence starts with the tokens and images of `prefix`."""
        return self.keys[: len(prefix.keys)] == prefix.keys


def build_token_keys(ids: tuple[int, ...], media: tuple[Media, ...]) -> tuple[int, ...]:
    """Compute the keys that identify each token, see `TokenSequence.keys`.

    Args:
        ids: [T] token ids.
        media: Images in order.

    Returns:
        [T] keys; `ids` itself if there are no images.

    Raises:
        ValueError: If images overlap, are out of order, or extend beyond the tokens.
    """
    if not media:
        return ids
    check_spans(media, len(ids))
    keys = list(ids)
    for each in media:
        keys[each.start : each.end] = _keys_of_media(each.digest, each.length)
    return tuple(keys)


def check_spans(media: tuple[Media, ...], length: int) -> None:
    """Check that images are in order, do not overlap, and are within `length` tokens.

    Raises:
        ValueError: If a span is wrong.
    """
    end = 0
    for each in media:
        if each.length < 1 or not end <= each.start <= each.end <= length:
            raise ValueError(
                f"media at tokens {each.start} to {each.end} of {length}: spans must be in order, apart and within"
            )
        end = each.end


def shift_media(media: tuple[Media, ...], offset: int) -> tuple[Media, ...]:
    """Return images with positions moved by `offset` tokens.

    Args:
        media: Images of a sequence that follows `offset` other tokens.
        offset: Number of tokens.
    """
    return tuple(replace(each, start=each.start + offset) for each in media) if media else media


def select_media(media: tuple[Media, ...], start: int, end: int) -> tuple[Media, ...]:
    """Return the images in the tokens `start` to `end`, with positions relative to `start`.

    Raises:
        ValueError: If the span contains only a part of an image.
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
    """Author of a token, which decides whether the token is trained."""

    POLICY = "policy"
    """Sampled from the policy in training."""
    EXPERT = "expert"
    """Written by a demonstrator. Trained by imitation only; it has no sampler log-prob."""
    ENVIRONMENT = "environment"
    """Prompts, tool results, and the text of the chat template between them. Never trained, except with
    `train_on_observations`."""
    INSERTED = "spliced"
    """Inserted into the policy's turns from outside, or sampled under an action mask. Trained only if its probability
    (sampler log-prob) is known."""
    CORRECTED = "patched"
    """A sampled span that was corrected later. Trained without a sampler log-prob, because its context changed."""
    OTHER_AGENT = "partner"
    """Written by another model in the episode, such as a simulated user or an opponent."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids with author, sampler log-prob, policy version and entropy of each token.

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
    """Other numbers that were measured while sampling: name → [T] values; NaN if not measured."""

    def __post_init__(self) -> None:
        columns = [*(getattr(self, name) for name in _COLUMNS), *self.measured.values()]
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise ValueError(f"all token columns must have the same length, got {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, span: slice) -> Tokens:
        """Return all columns for the tokens of a slice with step 1.

        Raises:
            ValueError: If the slice has another step, or contains only a part of an image.
        """
        start, end, step = span.indices(len(self.ids))
        if step != 1:
            raise ValueError(f"a slice of tokens must have step 1, got {step}")
        columns: dict[str, Any] = {name: getattr(self, name)[start:end] for name in _COLUMNS}
        measured = {name: column[start:end] for name, column in self.measured.items()}
        return Tokens(**columns, media=select_media(self.media, start, end), measured=measured)

    @property
    def sequence(self) -> TokenSequence:
        """Ids and images, without the other columns."""
        return TokenSequence(self.ids, self.media)

    @classmethod
    def from_ids(cls, tokens: TokenSequence | Sequence[int], author: Author) -> Tokens:
        """Build the columns of tokens that were not sampled.

        Log-probs and entropies are NaN, and versions are -1.

        Args:
            tokens: [T] token ids, with or without images.
            author: Author of all tokens.
        """
        sequence = tokens if isinstance(tokens, TokenSequence) else TokenSequence(tokens)
        n, nothing = len(sequence), (math.nan,) * len(sequence)
        return cls(sequence.ids, (author,) * n, nothing, (-1,) * n, nothing, sequence.media)

    @classmethod
    def from_samples(
        cls,
        ids: Sequence[int],
        *,
        logprobs: Sequence[float],
        versions: Sequence[int],
        entropies: Sequence[float],
        measured: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Tokens:
        """Build the columns of tokens that were sampled from the policy in training.

        Args:
            ids: [T] token ids.
            logprobs: [T] log-probs under the sampling distribution.
            versions: [T] policy version that sampled each token.
            entropies: [T] entropies in nats; NaN if not measured.
            measured: Other measured numbers: name → [T] values.
        """
        authors = (Author.POLICY,) * len(ids)
        return cls(tuple(ids), authors, tuple(logprobs), tuple(versions), tuple(entropies), measured=measured or {})

    @classmethod
    def concatenate(cls, pieces: Iterable[Tokens]) -> Tokens:
        """Concatenate token columns in order; image positions are adjusted."""
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
