"""Credit as a target."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import digirl
from whetstone.algorithms.objectives import advantage_regression, advantage_weighted, policy_gradient


def test_weights_grow_with_the_advantage_up_to_a_cap():
    now = of(-1, -1, -1, -1).requires_grad_()
    found = advantage_weighted(now, of(-1, 0, 1, 3))
    found.loss.sum().backward()
    assert found.loss.tolist() == pytest.approx([0.367879, 1, 2.718282, 20], abs=1e-5)
    assert now.grad.tolist() == pytest.approx([-0.367879, -1, -2.718282, -20], abs=1e-5)
    assert advantage_weighted(of(-1), of(1e9)).loss.item() == 20
    with pytest.raises(ValueError, match="temperature"):
        advantage_weighted(of(-1), of(1), temperature=0)


def test_filtered_turns_are_those_whose_advantage_is_one():
    credit = digirl(of(0, 0), of(0.5, 0.6), of(0), of(0.5, 0.6), of(0), whole(0, 0)).advantages
    assert credit.tolist() == [1, 0]  # .6 − .5 − .05; 0 − .6 − .05
    found = policy_gradient(of(-2, -1), credit).loss
    assert found.mean().item() == 1.0


def said(**options):
    """Five tokens whose log-probs sum to −8, against −10 under the reference; credit 1."""
    now, reference = of(*[-1.6] * 5).requires_grad_(), of(*[-2.0] * 5)
    loss = advantage_regression(now, reference, of(*[1.0] * 5), whole(*[0] * 5), whole(*[0] * 5), **options).loss.mean()
    loss.backward()
    return loss.item(), now.grad.tolist()


def test_worked_numbers():
    # mean log-ratio .4; .4 − 1
    assert said() == (pytest.approx(0.18), pytest.approx([-0.12] * 5))
    assert said(form="squared") == (pytest.approx(0.36), pytest.approx([-0.24] * 5))


def test_beyond_its_target_it_turns_back():
    now = of(1.5).requires_grad_()
    advantage_regression(now, of(0), of(1), whole(0), whole(0), form="squared").loss.sum().backward()
    assert now.grad.item() == pytest.approx(1.0)


def test_negatives_are_dropped_or_kept():
    columns = of(0), of(-1), whole(0), whole(0)
    for negatives, expected in (("drop", 0.0), ("keep", 2.0)):
        now = of(0).requires_grad_()
        advantage_regression(now, *columns, form="squared", negatives=negatives).loss.sum().backward()
        assert now.grad.item() == expected
