"""Forgetting and transfer: worked numbers, the formulas of the papers as a second implementation, and the table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.evaluation.continual_learning import compute_transfer, format_transfer, summarize_transfer

# success on suites A, B, C before training and after the stages that train on A, B and C
WORKED = {"a": [0.1, 0.9, 0.7, 0.4], "b": [0.2, 0.3, 0.8, 0.9], "c": [0.0, 0.1, 0.3, 0.6]}
STAGES = ["untrained", "first", "second", "third"]


def transfers(matrix):
    return {name: compute_transfer(dict(zip(STAGES, rates, strict=True)), stage)
            for (name, rates), stage in zip(matrix.items(), STAGES[1:], strict=True)}  # fmt: skip


def test_worked_sequence_of_three_tasks():
    summary = summarize_transfer(transfers(WORKED))
    assert summary["mean_success"] == pytest.approx((0.4 + 0.9 + 0.6) / 3)
    assert summary["backward_transfer"] == pytest.approx((0.4 - 0.9 + 0.9 - 0.8) / 2)
    assert summary["forward_transfer"] == pytest.approx((0.3 - 0.2 + 0.3 - 0.0) / 2)
    assert [summary["suites"][name]["forgetting"] for name in "ab"] == pytest.approx([0.5, -0.1])
    assert summary["suites"]["c"]["forgetting"] is None  # the last stage trains on it
    assert summary["forgetting"] == pytest.approx(0.2)


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_means_are_the_formulas_of_gem(values):
    r = np.array(values).reshape(3, 4).T  # r[i, j]: after stage i on suite j
    last = 3
    acc = sum(r[last, j] for j in range(3)) / 3
    bwt = sum(r[last, i] - r[i + 1, i] for i in range(2)) / 2
    fwt = sum(r[i, i] - r[0, i] for i in range(1, 3)) / 2
    summary = summarize_transfer(transfers({name: list(r[:, j]) for j, name in enumerate("abc")}))
    means = [summary[key] for key in ("mean_success", "backward_transfer", "forward_transfer")]
    assert means == pytest.approx([acc, bwt, fwt])


def test_suite_without_a_stage_shows_the_effect_of_the_whole_run():
    other = compute_transfer({"untrained": 0.5, "first": 0.7, "second": 0.4}, None)
    assert (other.forward_transfer, other.backward_transfer) == (pytest.approx(-0.1), None)
    assert other.forgetting == pytest.approx(0.3)


def test_table_has_a_line_per_suite_and_the_means():
    lines = format_transfer(summarize_transfer(transfers(WORKED)))
    assert lines[0].split() == ["suite", *STAGES, "forward", "transfer", "backward", "transfer", "forgetting"]
    assert lines[1].split() == ["a", *["10.0", "%", "90.0", "%", "70.0", "%", "40.0", "%", "–", "-50.0", "+50.0"]]
    assert lines[-1].split() == ["mean", *["63.3", "%", "+20.0", "-20.0", "+20.0"]]
    assert len({len(line) for line in lines}) == 1


def test_transfer_requires_a_stage():
    with pytest.raises(ValueError, match="before training and one after a stage"):
        compute_transfer({"untrained": 0.5}, None)
