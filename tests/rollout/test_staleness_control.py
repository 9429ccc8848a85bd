"""Sampling runs ahead of learning up to its bound."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.rollout import Admission


@pytest.mark.parametrize(
    ("groups", "ahead", "version", "started", "room"),
    [
        (4, 2, 0, 0, 12),  # (2 + 0 + 1) · 4
        (4, 2, 3, 14 + 6, 4),  # (2 + 3 + 1) · 4 − 20; 8 slots with 6 running leave 2 of them, not admission's matter
        (4, 2, 3, 14 + 10, 0),
        (4, 0, 5, 20, 4),  # synchronous: the next batch only after the update
    ],
)
def test_worked_numbers(groups, ahead, version, started, room):
    live = dict.fromkeys(range(started - version * groups), 0)
    admission = Admission(groups, admit_ahead=ahead, version=version, live=live)
    assert (admission.num_started, admission.free_slots) == (started, room)


def test_resumed_run_does_not_restart_admitted_groups():
    # at version 100 with 2 ahead: 3 · 4 may start, not 103 · 4
    assert Admission(4, admit_ahead=2, version=100).free_slots == 12


def test_waiting_groups_are_admitted_after_an_update_or_a_rejection():
    async def main():
        admission, entered = Admission(2), []

        async def enter(number):
            await admission.admit_group(number)
            entered.append(number)

        waiting = [asyncio.create_task(enter(i)) for i in range(5)]
        seen = []
        for change in (None, lambda: admission.record_update([0, 1]), lambda: admission.discard_group(3)):
            if change is not None:
                change()
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append(len(entered))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return seen

    assert asyncio.run(main()) == [2, 4, 5]


@given(st.integers(1, 5), st.integers(0, 4), st.lists(st.sampled_from("elr"), max_size=60))
def test_no_group_is_older_than_allowed_in_start_order(groups, ahead, events):
    """Admit groups while possible (e), train on the oldest started batch (l), reject the last group (r)."""
    admission, queue = Admission(groups, admit_ahead=ahead), []
    for number, event in enumerate(events):
        if event == "e" and admission.free_slots > 0:
            assert asyncio.run(admission.admit_group(number))
            queue.append(number)
        elif event == "l" and len(queue) >= groups:
            assert all(admission.version - admission.live[began] <= ahead for began in queue[:groups])
            admission.record_update(queue[:groups])
            del queue[:groups]
        elif event == "r" and queue:
            admission.discard_group(queue.pop())
        assert admission.num_started <= (ahead + admission.version + 1) * groups


def test_group_admitted_before_a_restart_is_not_counted_twice():
    admission = Admission(2, version=3, live={6: 3})
    assert asyncio.run(admission.admit_group(6)) is False
    assert (admission.num_started, admission.free_slots) == (7, 1)


@pytest.mark.parametrize("wrong", [(0, 0), (1, -1)])
def test_invalid_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="must be at least 1"):
        Admission(wrong[0], admit_ahead=wrong[1])
