"""The watchdog reports pending work if nothing progresses, and the run continues."""

import threading
import time
from types import SimpleNamespace

from whetstone.training.watchdog import EvaluationMonitor, Watchdog


class Stage:
    def __init__(self):
        self.done, self.collector = 0, SimpleNamespace(moved=0)

    def waits(self):
        return [("group-3/sum/7#1", "slow_search", 58.0), ("the learner", "groups", 57.0)]


def watch(work, seconds, during):
    lines = []
    with Watchdog(work, log=lines.append, seconds=seconds):
        during(lines)
    return lines


def test_it_names_pending_work_and_its_waiting_time():
    def wait(lines):
        until = time.monotonic() + 10
        while not lines and time.monotonic() < until:
            time.sleep(0.01)

    (line, *_) = watch(Stage(), 0.05, wait)
    assert "Waiting: group-3/sum/7#1 for slow_search since 58 s; the learner for groups since 57 s." in line
    assert "The event loop is at " in line
    assert "test_watchdog.py" in line  # this thread is in place of the loop


def test_reports_become_less_frequent():
    began = time.monotonic()
    lines = watch(Stage(), 0.05, lambda lines: time.sleep(0.6))
    spent = time.monotonic() - began
    assert 1 <= len(lines) <= 1 + spent / 0.05 / 2


def test_it_is_silent_while_anything_progresses():
    work, stop = Stage(), threading.Event()

    def move():
        while not stop.wait(0.005):
            work.collector.moved += 1

    mover = threading.Thread(target=move)
    mover.start()
    try:
        lines = watch(work, 0.5, lambda lines: time.sleep(1.0))
    finally:
        stop.set()
        mover.join()
    assert lines == []


def test_evaluation_is_watched():
    playing = EvaluationMonitor()
    assert playing.waits() == []
    playing.collector = SimpleNamespace(moved=0, waits=lambda: [("shop/1#0", "its reward", 61.0)])

    def wait(lines):
        until = time.monotonic() + 10
        while not lines and time.monotonic() < until:
            time.sleep(0.01)

    (line, *_) = watch(playing, 0.05, wait)
    assert "Waiting: shop/1#0 for its reward since 61 s." in line
