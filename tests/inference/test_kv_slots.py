"""KV slots: cached prefixes are found in any slot, and never used for another sequence."""

import resource
from pathlib import Path

import pytest
import torch

from whetstone.inference.kv_cache import KVCache
from whetstone.inference.kv_slots import BLOCK, KVSlots

PROMPT = list(range(3 * BLOCK + 5))


def take(rows, episode, ids, keys=None):
    return rows.allocate_slot(episode, ids, keys or ids, len(ids) - 1)


def computed(rows, episode, ids):
    row, _ = take(rows, episode, ids)
    row.keys, row.computed_keys = list(ids), list(ids)
    return row


def test_next_turn_of_an_episode_reuses_its_slot():
    rows = KVSlots(2)
    first = computed(rows, "a", PROMPT)
    rows.mark_idle(first)
    row, copied = take(rows, "a", [*PROMPT, 7, 8])
    assert (row, copied, row.keys) == (first, None, PROMPT)


def test_sibling_copies_a_computed_prefix():
    rows = KVSlots(2)
    first = computed(rows, "a", PROMPT)
    row, copied = take(rows, "b", [*PROMPT[:40], 99, 98])
    assert row is not first
    assert copied == (first, 40)
    assert row.keys == PROMPT[:40]


def test_sibling_waits_for_a_prefix_in_computation():
    rows = KVSlots(2)
    first, _ = take(rows, "a", PROMPT)
    assert take(rows, "b", PROMPT) == "soon"
    first.keys, first.computed_keys = list(PROMPT), list(PROMPT)
    row, copied = take(rows, "b", PROMPT)
    assert copied == (first, len(PROMPT) - 1)  # the last is computed again, for its logits
    assert len(row.keys) == len(PROMPT) - 1


def test_least_recently_used_slot_is_evicted():
    rows = KVSlots(2)
    for name in "ab":
        rows.mark_idle(computed(rows, name, [ord(name)] * 40))
    taken = computed(rows, "c", [1] * 40)
    assert taken.number == 0  # a's
    assert rows.evictions == 1
    rows.mark_idle(taken)
    row, copied = take(rows, "a", [ord("a")] * 40)
    assert (row.keys, copied) == ([], None)


def test_slot_given_to_a_sibling_keeps_its_content():
    rows = KVSlots(1)
    rows.mark_idle(computed(rows, "a", PROMPT))
    row, copied = take(rows, "b", [*PROMPT, 3])
    assert (row.keys, copied) == (PROMPT, None)


def test_busy_slots_are_reported_as_full():
    rows = KVSlots(1)
    computed(rows, "a", PROMPT)
    assert take(rows, "b", [1, 2]) == "full"


def test_slot_of_a_finished_episode_is_reused_first_and_keeps_its_keys():
    rows = KVSlots(3)
    rows.mark_idle(computed(rows, "a", [5] * 40))
    over = computed(rows, "b", PROMPT)
    rows.mark_idle(over)
    rows.release_slot("b")
    row, copied = take(rows, "c", PROMPT)
    assert copied == (over, len(PROMPT) - 1)  # into a free slot; the finished one can still serve others
    row, copied = take(rows, "d", [7] * 40)
    assert (row, copied) == (over, None)
    assert rows.evictions == 0


def test_keys_of_old_weights_are_not_used_by_new_episodes():
    rows = KVSlots(2)
    rows.mark_idle(computed(rows, "a", PROMPT))
    rows.invalidate_prefixes(keep=True)
    row, copied = take(rows, "b", PROMPT)
    assert (row.keys, copied) == ([], None)
    own, _ = take(rows, "a", [*PROMPT, 1])
    assert own.keys == PROMPT  # under `continue` an episode keeps its own keys
    rows.mark_idle(own)
    rows.invalidate_prefixes(keep=False)
    own, _ = take(rows, "a", [*PROMPT, 1])
    assert own.keys == []


def test_stale_keys_stay_stale_over_turns_until_their_slot_is_evicted():
    rows = KVSlots(2)
    rows.mark_idle(computed(rows, "a", PROMPT))
    rows.invalidate_prefixes(keep=True)
    own, _ = take(rows, "a", [*PROMPT, 1])
    own.keys = [*PROMPT, 1]
    rows.mark_idle(own)
    other, copied = take(rows, "b", [*PROMPT, 1])
    assert (other.keys, copied) == ([], None)
    rows.mark_idle(other)
    rows.release_slot("a")
    fresh = computed(rows, "c", [*PROMPT, 2])
    assert not fresh.stale


def test_cleared_slots_are_not_found():
    rows = KVSlots(2)
    row = computed(rows, "a", PROMPT)
    rows.clear_slot(row)
    rows.mark_idle(row)
    _, copied = take(rows, "b", PROMPT)
    assert copied is None


def test_keys_of_different_computations_are_shared_only_with_their_episode():
    rows = KVSlots(2)
    computed = [*PROMPT[:BLOCK], *(~id for id in PROMPT[BLOCK:])]
    first, _ = take(rows, "a", PROMPT)
    first.keys, first.computed_keys = list(PROMPT), computed
    rows.mark_idle(first)
    row, copied = take(rows, "b", PROMPT)
    assert (copied, len(row.keys)) == ((first, BLOCK), BLOCK)
    rows.mark_idle(row)
    rows.release_slot("b")
    row, copied = take(rows, "c", PROMPT, computed)
    assert copied == (first, len(PROMPT) - 1)
    rows.mark_idle(row)
    own, copied = take(rows, "a", [*PROMPT, 7])
    assert (own, copied, own.keys, own.computed_keys) == (first, None, PROMPT, computed)


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="this system does not report used memory")
def test_memory_of_slots_depends_on_their_content():
    def taken():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    cache, keys = KVCache(1, 64, 8192), torch.ones(64, 2, 20, 64)
    cache.select_slots(range(64), torch.arange(20).expand(64, 20), queries=20, device=keys.device)
    before = taken()
    cache.layers[0].update(keys, keys)
    # 64 rows of 2 heads, keys and values, in pages of 4 KiB; in huge pages it would be 512 MiB
    assert taken() - before < 64 * 2 * 2 * 16384 + 2**23


def test_slots_that_cannot_be_truncated_are_extended_or_cleared():
    rows = KVSlots(3, share=False)
    first = computed(rows, "a", PROMPT)
    row, copied = take(rows, "b", PROMPT)  # nothing is copied, and no request waits for another
    assert (copied, row.keys) == (None, [])
    rows.mark_idle(first)
    row, _ = take(rows, "a", [*PROMPT, 7, 8])
    assert (row, row.keys) == (first, PROMPT)
    row.keys, row.computed_keys = [*PROMPT, 7, 8], [*PROMPT, 7, 8]
    rows.mark_idle(row)
    row, _ = take(rows, "a", [*PROMPT, 9])
    assert (row, row.keys, row.computed_keys) == (first, [], [])
