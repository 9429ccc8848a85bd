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
    # the second of three sequences is empty: Σ n = 4, N = 2
    said = {"token_mean": [0.25, 0, 0.25], "sequence_sum": [0.5, 0, 0.5], "sequence_mean": [0.5, 0, 1 / 6]}
    for mode, weights in said.items():
        assert token_weights(whole(1, 0, 3), mode).tolist() == pytest.approx(weights)
        assert token_weights(whole(0, 0), mode).tolist() == [0, 0]
        assert aggregated(of(1, 3, 3, 3), whole(0, 2, 2, 2), mode).item() == pytest.approx(weights[0] + 9 * weights[2])
    assert token_weights(whole(1, 0, 3), "constant", constant=2).tolist() == [0.25, 0, 0.25]


@pytest.mark.parametrize("mode", ["token_mean", "sequence_sum", "sequence_mean", "constant"])
def test_weights_have_the_whole_width_and_the_loss_its_own(mode):
    assert token_weights(whole(1, 3), mode, constant=7).dtype is torch.float64
    assert aggregated(LOSS.float(), SEQUENCE, mode, constant=7).dtype is torch.float32


def test_no_token_is_no_loss():
    assert aggregated(of(), whole()).item() == 0


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
    for constant in (None, 0, -1):
        with pytest.raises(ValueError, match=f"divides by a number of tokens above 0, got {constant}"):
            token_weights(whole(1), "constant", constant=constant)
    assert token_weights(whole(1), "constant", constant=1).tolist() == [1]
    assert token_weights(whole(1), "constant", constant=0.5).tolist() == [2]
