"""What a token's loss counts for, and that cutting an update changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of, whole
from whetstone.algorithms.objectives import aggregated, token_weights

LOSS, SEQUENCE = of(1, 1, 3, 3, 3, 3), whole(0, 0, 1, 1, 1, 1)


def test_worked_numbers():
    said = {mode: aggregated(LOSS, SEQUENCE, mode).item() for mode in ("token_mean", "sequence_sum", "sequence_mean")}
    assert said == {"token_mean": pytest.approx(14 / 6), "sequence_sum": 7.0, "sequence_mean": 2.0}
    assert aggregated(LOSS, SEQUENCE, "constant", constant=8).item() == 0.875  # 14 / (2 · 8), not 14 / 8


def test_what_each_token_counts_for():
    lengths = whole(2, 4)
    assert token_weights(lengths).tolist() == pytest.approx([1 / 6, 1 / 6])
    assert token_weights(lengths, "sequence_sum").tolist() == [0.5, 0.5]
    assert token_weights(lengths, "sequence_mean").tolist() == [0.25, 0.125]
    assert token_weights(lengths, "constant", constant=8).tolist() == [0.0625, 0.0625]


def test_sequences_without_a_token_count_in_nothing():
    for mode in ("token_mean", "sequence_sum", "sequence_mean"):
        assert aggregated(LOSS, SEQUENCE, mode, sequences=5) == aggregated(LOSS, SEQUENCE, mode)
        assert token_weights(whole(0, 0), mode).tolist() == [0, 0]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sampled_from(["token_mean", "sequence_mean"]))
def test_an_update_in_pieces_is_the_update_whole(lengths, mode):
    sequence = whole(*(i for i, n in enumerate(lengths) for _ in range(n)))
    loss = torch.arange(len(sequence), dtype=torch.float64)
    weights = token_weights(whole(*lengths), mode)
    pieces = sum((loss[sequence == i] * weights[i]).sum() for i in range(len(lengths)))
    assert pieces.item() == pytest.approx(aggregated(loss, sequence, mode).item())


@given(st.integers(1, 5), st.integers(1, 5))
def test_with_equal_lengths_token_and_sequence_means_are_one(count, length):
    lengths = whole(*[length] * count)
    assert torch.allclose(token_weights(lengths), token_weights(lengths, "sequence_mean"))


def test_a_constant_must_be_said():
    with pytest.raises(ValueError, match="divides by a number of tokens above 0"):
        token_weights(whole(1), "constant")
