"""Milestones as a potential."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of, whole
from whetstone.algorithms.advantages import mira, potential_shaping


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


PHI, OWNER = of(0, 0.25, 0.5, 1), whole(0, 0, 0, 0)


def test_worked_numbers():
    found = potential_shaping(PHI, of(0), OWNER)
    assert found.tolist() == near(0.2375, 0.225, 0.45, -1.0)
    shaped = mira(
        of(0, 0, 0, 1), of(0, 0.25, 0.5, 0.75), of(0, 0, 0, 0), of(0), PHI, of(0), OWNER, trace=1.0, whiten=False
    )
    # r̃ .07125 .0675 .135 .7, returns at γ .95
    assert shaped.advantages.tolist() == near(0.857375, 0.8275, 0.8, 0.7)
    assert shaped.targets["potentials"].tolist() == [0, 0.25, 0.5, 0.75]
    assert shaped.targets["values"].tolist() == [1, 1, 1, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_over_an_episode_shaping_comes_to_minus_the_first_potential(phi):
    found = potential_shaping(of(*phi), of(0), whole(*[0] * len(phi)))
    assert sum(0.95**t * x for t, x in enumerate(found.tolist())) == pytest.approx(-phi[0], abs=1e-9)


def test_an_episode_cut_short_keeps_the_potential_of_where_it_got():
    assert potential_shaping(of(0.5), of(0.75), whole(0)).tolist() == near(0.95 * 0.75 - 0.5)


def test_potentials_are_discounted_as_rewards_are():
    # γ ½, w 1: ½ · ½ − ½ and 0 − ½ + 1; returns −¼ + ½ · ½ and ½
    nothing = of(0, 0)
    found = mira(
        of(0, 1), nothing, nothing, of(0), of(0.5, 0.5), of(0), whole(0, 0), weight=1.0, discount=0.5, trace=1.0,
        whiten=False,
    )  # fmt: skip
    assert found.advantages.tolist() == near(0, 0.5)
