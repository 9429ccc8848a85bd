"""MiRA: milestones as a potential function."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import integers, of
from whetstone.algorithms.advantages import mira, potential_shaping


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


PHI, OWNER = of(0, 0.25, 0.5, 1), integers(0, 0, 0, 0)


def test_worked_numbers():
    result = potential_shaping(PHI, of(0), OWNER)
    assert result.tolist() == near(0.2375, 0.225, 0.45, -1.0)
    shaped = mira(
        of(0, 0, 0, 1), of(0, 0.25, 0.5, 0.75), of(0, 0, 0, 0), of(0), PHI, of(0), OWNER, trace=1.0, whiten=False
    )
    # r̃ .07125 .0675 .135 .7, returns at γ .95
    assert shaped.advantages.tolist() == near(0.857375, 0.8275, 0.8, 0.7)
    assert shaped.targets["potentials"].tolist() == [0, 0.25, 0.5, 0.75]
    assert shaped.targets["values"].tolist() == [1, 1, 1, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_shaping_of_an_episode_sums_to_minus_the_first_potential(phi):
    result = potential_shaping(of(*phi), of(0), integers(*[0] * len(phi)))
    assert sum(0.95**t * x for t, x in enumerate(result.tolist())) == pytest.approx(-phi[0], abs=1e-9)


def test_truncated_episode_keeps_its_last_potential():
    assert potential_shaping(of(0.5), of(0.75), integers(0)).tolist() == near(0.95 * 0.75 - 0.5)


def test_potentials_and_rewards_have_the_same_discount():
    # γ ½, w 1: ½ · ½ − ½ and 0 − ½ + 1; returns −¼ + ½ · ½ and ½
    nothing = of(0, 0)
    result = mira(
        of(0, 1), nothing, nothing, of(0), of(0.5, 0.5), of(0), integers(0, 0), weight=1.0, discount=0.5, trace=1.0,
        whiten=False,
    )  # fmt: skip
    assert result.advantages.tolist() == near(0, 0.5)
