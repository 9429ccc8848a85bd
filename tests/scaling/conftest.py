"""Processes that learn, begun once for a module."""

import pytest


def _processes(count):
    from whetstone.scaling.learners.processes import LearnerProcesses  # loads torch

    processes = LearnerProcesses(count)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def two():
    yield from _processes(2)


@pytest.fixture(scope="module")
def four():
    yield from _processes(4)
