"""Shared prefixes of KV slots are exact after writes, copies and truncations."""

import random

from hypothesis import given
from hypothesis import strategies as st

from whetstone.inference.kv_sharing import PrefixSharing, SharedPrefix


def test_copy_shares_the_copied_prefix_until_a_write():
    origins = PrefixSharing(3)
    origins.record_write(0, 0, 50)
    origins.record_copy(0, 1, 40)
    origins.record_write(1, 40, 45)
    origins.record_write(0, 50, 60)  # the source grows, which changes nothing
    assert origins.group_by_prefix([0, 1], [60, 45]) == [SharedPrefix((0, 1), 40)]
    origins.record_write(0, 30, 35)  # and is cut
    assert origins.group_by_prefix([0, 1], [35, 45]) == [SharedPrefix((0, 1), 30)]


def test_copy_of_a_truncated_slot_does_not_share_removed_tokens():
    origins = PrefixSharing(2)
    origins.record_write(0, 0, 50)
    origins.record_copy(0, 1, 50)
    origins.record_copy(1, 0, 30)
    origins.record_write(0, 30, 50)
    assert origins.group_by_prefix([0, 1], [50, 50]) == [SharedPrefix((0, 1), 30)]


def test_slots_are_equal_if_their_lengths_and_keys_are_equal():
    origins = PrefixSharing(4)
    origins.record_write(0, 0, 50)
    for row in (1, 2):
        origins.record_copy(0, row, 40)
    origins.record_write(3, 0, 50)
    assert origins.group_equal([0, 1, 2, 3], [32, 32, 32, 32]) == [SharedPrefix((0, 1, 2), 32), SharedPrefix((3,), 32)]
    assert origins.group_equal([0, 1, 2, 3], [32, 32, 16, 0]) == [SharedPrefix((0, 1), 32), SharedPrefix((2,), 16)]
    assert origins.group_equal([0, 1], [48, 40]) == [SharedPrefix((0,), 48), SharedPrefix((1,), 40)]


def test_groups_are_chosen_to_save_the_most_reads():
    origins = PrefixSharing(5)
    origins.record_write(0, 0, 20)  # all have these; two pairs have 100 more each
    for row in (2, 4):
        origins.record_copy(0, row, 20)
    for row in (0, 2):
        origins.record_write(row, 20, 120)
        origins.record_copy(row, row + 1, 120)
    assert origins.group_by_prefix([0, 1, 2, 3], [120] * 4) == [
        SharedPrefix((0, 1), 120),
        SharedPrefix((2, 3), 120),
    ]  # 200 for 60
    assert origins.group_by_prefix([0, 2, 4], [120, 120, 21]) == [SharedPrefix((0, 1, 2), 20)]


def test_siblings_stay_together_if_others_share_only_a_shorter_prefix():
    origins = PrefixSharing(6)
    for first in (0, 3):
        if first:
            origins.record_copy(0, first, 100)  # the common instruction
        origins.record_write(first, 100 if first else 0, 250)
        for sibling in (first + 1, first + 2):
            origins.record_copy(first, sibling, 249)
            origins.record_write(sibling, 249, 260)
    groups = origins.group_by_prefix(range(6), [250, 260, 260] * 2)
    assert groups == [SharedPrefix((0, 1, 2), 249), SharedPrefix((3, 4, 5), 249)]


def test_slots_without_copies_share_nothing():
    origins = PrefixSharing(2)
    for row in range(2):
        origins.record_write(row, 0, 9)
    assert origins.group_by_prefix([0, 1], [9, 9]) == [SharedPrefix((0,), 9), SharedPrefix((1,), 9)]
    origins.record_wipe(0)
    assert origins.group_by_prefix([0], [1]) == [SharedPrefix((0,), 1)]


@given(st.integers(0, 10**6))
def test_shared_prefixes_have_equal_keys(seed):
    numbers = random.Random(seed)
    origins, contents = PrefixSharing(4), [[] for _ in range(4)]
    for moment in range(30):
        row, other = numbers.sample(range(4), 2)
        if numbers.random() < 0.4:
            length = numbers.randint(0, len(contents[row]))
            origins.record_copy(row, other, length)
            contents[other] = contents[row][:length]
        else:
            start = len(contents[row]) if numbers.random() < 0.6 else numbers.randint(0, len(contents[row]))
            end = start + numbers.randint(1, 4)
            origins.record_write(row, start, end)
            contents[row] = [*contents[row][:start], *((moment, place) for place in range(start, end))]
        rows = [row for row in range(4) if contents[row]]
        lengths = [numbers.randint(1, len(contents[row])) for row in rows]
        groups = origins.group_by_prefix(rows, lengths)
        assert sorted(member for one in groups for member in one.members) == list(range(len(rows)))
        for one in groups:
            assert 1 <= one.length <= min(lengths[member] for member in one.members)
            assert len({tuple(contents[rows[member]][: one.length]) for member in one.members}) == 1
