"""Loss aggregation: weights of tokens, and independence of micro-batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.batches import integers, of
from whetstone.algorithms.objectives import aggregate_loss, token_weights

LOSS, SEQUENCE = of(1, 1, 3, 3, 3, 3), integers(0, 0, 1, 1, 1, 1)


def test_worked_numbers():
    means = {
        mode: aggregate_loss(LOSS, SEQUENCE, mode).item() for mode in ("token_mean", "sequence_sum", "sequence_mean")
    }
    assert means == {"token_mean": pytest.approx(14 / 6), "sequence_sum": 7.0, "sequence_mean": 2.0}
    assert aggregate_loss(LOSS, SEQUENCE, "constant", constant=8).item() == 0.875  # 14 / (2 · 8), not 14 / 8


def test_token_weights_per_mode():
    lengths = integers(2, 4)
    assert token_weights(lengths).tolist() == pytest.approx([1 / 6, 1 / 6])
    assert token_weights(lengths, "sequence_sum").tolist() == [0.5, 0.5]
    assert token_weights(lengths, "sequence_mean").tolist() == [0.25, 0.125]
    assert token_weights(lengths, "constant", constant=8).tolist() == [0.0625, 0.0625]


def test_sequences_without_tokens_do_not_count():
    # the second of three sequences is empty: Σ n = 4, N = 2
    expected = {"token_mean": [0.25, 0, 0.25], "sequence_sum": [0.5, 0, 0.5], "sequence_mean": [0.5, 0, 1 / 6]}
    for mode, weights in expected.items():
        assert token_weights(integers(1, 0, 3), mode).tolist() == pytest.approx(weights)
        assert token_weights(integers(0, 0), mode).tolist() == [0, 0]
        assert aggregate_loss(of(1, 3, 3, 3), integers(0, 2, 2, 2), mode).item() == pytest.approx(
            weights[0] + 9 * weights[2]
        )
    assert token_weights(integers(1, 0, 3), "constant", constant=2).tolist() == [0.25, 0, 0.25]


@pytest.mark.parametrize("mode", ["token_mean", "sequence_sum", "sequence_mean", "constant"])
def test_weights_have_full_precision_and_the_loss_its_own(mode):
    assert token_weights(integers(1, 3), mode, constant=7).dtype is torch.float64
    assert aggregate_loss(LOSS.float(), SEQUENCE, mode, constant=7).dtype is torch.float32


def test_no_tokens_give_zero_loss():
    assert aggregate_loss(of(), integers()).item() == 0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sampled_from(["token_mean", "sequence_mean"]))
def test_sum_over_micro_batches_is_the_loss_of_the_update(lengths, mode):
    sequence = integers(*(i for i, n in enumerate(lengths) for _ in range(n)))
    loss = torch.arange(len(sequence), dtype=torch.float64)
    weights = token_weights(integers(*lengths), mode)
    pieces = sum((loss[sequence == i] * weights[i]).sum() for i in range(len(lengths)))
    assert pieces.item() == pytest.approx(aggregate_loss(loss, sequence, mode).item())


@given(st.integers(1, 5), st.integers(1, 5))
def test_equal_lengths_give_equal_token_and_sequence_means(count, length):
    lengths = integers(*[length] * count)
    assert torch.allclose(token_weights(lengths), token_weights(lengths, "sequence_mean"))


def test_constant_is_required():
    for constant in (None, 0, -1):
        with pytest.raises(ValueError, match=f"constant needs a number of tokens above 0, got {constant}"):
            token_weights(integers(1), "constant", constant=constant)
    assert token_weights(integers(1), "constant", constant=1).tolist() == [1]
    assert token_weights(integers(1), "constant", constant=0.5).tolist() == [2]
