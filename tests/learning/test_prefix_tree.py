"""Prefix trees store shared prefixes once, and contain every sequence."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whetstone.learning.prefix_tree import build_prefix_trees

# short sequences of few symbols, so that many prefixes are equal
SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=12), min_size=1, max_size=8)


def arrays(sequences):
    return [np.asarray(ids, dtype=np.int64) for ids in sequences]


def read_off(nodes, sequences):
    """Return each sequence along the path to its leaf."""
    sequences_by_leaf = {}
    for node in nodes:
        if node.leaf:
            ids, at = [], node
            while True:
                ids = sequences[at.sequence][at.start : at.end].tolist() + ids
                if at.parent < 0:
                    break
                at = nodes[at.parent]
            sequences_by_leaf[node.sequence] = ids
    return sequences_by_leaf


def test_shared_prefix_of_a_hundred_tokens_is_stored_once():
    stem = list(range(100))
    sequences = arrays([stem + [1000 * k + i for i in range(50)] for k in range(4)])
    nodes = build_prefix_trees(sequences)
    assert sum(map(len, nodes)) == 300
    assert sum(map(len, sequences)) == 600
    assert [node.parent for node in nodes] == [-1, 0, 0, 0, 0]


@given(sequences=SEQUENCES, min_saved_tokens=st.integers(0, 6))
def test_tree_contains_every_sequence(sequences, min_saved_tokens):
    nodes = build_prefix_trees(arrays(sequences), min_saved_tokens=min_saved_tokens)
    assert read_off(nodes, arrays(sequences)) == dict(enumerate(sequences))


@given(sequences=SEQUENCES)
def test_tree_without_a_minimum_has_no_duplicate_tokens(sequences):
    nodes = build_prefix_trees(arrays(sequences), min_saved_tokens=1)
    distinct = {tuple(ids[: n + 1]) for ids in sequences for n in range(len(ids))}
    assert sum(map(len, nodes)) == len(distinct)


@given(sequences=SEQUENCES, min_saved_tokens=st.integers(0, 6))
def test_parents_precede_children_and_end_at_their_start(sequences, min_saved_tokens):
    nodes = build_prefix_trees(arrays(sequences), min_saved_tokens=min_saved_tokens)
    for i, node in enumerate(nodes):
        assert node.parent < i
        assert node.start == (nodes[node.parent].end if node.parent >= 0 else 0)


def test_sharing_can_be_disabled():
    sequences = arrays([[1, 2, 3], [1, 2, 3]])
    assert [(n.parent, n.start, n.end) for n in build_prefix_trees(sequences, share=False)] == [(-1, 0, 3), (-1, 0, 3)]


def test_deep_trees_do_not_exceed_the_recursion_limit():
    sequences = arrays([list(range(n)) for n in range(1, 1500)])
    nodes = build_prefix_trees(sequences, min_saved_tokens=1)
    assert sum(map(len, nodes)) == 1499
