"""Ranks that compute each layer together learn what one process learns, and go on from one another's checkpoints."""

import pytest

from tests_learners import FORMS, assert_same_update
from whetstone.scaling.learners.processes import LearnerProcesses


@pytest.fixture(scope="module")
def two():
    processes = LearnerProcesses(2)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def four():
    processes = LearnerProcesses(4)
    yield processes
    processes.close()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_that_share_each_layer_have_the_loss_and_gradient_of_one(two, form):
    assert_same_update(form, two, tensor_parallel=2)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_groups_of_two_have_the_loss_and_gradient_of_one(four, form):
    assert_same_update(form, four, tensor_parallel=2)
