"""Packing of segments into few forward passes without padding: prefix trees, concatenated in one row.

Linear layers process all tokens of a row together. Attention restricts each token to preceding tokens in its
segment (`attention.py`). Tokens that segments share are in the row once.

Note:
    The log-prob of a token is read at the preceding token. The first token of a segment therefore has none, and nothing
    from a segment's last action token on needs to be computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whetstone.learning.prefix_tree import Keys, Node, build_prefix_trees
from whetstone.learning.tree_attention import Branches
from whetstone.tokens import select_media, shift_media
from whetstone.trajectory import Author, Media, Segment, TokenSequence


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Input of one forward pass, created by `pack_segments`.

    B segments with A action tokens are computed as T tokens and read at R rows.
    """

    indices: tuple[int, ...]
    """[B] index of each segment in the list that was packed."""
    counts: tuple[int, ...]
    """[B] number of action tokens of each segment."""
    ids: Tensor
    """[T] token ids."""
    positions: Tensor
    """[T] position of each token in its segments."""
    branches: Branches
    """Branches of the trees, which define the attention mask."""
    rows: Tensor
    """[R] ascending indices of tokens whose next-token distribution is read."""
    row_of: Tensor
    """[A] index in `rows` for each action token, segment by segment."""
    targets: Tensor
    """[A] ids of the action tokens."""
    sampler_logprobs: Tensor
    """[A] log-probs of the sampler; NaN for tokens that were not sampled."""
    advantages: Tensor
    """[A] advantages; 0 without credit."""
    expert: Tensor
    """[A] whether an expert wrote the token."""
    turns: Tensor
    """[A] index of the token's turn in its trajectory."""
    segment_tokens: int
    """Tokens of the segments, each counted once per segment: the cost without shared prefixes."""
    media: tuple[Media, ...] = ()
    """Media of the placeholder tokens among `ids`, each once, at their positions there."""

    def by_segment(self, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (index of a segment in the packed list, its values [A]).

        Args:
            values: [A] or [A, …] values at the action tokens of all segments.
        """
        yield from zip(self.indices, torch.split(values, list(self.counts)), strict=True)


def pack_segments(
    segments: Sequence[Segment], *, token_budget: int, device: torch.device, share: bool = True
) -> Iterator[MicroBatch]:
    """Pack segments into micro-batches of at most `token_budget` tokens.

    A segment longer than the budget has a separate micro-batch. Every segment with an action token is in
    exactly one micro-batch.

    Args:
        segments: Segments to compute.
        token_budget: Maximum number of computed tokens per micro-batch.
        device: Device of the tensors.
        share: Whether tokens that segments share are computed once.
    """
    read, wanted, fed = _fed(segments)
    nodes = build_prefix_trees([_keys(tokens) for tokens in fed], share=share)
    for leaves in _bins(nodes, token_budget):
        yield _micro_batch(leaves, nodes, fed, wanted, read, segments, device)


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """Segments that are always computed together: a prefix tree or a part of one.

    A part includes its path from the root. Returned by `split_pieces`, to distribute segments among ranks.
    """

    indices: tuple[int, ...]
    """Ascending indices of the segments in the list that was divided."""
    tokens: int
    """Number of computed tokens."""
    pairs: int
    """Number of (query, key) pairs of attention."""


def split_pieces(segments: Sequence[Segment], *, token_budget: int, share: bool = True) -> list[PackedPiece]:
    """Divide segments into pieces that different ranks can compute.

    Each piece has at most `token_budget` tokens, unless one segment is longer. Every segment with an action token is in
    exactly one piece.

    Args:
        segments: Segments to compute.
        token_budget: Maximum number of computed tokens per micro-batch.
        share: Whether tokens that segments share are computed once.
    """
    read, _, fed = _fed(segments)
    nodes = build_prefix_trees([_keys(tokens) for tokens in fed], share=share)
    pieces = []
    for load in _loads(nodes, token_budget):
        used = {node for leaf in load.leaves for node in _path(leaf, nodes)}
        runs = [(nodes[node].start, len(nodes[node])) for node in used]
        pairs = sum(n * start + n * (n + 1) // 2 for start, n in runs)
        indices = tuple(sorted(read[nodes[leaf].sequence] for leaf in load.leaves))
        pieces.append(PackedPiece(indices, load.tokens, pairs))
    return pieces


def _fed(segments: Sequence[Segment]) -> tuple[list[int], list[Keys], list[TokenSequence]]:
    """Return (indices of segments with action tokens, positions of those tokens, input tokens) per segment."""
    read = [i for i, segment in enumerate(segments) if any(segment.action_mask[1:])]
    wanted = [np.flatnonzero(segments[i].action_mask) for i in read]
    wanted = [places[places > 0] for places in wanted]  # no token precedes the first, so nothing predicts it
    fed = [segments[i].tokens.sequence[: places[-1]] for i, places in zip(read, wanted, strict=True)]
    return read, wanted, fed


def _keys(tokens: TokenSequence) -> Keys:
    return np.asarray(tokens.keys, dtype=np.int64)


@dataclass(slots=True)
class _Load:
    """Leaves of a prefix tree that are computed together."""

    leaves: list[int]
    """Indices of the leaf nodes."""
    tokens: int
    """Number of their tokens below the current node."""


def _bins(nodes: Sequence[Node], budget: int) -> Iterator[list[int]]:
    """Yield the leaves of each micro-batch, ascending."""
    for load in _first_fit(_loads(nodes, budget), budget):
        yield sorted(load.leaves)


def _loads(nodes: Sequence[Node], budget: int) -> list[_Load]:
    """Group the leaves that are always computed together.

    A tree within the budget stays complete. A larger tree is cut at branches, and each part includes its path from the
    root. A shared run is therefore computed once per part.
    """
    loads: list[list[_Load]] = [[] for _ in nodes]
    roots: list[_Load] = []
    for i in reversed(range(len(nodes))):  # children before their parents
        node = nodes[i]
        below = [_Load([i], 0)] if node.leaf else loads[i][::-1]
        num_tokens = sum(load.tokens for load in below)
        if node.end + num_tokens > budget:
            below = _first_fit(below, budget - node.end)
        else:
            below = [_Load([leaf for load in below for leaf in load.leaves], num_tokens)]
        for load in below:
            load.tokens += len(node)
        (loads[node.parent] if node.parent >= 0 else roots).extend(below)
        loads[i] = []
    return roots[::-1]


def _first_fit(loads: Sequence[_Load], room: int) -> list[_Load]:
    """Merge loads into few loads of at most `room` tokens: first fit, the largest first."""
    bins: list[_Load] = []
    for load in sorted(loads, key=lambda load: -load.tokens):
        fitting = next((candidate for candidate in bins if candidate.tokens + load.tokens <= room), None)
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
        for medium in shift_media(select_media(tokens.media, start, end), at[n])
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
        indices = np.concatenate([np.arange(at[n], at[n] + len(nodes[n])) for n in paths[leaf]])
        places.append(indices[actions - 1])
        columns.append(_columns(segment, actions))
    rows, row_of = np.unique(np.concatenate(places), return_inverse=True)
    targets, logprobs, advantages, expert, turns = (np.concatenate(column) for column in zip(*columns, strict=True))

    def on_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device)

    return MicroBatch(
        indices=tuple(read[nodes[leaf].sequence] for leaf in leaves),
        counts=tuple(len(rows_of_segment) for rows_of_segment in places),
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
    """Return the nodes from the root to a node."""
    path = []
    while node >= 0:
        path.append(node)
        node = nodes[node].parent
    return path[::-1]


def _columns(segment: Segment, actions: Keys) -> tuple[np.ndarray, ...]:
    """Return inputs of a loss at the action tokens: ids, sampler log-probs, advantages, expert, turns."""
    tokens = segment.tokens
    advantages = segment.advantages if segment.advantages is not None else (0.0,) * len(segment)
    return (
        np.asarray(tokens.ids)[actions],
        np.asarray(tokens.logprobs, dtype=np.float32)[actions],
        np.asarray(advantages, dtype=np.float32)[actions],
        np.asarray([tokens.authors[place] is Author.EXPERT for place in actions]),
        np.asarray(segment.turns)[actions],
    )
