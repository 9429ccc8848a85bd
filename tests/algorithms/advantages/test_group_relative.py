import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whetstone.algorithms import group_relative

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_worked_numbers():
    # mean 3/8, sample deviation 0.478714
    rewards, group = tensor(1, 0, 0.5, 0), torch.zeros(4)
    expected = tensor(1.305580, -0.783348, 0.261116, -0.783348)
    assert torch.allclose(group_relative(rewards, group), expected, atol=1e-5)
    assert torch.allclose(group_relative(rewards, group, scale=False), tensor(0.625, -0.375, 0.125, -0.375))
    # mean 1/2, deviation 1/√3
    assert torch.allclose(group_relative(tensor(1, 0, 1, 0), group), tensor(1, -1, 1, -1) * 0.866024, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_give_exactly_zero(value):
    assert (group_relative(torch.full((7,), value), torch.zeros(7)) == 0).all()


def test_group_of_one_gives_zero():
    assert group_relative(tensor(5.0), torch.zeros(1)).tolist() == [0.0]
    assert group_relative(tensor(5.0), torch.zeros(1), singleton="raw").tolist() == [5.0]
    assert group_relative(tensor(), torch.zeros(0)).tolist() == []


@given(REWARDS, st.floats(-5, 5))
def test_adding_a_constant_changes_nothing(rewards, constant):
    r = torch.tensor(rewards, dtype=torch.float64)
    plain = group_relative(r, torch.zeros(len(r)), scale=False)
    assert torch.allclose(group_relative(r + constant, torch.zeros(len(r)), scale=False), plain, atol=1e-9)


@given(REWARDS, st.randoms())
def test_permuted_rewards_give_permuted_advantages(rewards, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    r, group = torch.tensor(rewards, dtype=torch.float64), torch.arange(len(rewards)) % 2
    assert torch.allclose(group_relative(r[order], group[order]), group_relative(r, group)[order], atol=1e-6)


@given(REWARDS, REWARDS)
def test_groups_do_not_affect_each_other(left, right):
    a, b = torch.tensor(left, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    together = group_relative(torch.cat([a, b]), torch.tensor([0] * len(a) + [1] * len(b)))
    assert torch.equal(together[: len(a)], group_relative(a, torch.zeros(len(a))))
    assert torch.equal(together[len(a) :], group_relative(b, torch.zeros(len(b))))


def test_unequal_shapes_are_refused():
    with pytest.raises(ValueError, match="rewards and group must have the same shape"):
        group_relative(tensor(1, 2), torch.zeros(3))
