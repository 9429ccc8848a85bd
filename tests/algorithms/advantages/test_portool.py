"""Siblings compared where they part."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import portool


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


# root → a → (a1, a2), root → b → b1; leaves are trajectories
OWNER, NODES, GROUP = whole(0, 0, 1, 1, 2, 2), whole(0, 1, 0, 2, 3, 4), whole(0, 0, 0)
A, A1, A2, B, B1 = 0, 1, 3, 4, 5


def test_worked_numbers():
    formats = of(0.1, 0, 0.1, 0, 0, 0)
    found = portool(of(1, -1, -1), formats, OWNER, GROUP, whole(0, 1, 0, 1, 0, 1), NODES, discount=0.9)
    assert found[0] == found[2]
    said = [found[place].item() for place in (A, B, A1, A2, B1)]
    assert said == near(0.995781, -1.284456, 1.861806, -1.284456, -0.577350)


def test_an_only_child_has_no_fork():
    found = portool(of(1, -1), of(0, 0, 0, 0), whole(0, 0, 1, 1), whole(0, 0), whole(0, 1, 0, 1), whole(0, 1, 2, 3))
    assert found[[1, 3]].tolist() == near(0.707106, -0.707106)


def test_nodes_of_different_tasks_are_never_the_same():
    # two tasks with the same numbers for their nodes: each trajectory stands alone in its own
    group, nothing = whole(0, 0, 1, 1), of(0, 0, 0, 0)
    found = portool(of(1, 0, 0, 1), nothing, whole(0, 1, 2, 3), group, whole(0, 0, 0, 0), whole(7, 8, 7, 8))
    assert found.tolist() == near(*[1.414212, -1.414212, -1.414212, 1.414212])


def test_powers_of_the_discount_are_taken_in_the_whole_width():
    # outcomes .95² · 1 and 0 beside each other, their deviation .95²/√2
    found = portool(
        of(1, 0), of(*[0] * 6), whole(0, 0, 0, 1, 1, 1), whole(0, 0), whole(0, 1, 2, 0, 1, 2), whole(*range(6)),
        epsilon=1.0,
    )  # fmt: skip
    reward, outcome = 0.95**2, 0.5 / (0.5**0.5 + 1)
    assert found[0].item() == pytest.approx(outcome + reward / 2 / (reward * 0.5**0.5 + 1), rel=1e-12)
