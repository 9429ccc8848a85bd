"""Fresh episodes are sampled in states that stored and fresh episodes have rarely visited."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from support.episodes import path, step_outcome, turn
from support.small import Bare
from whetstone.plugins import OptionError
from whetstone.tasks.curricula.coverage import Coverage, state_digests, visit_need
from whetstone.trajectory import Group, Task


def stored(task, *openings):
    each = tuple(replace(path(f"{task}/{k}", 1.0, opening=text), task_id=task) for k, text in enumerate(openings))
    return Group(Task(task, ""), each)


def chosen(curriculum, count=400):
    return Counter(curriculum.choose(Bare(), 0, n, 0, Random(n)) for n in range(count))


def test_need_worked_numbers():
    assert visit_need([]) == 1
    assert visit_need([1, 4]) == pytest.approx((1 + 0.5) / 2)
    assert visit_need([100] * 7) == pytest.approx(0.1)


def test_states_are_the_contexts_of_turns():
    one = path("a", 1.0, [turn(calls=["ok"], observation="x"), turn("done")])
    other = path("b", 1.0, [turn(calls=["ok"], observation="y"), turn("done")])
    assert state_digests(one)[0] == state_digests(other)[0]
    assert state_digests(one)[1] != state_digests(other)[1]
    assert len(state_digests(one)) == 2


def test_tasks_without_stored_episodes_are_sampled_in_proportion_to_need():
    # task 0 visited 9 times from one prompt: need 1/3; task 1 never: need 1; so 1 to 3
    curriculum = Coverage(size=2, stored_groups=lambda: [stored("bare/0", *["go"] * 9)])
    counts = chosen(curriculum)
    assert counts[0] / 400 == pytest.approx(0.25, abs=0.06)
    assert curriculum.metrics() == {"need": pytest.approx((1 / 3 + 1) / 2), "seen": 0.5}


def test_fresh_episodes_count_and_strength_zero_is_uniform():
    curriculum = Coverage(size=2, stored_groups=lambda: [], strength=2)
    chosen(curriculum, 1)
    curriculum.observe(step_outcome(stored("bare/1", *["go"] * 4), stored("elsewhere", "go")))
    assert set(curriculum.visits) == {"bare/1"}
    assert chosen(curriculum)[1] / 400 == pytest.approx(0.25 / 1.25, abs=0.06)
    even = Coverage(size=2, stored_groups=lambda: [stored("bare/0", "go", "go")], strength=0)
    assert chosen(even)[0] / 400 == pytest.approx(0.5, abs=0.07)


def test_visits_are_stored_and_episodes_read_once():
    reads = []
    curriculum = Coverage(size=2, stored_groups=lambda: reads.append(1) or [stored("bare/0", "go")])
    chosen(curriculum, 2)
    restored = Coverage(size=2, stored_groups=lambda: 1 / 0)
    restored.load_state(curriculum.state())
    assert chosen(restored) == chosen(curriculum)
    assert len(reads) == 1
    assert math.isclose(restored.metrics()["need"], 1)


def test_without_stored_episodes_it_is_refused():
    with pytest.raises(OptionError, match="set reinforcement"):
        Coverage(size=2, stored_groups=None)
