"""Learner processes, started once per module."""

import pytest


def _processes(count):
    from whetstone.scaling.distributed_learner.processes import LearnerProcesses  # loads torch

    processes = LearnerProcesses(count)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def two():
    yield from _processes(2)


@pytest.fixture(scope="module")
def four():
    yield from _processes(4)
