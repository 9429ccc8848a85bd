"""When nothing moves, the run says what it waits for, and goes on."""

import threading
import time
from types import SimpleNamespace

from whetstone.training.watchdog import Playing, Watchdog


class Stage:
    def __init__(self):
        self.done, self.collector = 0, SimpleNamespace(moved=0)

    def waits(self):
        return [("group-3/sum/7#1", "slow_search", 58.0), ("the learner", "groups", 57.0)]


def heard(work, seconds, during):
    said = []
    with Watchdog(work, say=said.append, seconds=seconds):
        during(said)
    return said


def test_it_names_who_waits_for_what_and_since_when():
    def wait(said):
        until = time.monotonic() + 10
        while not said and time.monotonic() < until:
            time.sleep(0.01)

    (line, *_) = heard(Stage(), 0.05, wait)
    assert "Waiting: group-3/sum/7#1 for slow_search since 58 s; the learner for groups since 57 s." in line
    assert "The event loop is at " in line
    assert "test_watchdog.py" in line  # this thread is where the loop would be


def test_it_says_less_and_less_often():
    began = time.monotonic()
    said = heard(Stage(), 0.05, lambda said: time.sleep(0.6))
    spent = time.monotonic() - began
    assert 1 <= len(said) <= 1 + spent / 0.05 / 2


def test_as_long_as_anything_moves_it_is_silent():
    work, stop = Stage(), threading.Event()

    def move():
        while not stop.wait(0.005):
            work.collector.moved += 1

    mover = threading.Thread(target=move)
    mover.start()
    try:
        said = heard(work, 0.5, lambda said: time.sleep(1.0))
    finally:
        stop.set()
        mover.join()
    assert said == []


def test_an_evaluation_is_watched_too():
    playing = Playing()
    assert playing.waits() == []
    playing.collector = SimpleNamespace(moved=0, waits=lambda: [("shop/1#0", "its reward", 61.0)])

    def wait(said):
        until = time.monotonic() + 10
        while not said and time.monotonic() < until:
            time.sleep(0.01)

    (line, *_) = heard(playing, 0.05, wait)
    assert "Waiting: shop/1#0 for its reward since 61 s." in line
