"""Where stored and fresh episodes have seen little, fresh ones are sampled."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests_episodes import heard, path, turn
from tests_small import Bare
from whetstone.plugins import OptionError
from whetstone.tasks.curricula.coverage import Coverage, need, states_of
from whetstone.trajectory import Group, Task


def stored(task, *openings):
    each = tuple(replace(path(f"{task}/{k}", 1.0, opening=text), task_id=task) for k, text in enumerate(openings))
    return Group(Task(task, ""), each)


def chosen(curriculum, count=400):
    return Counter(curriculum.choose(Bare(), 0, n, 0, Random(n)) for n in range(count))


def test_need_by_hand():
    assert need([]) == 1
    assert need([1, 4]) == pytest.approx((1 + 0.5) / 2)
    assert need([100] * 7) == pytest.approx(0.1)


def test_states_are_what_turns_began_from():
    one = path("a", 1.0, [turn(calls=["ok"], observation="x"), turn("done")])
    other = path("b", 1.0, [turn(calls=["ok"], observation="y"), turn("done")])
    assert states_of(one)[0] == states_of(other)[0]
    assert states_of(one)[1] != states_of(other)[1]
    assert len(states_of(one)) == 2


def test_tasks_nothing_is_stored_of_come_more_often_in_proportion_to_need():
    # task 0 seen 9 times from one opening: need 1/3; task 1 never: need 1; so 1 to 3
    curriculum = Coverage(size=2, stored_groups=lambda: [stored("bare/0", *["go"] * 9)])
    counts = chosen(curriculum)
    assert counts[0] / 400 == pytest.approx(0.25, abs=0.06)
    assert curriculum.metrics() == {"need": pytest.approx((1 / 3 + 1) / 2), "seen": 0.5}


def test_fresh_episodes_count_too_and_a_strength_of_nothing_draws_evenly():
    curriculum = Coverage(size=2, stored_groups=lambda: [], strength=2)
    chosen(curriculum, 1)
    curriculum.observe(heard(stored("bare/1", *["go"] * 4), stored("elsewhere", "go")))
    assert set(curriculum.visits) == {"bare/1"}
    assert chosen(curriculum)[1] / 400 == pytest.approx(0.25 / 1.25, abs=0.06)
    even = Coverage(size=2, stored_groups=lambda: [stored("bare/0", "go", "go")], strength=0)
    assert chosen(even)[0] / 400 == pytest.approx(0.5, abs=0.07)


def test_what_was_seen_is_remembered_and_stored_episodes_are_read_once():
    reads = []
    curriculum = Coverage(size=2, stored_groups=lambda: reads.append(1) or [stored("bare/0", "go")])
    chosen(curriculum, 2)
    again = Coverage(size=2, stored_groups=lambda: 1 / 0)
    again.load_state(curriculum.state())
    assert chosen(again) == chosen(curriculum)
    assert len(reads) == 1
    assert math.isclose(again.metrics()["need"], 1)


def test_with_nothing_stored_it_is_refused():
    with pytest.raises(OptionError, match="set reinforcement"):
        Coverage(size=2, stored_groups=None)
