"""The status line of running episodes shows correct numbers."""

import pytest

from whetstone.rollout import status as module
from whetstone.rollout.status import RolloutStatus, Watch


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_rates_fractions_and_stragglers_worked_numbers(clock):
    watch = Watch(begun=100.0)
    quick = [watch.begin() for _ in range(8)]  # one second and ten tokens each
    watch.begin()
    clock[0] = 101.0
    for episode in quick:
        watch.end(episode, 10)
    watch.begin()
    watch.acting, watch.queued = 1, 3
    clock[0] = 104.0
    status = watch.status(busy_seconds=1.0)
    assert (status.episodes, status.running, status.queued) == (8, 2, 3)
    assert (status.episodes_per_second, status.tokens_per_second) == (2.0, 20.0)  # 8 and 80 in 4 s
    assert status.on_tools == 0.5
    assert (status.stragglers, status.longest_seconds) == (1, 4.0)  # 4 s is above 3 · 1 s, the new one's 3 s is not
    assert status.engine_busy == 0.25
    clock[0] = 106.0
    assert watch.status(busy_seconds=2.5).engine_busy == 0.75  # 1.5 of the 2 s since the last call


def test_no_episode_is_late_before_enough_have_finished(clock):
    watch = Watch(begun=100.0)
    watch.begin()
    quick = watch.begin()
    clock[0] = 100.1
    watch.end(quick, 1)
    clock[0] = 109.0
    assert watch.status().stragglers == 0


def test_line_has_rates_and_stragglers():
    status = RolloutStatus(120, 31.25, 4512.0, 64, 8, 0.4, 2, 11.8, 1, 0.92)
    fields = status.line().split("  ")
    assert fields[:5] == ["64 running", "31.2 episodes/s", "4,512 tok/s", "on tools 40%", "engine 92%"]
    assert fields[5:] == ["2 stragglers, the longest 11.8 s", "1 retried"]
