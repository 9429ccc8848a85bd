"""A prompt's keys are found wherever they lie, and never where they do not belong."""

import resource
from pathlib import Path

import pytest
import torch

from whetstone.inference.cache import RowCache
from whetstone.inference.rows import BLOCK, Rows

PROMPT = list(range(3 * BLOCK + 5))


def take(rows, episode, ids, keys=None):
    return rows.take(episode, ids, keys or ids, len(ids) - 1)


def computed(rows, episode, ids):
    row, _ = take(rows, episode, ids)
    row.keys, row.computed_keys = list(ids), list(ids)
    return row


def test_the_next_turn_of_an_episode_finds_its_own_row_to_the_last_token():
    rows = Rows(2)
    first = computed(rows, "a", PROMPT)
    rows.rest(first)
    row, copied = take(rows, "a", [*PROMPT, 7, 8])
    assert (row, copied, row.keys) == (first, None, PROMPT)


def test_a_sibling_copies_what_another_has_computed():
    rows = Rows(2)
    first = computed(rows, "a", PROMPT)
    row, copied = take(rows, "b", [*PROMPT[:40], 99, 98])
    assert row is not first
    assert copied == (first, 40)
    assert row.keys == PROMPT[:40]


def test_a_sibling_waits_for_a_beginning_that_is_being_computed():
    rows = Rows(2)
    first, _ = take(rows, "a", PROMPT)
    assert take(rows, "b", PROMPT) == "soon"
    first.keys, first.computed_keys = list(PROMPT), list(PROMPT)
    row, copied = take(rows, "b", PROMPT)
    assert copied == (first, len(PROMPT) - 1)  # the last is computed again, for its logits
    assert len(row.keys) == len(PROMPT) - 1


def test_what_rested_longest_is_given_away_and_its_owner_starts_again():
    rows = Rows(2)
    for name in "ab":
        rows.rest(computed(rows, name, [ord(name)] * 40))
    taken = computed(rows, "c", [1] * 40)
    assert taken.number == 0  # a's
    assert rows.evictions == 1
    rows.rest(taken)
    row, copied = take(rows, "a", [ord("a")] * 40)
    assert (row.keys, copied) == ([], None)


def test_a_row_that_is_given_to_a_sibling_of_its_content_keeps_it():
    rows = Rows(1)
    rows.rest(computed(rows, "a", PROMPT))
    row, copied = take(rows, "b", [*PROMPT, 3])
    assert (row.keys, copied) == (PROMPT, None)


def test_all_busy_is_said():
    rows = Rows(1)
    computed(rows, "a", PROMPT)
    assert take(rows, "b", [1, 2]) == "full"


def test_an_episode_that_is_over_leaves_its_row_first_and_its_keys_to_others():
    rows = Rows(3)
    rows.rest(computed(rows, "a", [5] * 40))
    over = computed(rows, "b", PROMPT)
    rows.rest(over)
    rows.drop("b")
    row, copied = take(rows, "c", PROMPT)
    assert copied == (over, len(PROMPT) - 1)  # into a row that was free; what is there may serve others yet
    row, copied = take(rows, "d", [7] * 40)
    assert (row, copied) == (over, None)
    assert rows.evictions == 0


def test_keys_of_old_weights_serve_nobody_new():
    rows = Rows(2)
    rows.rest(computed(rows, "a", PROMPT))
    rows.outdate(keep=True)
    row, copied = take(rows, "b", PROMPT)
    assert (row.keys, copied) == ([], None)
    own, _ = take(rows, "a", [*PROMPT, 1])
    assert own.keys == PROMPT  # under `continue` an episode goes on with its own
    rows.rest(own)
    rows.outdate(keep=False)
    own, _ = take(rows, "a", [*PROMPT, 1])
    assert own.keys == []


def test_stale_keys_stay_stale_over_turns_and_are_forgotten_with_their_row():
    rows = Rows(2)
    rows.rest(computed(rows, "a", PROMPT))
    rows.outdate(keep=True)
    own, _ = take(rows, "a", [*PROMPT, 1])
    own.keys = [*PROMPT, 1]
    rows.rest(own)
    other, copied = take(rows, "b", [*PROMPT, 1])
    assert (other.keys, copied) == ([], None)
    rows.rest(other)
    rows.drop("a")
    fresh = computed(rows, "c", [*PROMPT, 2])
    assert not fresh.stale


def test_rows_that_were_cleared_are_not_found():
    rows = Rows(2)
    row = computed(rows, "a", PROMPT)
    rows.clear(row)
    rows.rest(row)
    _, copied = take(rows, "b", PROMPT)
    assert copied is None


def test_what_was_computed_otherwise_is_shared_with_nobody_but_its_owner():
    rows = Rows(2)
    drawn = [*PROMPT[:BLOCK], *(~id for id in PROMPT[BLOCK:])]
    first, _ = take(rows, "a", PROMPT)
    first.keys, first.computed_keys = list(PROMPT), drawn
    rows.rest(first)
    row, copied = take(rows, "b", PROMPT)
    assert (copied, len(row.keys)) == ((first, BLOCK), BLOCK)
    rows.rest(row)
    rows.drop("b")
    row, copied = take(rows, "c", PROMPT, drawn)
    assert copied == (first, len(PROMPT) - 1)
    rows.rest(row)
    own, copied = take(rows, "a", [*PROMPT, 7])
    assert (own, copied, own.keys, own.computed_keys) == (first, None, PROMPT, drawn)


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="nobody says here how much memory is taken")
def test_rows_of_a_long_context_take_the_memory_of_what_is_in_them():
    def taken():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    cache, keys = RowCache(1, 64, 8192), torch.ones(64, 2, 20, 64)
    cache.aim(range(64), torch.arange(20).expand(64, 20), queries=20, device=keys.device)
    before = taken()
    cache.layers[0].update(keys, keys)
    # 64 rows of 2 heads, keys and values, in pages of 4 KiB; in huge pages it would be 512 MiB
    assert taken() - before < 64 * 2 * 2 * 16384 + 2**23


def test_rows_that_cannot_be_cut_are_gone_on_with_or_begun_anew():
    rows = Rows(3, share=False)
    first = computed(rows, "a", PROMPT)
    row, copied = take(rows, "b", PROMPT)  # nothing is copied, and nobody waits for the other
    assert (copied, row.keys) == (None, [])
    rows.rest(first)
    row, _ = take(rows, "a", [*PROMPT, 7, 8])
    assert (row, row.keys) == (first, PROMPT)
    row.keys, row.computed_keys = [*PROMPT, 7, 8], [*PROMPT, 7, 8]
    rows.rest(row)
    row, _ = take(rows, "a", [*PROMPT, 9])
    assert (row, row.keys, row.computed_keys) == (first, [], [])
