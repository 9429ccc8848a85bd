"""Trees of segments are partitioned among ranks: each token of each tree once, with idle time of at most one pass."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from support.segments import forked_segments, segment
from support.slow import examples
from whetstone.learning.packing import PackedPiece, pack_segments
from whetstone.scaling.distributed_learner.group_passes import assign_passes, pad_round
from whetstone.scaling.distributed_learner.load_balancing import compute_balance, partition_pieces, partition_segments
from whetstone.scaling.distributed_learner.shard_passes import Pass

CPU = torch.device("cpu")


def cost(piece):
    return piece.tokens + 0.01 * piece.pairs


def read(batch):
    return [i for i, each in enumerate(batch) if any(each.action_mask[1:])]


@st.composite
def forests(draw):
    """Sample several groups of segments, each of trees that are long enough to share a prefix."""
    segments = []
    for group in range(draw(st.integers(0, 4))):
        stem = [group] * draw(st.integers(0, 60))
        for each in draw(forked_segments()):
            ids = [*stem, *each.tokens.ids]
            segments.append(segment(ids, [False] * len(stem) + list(each.action_mask)))
    return segments


@examples(60)
@given(batch=forests(), ranks=st.integers(1, 5), budget=st.integers(8, 400), share=st.booleans())
def test_every_segment_of_a_forest_is_trained_once_by_one_rank(batch, ranks, budget, share):
    rounds = partition_segments(batch, ranks, token_budget=budget, share=share, cost=cost)
    assert sorted(i for row in rounds for slot in row for i in slot.indices) == read(batch)
    assert all(len(row) == ranks for row in rounds)
    assert all(any(slot.indices for slot in row) for row in rounds)
    assert 0 < compute_balance(rounds) <= 1 + 1e-9
    for slot in (slot for row in rounds for slot in row if slot.indices):
        owned = [batch[i] for i in slot.indices]
        (micro,) = pack_segments(owned, token_budget=2**62, device=CPU, share=share)
        assert sum(micro.counts) == sum(sum(each.action_mask[1:]) for each in owned)


@examples(60)
@given(batch=forests(), ranks=st.integers(1, 5), budget=st.integers(8, 400))
def test_every_rank_has_equally_many_passes_and_padding_counts_nowhere(batch, ranks, budget):
    places = list(range(len(batch)))
    rounds = partition_segments(batch, ranks, token_budget=budget, share=True, cost=cost)
    passes = [[] for _ in range(ranks)]
    for row in rounds:
        for rank, (owned, counts) in enumerate(pad_round(row, segments=batch, places=places)):
            passes[rank].append(Pass(owned, True, counts))
    assert {len(of_rank) for of_rank in passes} == {len(rounds)}
    assert all(each.places for of_rank in passes for each in of_rank)
    counted = []
    for of_rank in passes:
        share = assign_passes(of_rank)
        assert len(set(share.places)) == len(share.places)
        counted += [share.places[i] for each in share.passes if each.counts for i in each.places]
    assert sorted(counted) == read(batch)


@examples(100)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 9000)), min_size=1, max_size=60),
    ranks=st.integers(1, 8),
    budget=st.integers(50, 600),
)
def test_two_ranks_differ_by_at_most_the_most_expensive_pass(sizes, ranks, budget):
    pieces = [PackedPiece((i,), tokens, pairs) for i, (tokens, pairs) in enumerate(sizes)]
    rounds = partition_pieces(pieces, ranks, token_budget=budget, cost=cost)
    assert sorted(i for row in rounds for slot in row for i in slot) == list(range(len(pieces)))
    of_slot = [[sum(cost(pieces[i]) for i in slot) for slot in row] for row in rounds]
    assert all(sum(pieces[i].tokens for i in slot) <= budget or len(slot) == 1 for row in rounds for slot in row)
    loads = [sum(row[rank] for row in of_slot) for rank in range(ranks)]
    dearest = max(cost for row in of_slot for cost in row)
    assert max(loads) - min(loads) <= dearest + 1e-6
    for row, following in pairwise(of_slot):  # passes of one round have similar costs
        assert min(row) >= max(following) - 1e-9


@examples(60)
@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=40), ranks=st.integers(1, 6))
def test_ranks_differ_by_at_most_one_piece_in_a_round_with_enough_memory(sizes, ranks):
    pieces = [PackedPiece((i,), tokens, 0) for i, tokens in enumerate(sizes)]
    rounds = partition_pieces(pieces, ranks, token_budget=10**6, cost=cost)
    assert len(rounds) == 1
    loads = [sum(sizes[i] for i in slot) for slot in rounds[0]]
    assert max(loads) - min(loads) <= max(sizes)


def test_most_expensive_trees_are_assigned_first():
    # 8 and 7 to one each; 6 joins 7 (13), 5 joins 8 (13), 4 joins either (17): 17 and 13
    pieces = [PackedPiece((i,), tokens, 0) for i, tokens in enumerate([4, 5, 6, 7, 8])]
    ((one, other),) = partition_pieces(pieces, 2, token_budget=100, cost=cost)
    assert sorted(map(sorted, (one, other))) == [[0, 1, 4], [2, 3]]


def test_one_large_tree_is_split_between_ranks():
    stem = list(range(40)) * 5
    batch = [segment([*stem, *([50 + k] * 150)], [False] * len(stem) + [True] * 150) for k in range(4)]
    ((one, other),) = partition_segments(batch, 2, token_budget=4096, share=True, cost=cost)
    assert len(one.indices) == len(other.indices) == 2
    assert compute_balance([[one, other]]) == 1


def test_batch_without_trained_tokens_has_no_round():
    assert partition_segments([], 3, token_budget=100, share=True, cost=cost) == []
    assert partition_segments([segment([1, 2], [False, False])], 3, token_budget=100, share=True, cost=cost) == []
