"""`kl_penalty` subtracts a KL term per token from rewards."""

import pytest

from support.batches import of
from whetstone.algorithms.shaping import kl_penalty


def test_worked_numbers():
    rewards = kl_penalty(of(0, 0, 1), of(-1, -1, -1), of(-1.2, -0.9, -1.4), weight=0.1)
    assert rewards.tolist() == pytest.approx([-0.02, 0.01, 0.96])


def test_penalty_of_an_impossible_token_is_bounded():
    assert kl_penalty(of(0), of(-1), of(-1e4), weight=1.0).tolist() == [-20]
