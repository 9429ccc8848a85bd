"""How do segments of many lengths become a few forward passes? As trees, laid end to end in one row.

A row has no padding: linear layers see its tokens side by side, and attention keeps each token to those
in front of it in its own segment (`attention.py`). Tokens that segments share lie in the row once.

Easy to get wrong: a token's log-prob is read behind the token in front of it, so the first token of a segment has
none, and what stands behind a segment's last action token is never read and need not be computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whetstone.learning.attention import Branches
from whetstone.learning.prefix_tree import Keys, Node, prefix_trees
from whetstone.tokens import media_within, shift_media
from whetstone.trajectory import Author, Media, Segment, TokenSequence


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass: B segments with A action tokens, computed as T tokens, read in R places."""

    indices: tuple[int, ...]
    """[B] where each segment stands in the sequence that was packed."""
    counts: tuple[int, ...]
    """[B] action tokens of each."""
    ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] the place of each in its segments."""
    branches: Branches
    """Which tokens may look at which."""
    rows: Tensor
    """[R] ascending; the tokens behind which a distribution is read."""
    row_of: Tensor
    """[A] which of those it is for each action token, segment by segment."""
    targets: Tensor
    """[A] the action tokens' ids."""
    sampler_logprobs: Tensor
    """[A] NaN where none was drawn."""
    advantages: Tensor
    """[A] 0 where credit was not given."""
    expert: Tensor
    """[A] whether a demonstrator wrote it."""
    turns: Tensor
    """[A] which turn of its trajectory it belongs to."""
    segment_tokens: int
    """Tokens of the segments, each counted once per segment: the cost without shared prefixes."""
    media: tuple[Media, ...] = ()
    """Media of the placeholder tokens among `ids`, each once, at their positions there."""

    def by_segment(self, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(where a segment stands in the sequence that was packed, its share of `values` [A]), for each."""
        yield from zip(self.indices, torch.split(values, list(self.counts)), strict=True)


def pack(
    segments: Sequence[Segment], *, token_budget: int, device: torch.device, share: bool = True
) -> Iterator[MicroBatch]:
    """Micro-batches of at most `token_budget` tokens each; a longer segment has one of its own.

    Every segment with an action token is in exactly one of them.

    Args:
        share: Whether tokens that segments share are computed once.
    """
    read, wanted, fed = _fed(segments)
    nodes = prefix_trees([_keys(tokens) for tokens in fed], share=share)
    for leaves in _bins(nodes, token_budget):
        yield _micro_batch(leaves, nodes, fed, wanted, read, segments, device)


@dataclass(frozen=True, slots=True)
class Piece:
    """Segments that are computed together wherever that is: a tree, or part of one with the path in front of it."""

    indices: tuple[int, ...]
    """Where they stand in the sequence that was cut, ascending."""
    tokens: int
    """Tokens that are computed."""
    pairs: int
    """(token, token in front of it or itself) pairs that attention looks at."""


def pieces_of(segments: Sequence[Segment], *, token_budget: int, share: bool = True) -> list[Piece]:
    """What can be dealt out to several who compute side by side; each of at most `token_budget` tokens, but for longer
    segments.

    Every segment with an action token is in exactly one of them.
    """
    read, _, fed = _fed(segments)
    nodes = prefix_trees([_keys(tokens) for tokens in fed], share=share)
    found = []
    for load in _loads(nodes, token_budget):
        used = {node for leaf in load.leaves for node in _path(leaf, nodes)}
        runs = [(nodes[node].start, len(nodes[node])) for node in used]
        pairs = sum(n * start + n * (n + 1) // 2 for start, n in runs)
        indices = tuple(sorted(read[nodes[leaf].sequence] for leaf in load.leaves))
        found.append(Piece(indices, load.tokens, pairs))
    return found


def _fed(segments: Sequence[Segment]) -> tuple[list[int], list[Keys], list[TokenSequence]]:
    """Return (segments with an action token, positions of those in each, the tokens that each is computed from)."""
    read = [i for i, segment in enumerate(segments) if any(segment.action_mask[1:])]
    wanted = [np.flatnonzero(segments[i].action_mask) for i in read]
    wanted = [places[places > 0] for places in wanted]  # nothing stands before the first, so nothing predicts it
    fed = [segments[i].tokens.sequence[: places[-1]] for i, places in zip(read, wanted, strict=True)]
    return read, wanted, fed


def _keys(tokens: TokenSequence) -> Keys:
    return np.asarray(tokens.keys, dtype=np.int64)


@dataclass(slots=True)
class _Load:
    """Leaves that are computed together, and how many tokens they are below the node at hand."""

    leaves: list[int]
    tokens: int


def _bins(nodes: Sequence[Node], budget: int) -> Iterator[list[int]]:
    """The leaves of each micro-batch, ascending."""
    for load in _first_fit(_loads(nodes, budget), budget):
        yield sorted(load.leaves)


def _loads(nodes: Sequence[Node], budget: int) -> list[_Load]:
    """What is computed together, whatever else is.

    A tree within the budget stays whole. One beyond it is cut where branches part, each piece with the path
    in front of it; so a shared run is computed as often as there are pieces, and no more.
    """
    loads: list[list[_Load]] = [[] for _ in nodes]
    roots: list[_Load] = []
    for i in reversed(range(len(nodes))):  # children before their parents
        node = nodes[i]
        below = [_Load([i], 0)] if node.leaf else loads[i][::-1]
        whole = sum(load.tokens for load in below)
        if node.end + whole > budget:
            below = _first_fit(below, budget - node.end)
        else:
            below = [_Load([leaf for load in below for leaf in load.leaves], whole)]
        for load in below:
            load.tokens += len(node)
        (loads[node.parent] if node.parent >= 0 else roots).extend(below)
        loads[i] = []
    return roots[::-1]


def _first_fit(loads: Sequence[_Load], room: int) -> list[_Load]:
    """Few loads of at most `room` tokens: the largest first, each where it fits first."""
    bins: list[_Load] = []
    for load in sorted(loads, key=lambda load: -load.tokens):
        fitting = next((held for held in bins if held.tokens + load.tokens <= room), None)
        if fitting is None:
            bins.append(_Load(list(load.leaves), load.tokens))
        else:
            fitting.leaves += load.leaves
            fitting.tokens += load.tokens
    return bins


def _micro_batch(
    leaves: Sequence[int],
    nodes: Sequence[Node],
    fed: Sequence[TokenSequence],
    wanted: Sequence[Keys],
    read: Sequence[int],
    segments: Sequence[Segment],
    device: torch.device,
) -> MicroBatch:
    paths = {leaf: _path(leaf, nodes) for leaf in leaves}
    used = sorted({node for path in paths.values() for node in path})
    at: dict[int, int] = {}
    tokens = 0
    for node in used:
        at[node] = tokens
        tokens += len(nodes[node])
    runs = [(fed[nodes[n].sequence], nodes[n].start, nodes[n].end) for n in used]
    ids = np.concatenate([np.asarray(tokens.ids[start:end], dtype=np.int64) for tokens, start, end in runs])
    media = tuple(
        medium
        for n, (tokens, start, end) in zip(used, runs, strict=True)
        for medium in shift_media(media_within(tokens.media, start, end), at[n])
    )
    positions = np.concatenate([np.arange(nodes[n].start, nodes[n].end) for n in used])
    order = {node: k for k, node in enumerate(used)}
    branches = Branches(
        starts=tuple(nodes[n].start for n in used),
        lengths=tuple(len(nodes[n]) for n in used),
        ancestors=tuple(tuple(order[a] for a in _path(n, nodes)[:-1]) for n in used),
    )
    places, columns = [], []
    for leaf in leaves:
        sequence = nodes[leaf].sequence
        segment, actions = segments[read[sequence]], wanted[sequence]
        lies = np.concatenate([np.arange(at[n], at[n] + len(nodes[n])) for n in paths[leaf]])
        places.append(lies[actions - 1])
        columns.append(_columns(segment, actions))
    rows, row_of = np.unique(np.concatenate(places), return_inverse=True)
    targets, logprobs, advantages, expert, turns = (np.concatenate(column) for column in zip(*columns, strict=True))

    def on_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device)

    return MicroBatch(
        indices=tuple(read[nodes[leaf].sequence] for leaf in leaves),
        counts=tuple(len(found) for found in places),
        ids=on_device(ids),
        positions=on_device(positions),
        branches=branches,
        rows=on_device(rows),
        row_of=on_device(row_of),
        targets=on_device(targets),
        sampler_logprobs=on_device(logprobs),
        advantages=on_device(advantages),
        expert=on_device(expert),
        turns=on_device(turns),
        segment_tokens=sum(len(segments[read[nodes[leaf].sequence]]) for leaf in leaves),
        media=media,
    )


def _path(node: int, nodes: Sequence[Node]) -> list[int]:
    """From the root to the node."""
    path = []
    while node >= 0:
        path.append(node)
        node = nodes[node].parent
    return path[::-1]


def _columns(segment: Segment, actions: Keys) -> tuple[np.ndarray, ...]:
    """What a loss is made of, at the action tokens: ids, sampler log-probs, advantages, expert, turns."""
    tokens = segment.tokens
    advantages = segment.advantages if segment.advantages is not None else (0.0,) * len(segment)
    return (
        np.asarray(tokens.ids)[actions],
        np.asarray(tokens.logprobs, dtype=np.float32)[actions],
        np.asarray(advantages, dtype=np.float32)[actions],
        np.asarray([tokens.authors[place] is Author.EXPERT for place in actions]),
        np.asarray(segment.turns)[actions],
    )
