"""Batches of finished groups: staleness is bounded, no group is dropped, and long groups are neither starved nor
preferred."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from support.slow import examples
from whetstone.rollout import next_batch


@pytest.mark.parametrize(
    ("finished", "running", "version", "bound", "expected"),
    [
        ({0: 0, 1: 0}, {}, 0, 0, [0, 1]),
        ({0: 0}, {1: 0}, 0, 4, None),  # too few
        ({1: 0, 2: 0}, {0: 0}, 0, 0, None),  # synchronous: group 0 is due now
        ({1: 0, 2: 0}, {0: 0}, 0, 1, [1, 2]),  # and may wait one update
        ({1: 0, 2: 0}, {0: 0}, 1, 1, None),
        ({3: 1, 4: 1, 5: 1}, {0: 0, 1: 0, 2: 0}, 1, 2, None),  # three would be due by version 2, which takes two
        ({3: 1, 4: 1, 5: 1}, {0: 0, 1: 0}, 1, 2, [3, 4]),
        ({7: 2, 3: 0, 5: 1}, {}, 2, 4, [3, 5]),  # the oldest first
    ],
)
def test_worked_examples(finished, running, version, bound, expected):
    batch = next_batch(finished, running, version=version, groups_per_update=2, max_staleness=bound)
    assert batch == expected


def simulate(durations, *, per_update, ahead, bound, slots, updates, learner=1.0):
    """Simulate groups that take `durations(number)` in one of `slots`; return (number, start version, version at
    use, time)."""
    clock, version, following, busy_until = 0.0, 0, 0, 0.0
    live, running, used = {}, [], []
    finished = set()
    while version < updates:
        while len(live) < (ahead + 1) * per_update and len(running) < slots:
            live[following] = version
            heapq.heappush(running, (clock + durations(following), following))
            following += 1
        batch = None
        if busy_until <= clock:
            batch = next_batch(
                {number: live[number] for number in finished},
                {number: live[number] for _, number in running},
                version=version,
                groups_per_update=per_update,
                max_staleness=bound,
            )
        if batch is not None:
            used += [(number, live[number], version, clock) for number in batch]
            finished -= set(batch)
            clock = busy_until = clock + learner
            while running and running[0][0] <= clock:
                finished.add(heapq.heappop(running)[1])
            for number in batch:
                del live[number]
            version += 1
            continue
        assert running, "nothing runs and nothing can be taken: a deadlock"
        clock = max(clock, running[0][0])
        finished.add(heapq.heappop(running)[1])
    return used, clock


@examples(200)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_staleness_is_bounded_and_no_group_is_lost_for_any_durations(per_update, ahead, more, slots, numbers):
    """Sample adversarial lengths: most are short, some take a hundred times as long."""
    lengths = [numbers.choice([0.01, 0.1, 1.0, 1.0, 10.0, 100.0]) for _ in range(1000)]
    used, _ = simulate(
        lengths.__getitem__, per_update=per_update, ahead=ahead, bound=ahead + more, slots=slots, updates=30
    )
    assert len(used) == 30 * per_update
    assert len({number for number, *_ in used}) == len(used)
    assert all(at - began <= ahead + more for _, began, at, _ in used)
    # every group that is old enough was used
    last = max(number for number, *_ in used)
    left = set(range(last)) - {number for number, *_ in used}
    assert len(left) <= (ahead + 1) * per_update


def log_normal(seed, sigma=1.0):
    numbers = random.Random(seed)
    sampled = [numbers.lognormvariate(0.0, sigma) for _ in range(20_000)]
    return sampled, sampled.__getitem__


def test_running_ahead_has_no_length_bias():
    drawn, durations = log_normal(0)
    used, _ = simulate(durations, per_update=4, ahead=2, bound=4, slots=64, updates=500)
    consumed = [drawn[number] for number, *_ in used]
    assert ks_2samp(consumed, drawn[: len(consumed)]).pvalue > 0.2
    assert ks_2samp(consumed[:40], drawn).pvalue > 0.01  # not in the first updates either


@pytest.mark.slow
def test_it_is_as_fast_as_start_order_at_the_bound_with_less_staleness():
    """Simulate the setting of the card: B 4, 64 slots, log-normal median 1, sigma 1, learner 1.0."""
    results = {}
    for name, ahead, bound in (("on policy", 0, 0), ("start order", 4, 4), ("two numbers", 2, 4)):
        staleness, clock = [], 0.0
        for seed in range(10):
            used, spent = simulate(log_normal(seed)[1], per_update=4, ahead=ahead, bound=bound, slots=64, updates=100)
            staleness += [at - began for _, began, at, _ in used]
            clock += spent / 100 / 10
        results[name] = (clock, sum(staleness) / len(staleness), max(staleness))
    assert results["on policy"][2] == 0
    assert results["two numbers"][2] <= 4
    assert results["two numbers"][1] < 0.7 * results["start order"][1]
    assert results["two numbers"][0] < results["on policy"][0] / 2


def test_bound_of_zero_is_the_synchronous_schedule():
    used, _ = simulate(log_normal(1)[1], per_update=3, ahead=0, bound=0, slots=8, updates=50)
    assert [number for number, *_ in used] == list(range(150))
    assert all(began == at == number // 3 for number, began, at, _ in used)
