"""Rows are said to begin alike where they do, whatever was written, copied and cut since."""

import random

from hypothesis import given
from hypothesis import strategies as st

from whetstone.inference.origins import Origins, Shared


def test_a_copy_begins_like_its_source_as_far_as_it_was_copied_and_nobody_wrote():
    origins = Origins(3)
    origins.written(0, 0, 50)
    origins.copied(0, 1, 40)
    origins.written(1, 40, 45)
    origins.written(0, 50, 60)  # the source grows, which changes nothing
    assert origins.shared([0, 1], [60, 45]) == [Shared((0, 1), 40)]
    origins.written(0, 30, 35)  # and is cut
    assert origins.shared([0, 1], [35, 45]) == [Shared((0, 1), 30)]


def test_a_copy_of_a_row_that_was_cut_does_not_grow_into_what_others_have_of_it():
    origins = Origins(2)
    origins.written(0, 0, 50)
    origins.copied(0, 1, 50)
    origins.copied(1, 0, 30)
    origins.written(0, 30, 50)
    assert origins.shared([0, 1], [50, 50]) == [Shared((0, 1), 30)]


def test_rows_are_alike_where_just_so_many_first_keys_are_the_same():
    origins = Origins(4)
    origins.written(0, 0, 50)
    for row in (1, 2):
        origins.copied(0, row, 40)
    origins.written(3, 0, 50)
    assert origins.alike([0, 1, 2, 3], [32, 32, 32, 32]) == [Shared((0, 1, 2), 32), Shared((3,), 32)]
    assert origins.alike([0, 1, 2, 3], [32, 32, 16, 0]) == [Shared((0, 1), 32), Shared((2,), 16)]
    assert origins.alike([0, 1], [48, 40]) == [Shared((0,), 48), Shared((1,), 40)]


def test_rows_are_parted_where_most_need_not_be_read_again():
    origins = Origins(5)
    origins.written(0, 0, 20)  # all have these; two pairs have 100 more each
    for row in (2, 4):
        origins.copied(0, row, 20)
    for row in (0, 2):
        origins.written(row, 20, 120)
        origins.copied(row, row + 1, 120)
    assert origins.shared([0, 1, 2, 3], [120] * 4) == [Shared((0, 1), 120), Shared((2, 3), 120)]  # 200 for 60
    assert origins.shared([0, 2, 4], [120, 120, 21]) == [Shared((0, 1, 2), 20)]


def test_siblings_keep_together_where_others_share_only_the_first_part_of_what_they_share():
    origins = Origins(6)
    for first in (0, 3):
        if first:
            origins.copied(0, first, 100)  # the instructions of all
        origins.written(first, 100 if first else 0, 250)
        for sibling in (first + 1, first + 2):
            origins.copied(first, sibling, 249)
            origins.written(sibling, 249, 260)
    found = origins.shared(range(6), [250, 260, 260] * 2)
    assert found == [Shared((0, 1, 2), 249), Shared((3, 4, 5), 249)]


def test_rows_nobody_copied_stand_alone():
    origins = Origins(2)
    for row in range(2):
        origins.written(row, 0, 9)
    assert origins.shared([0, 1], [9, 9]) == [Shared((0,), 9), Shared((1,), 9)]
    origins.wiped(0)
    assert origins.shared([0], [1]) == [Shared((0,), 1)]


@given(st.integers(0, 10**6))
def test_what_is_said_to_be_shared_is_the_same_keys(seed):
    numbers = random.Random(seed)
    origins, held = Origins(4), [[] for _ in range(4)]
    for moment in range(30):
        row, other = numbers.sample(range(4), 2)
        if numbers.random() < 0.4:
            length = numbers.randint(0, len(held[row]))
            origins.copied(row, other, length)
            held[other] = held[row][:length]
        else:
            start = len(held[row]) if numbers.random() < 0.6 else numbers.randint(0, len(held[row]))
            end = start + numbers.randint(1, 4)
            origins.written(row, start, end)
            held[row] = [*held[row][:start], *((moment, place) for place in range(start, end))]
        rows = [row for row in range(4) if held[row]]
        lengths = [numbers.randint(1, len(held[row])) for row in rows]
        found = origins.shared(rows, lengths)
        assert sorted(member for one in found for member in one.members) == list(range(len(rows)))
        for one in found:
            assert 1 <= one.length <= min(lengths[member] for member in one.members)
            assert len({tuple(held[rows[member]][: one.length]) for member in one.members}) == 1
