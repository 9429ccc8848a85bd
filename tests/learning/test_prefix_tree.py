"""What sequences begin with alike stands in the tree once, and every sequence can be read off it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whetstone.learning.prefix_tree import prefix_trees

# few letters and a short alphabet, so that much is alike
SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=12), min_size=1, max_size=8)


def arrays(sequences):
    return [np.asarray(ids, dtype=np.int64) for ids in sequences]


def read_off(nodes, sequences):
    """Each sequence along the path to its leaf."""
    found = {}
    for node in nodes:
        if node.leaf:
            ids, at = [], node
            while True:
                ids = sequences[at.sequence][at.start : at.end].tolist() + ids
                if at.parent < 0:
                    break
                at = nodes[at.parent]
            found[node.sequence] = ids
    return found


def test_a_hundred_shared_tokens_and_four_times_fifty_are_three_hundred_of_six_hundred():
    stem = list(range(100))
    sequences = arrays([stem + [1000 * k + i for i in range(50)] for k in range(4)])
    nodes = prefix_trees(sequences)
    assert sum(map(len, nodes)) == 300
    assert sum(map(len, sequences)) == 600
    assert [node.parent for node in nodes] == [-1, 0, 0, 0, 0]


@given(sequences=SEQUENCES, worth=st.integers(0, 6))
def test_every_sequence_can_be_read_off_the_tree(sequences, worth):
    nodes = prefix_trees(arrays(sequences), worth=worth)
    assert read_off(nodes, arrays(sequences)) == dict(enumerate(sequences))


@given(sequences=SEQUENCES)
def test_with_any_saving_worth_it_no_token_stands_twice(sequences):
    nodes = prefix_trees(arrays(sequences), worth=1)
    distinct = {tuple(ids[: n + 1]) for ids in sequences for n in range(len(ids))}
    assert sum(map(len, nodes)) == len(distinct)


@given(sequences=SEQUENCES, worth=st.integers(0, 6))
def test_a_parent_stands_before_its_children_and_ends_where_they_begin(sequences, worth):
    nodes = prefix_trees(arrays(sequences), worth=worth)
    for i, node in enumerate(nodes):
        assert node.parent < i
        assert node.start == (nodes[node.parent].end if node.parent >= 0 else 0)


def test_sharing_can_be_switched_off():
    sequences = arrays([[1, 2, 3], [1, 2, 3]])
    assert [(n.parent, n.start, n.end) for n in prefix_trees(sequences, share=False)] == [(-1, 0, 3), (-1, 0, 3)]


def test_a_thousand_sequences_each_one_longer_are_no_thousand_levels_of_recursion():
    sequences = arrays([list(range(n)) for n in range(1, 1500)])
    nodes = prefix_trees(sequences, worth=1)
    assert sum(map(len, nodes)) == 1499
