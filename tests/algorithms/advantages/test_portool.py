"""PORTool: siblings are compared at their branching point."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import portool


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


# root → a → (a1, a2), root → b → b1; leaves are trajectories
OWNER, NODES, GROUP = integers(0, 0, 1, 1, 2, 2), integers(0, 1, 0, 2, 3, 4), integers(0, 0, 0)
A, A1, A2, B, B1 = 0, 1, 3, 4, 5


def test_worked_numbers():
    formats = of(0.1, 0, 0.1, 0, 0, 0)
    advantages = portool(of(1, -1, -1), formats, OWNER, GROUP, integers(0, 1, 0, 1, 0, 1), NODES, discount=0.9)
    assert advantages[0] == advantages[2]
    node_advantages = [advantages[place].item() for place in (A, B, A1, A2, B1)]
    assert node_advantages == near(0.995781, -1.284456, 1.861806, -1.284456, -0.577350)


def test_only_child_has_no_fork_advantage():
    advantages = portool(
        of(1, -1), of(0, 0, 0, 0), integers(0, 0, 1, 1), integers(0, 0), integers(0, 1, 0, 1), integers(0, 1, 2, 3)
    )
    assert advantages[[1, 3]].tolist() == near(0.707106, -0.707106)


def test_nodes_of_different_tasks_are_distinct():
    # two tasks with the same numbers for their nodes: each trajectory is compared within its own task
    group, nothing = integers(0, 0, 1, 1), of(0, 0, 0, 0)
    advantages = portool(
        of(1, 0, 0, 1), nothing, integers(0, 1, 2, 3), group, integers(0, 0, 0, 0), integers(7, 8, 7, 8)
    )
    assert advantages.tolist() == near(*[1.414212, -1.414212, -1.414212, 1.414212])


def test_powers_of_the_discount_have_full_precision():
    # sibling outcomes .95² · 1 and 0, their deviation .95²/√2
    advantages = portool(
        of(1, 0), of(*[0] * 6), integers(0, 0, 0, 1, 1, 1), integers(0, 0), integers(0, 1, 2, 0, 1, 2),
        integers(*range(6)), epsilon=1.0,
    )  # fmt: skip
    reward, outcome = 0.95**2, 0.5 / (0.5**0.5 + 1)
    assert advantages[0].item() == pytest.approx(outcome + reward / 2 / (reward * 0.5**0.5 + 1), rel=1e-12)
