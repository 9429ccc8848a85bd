"""Properties of every advantage estimator: agreement with a naive implementation, and the common rules."""

import inspect
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import support.naive_advantages as naive
from support.batches import CRITICS, SLOW, advantages_of, batches, call_with_columns, columns
from whetstone.algorithms import ADVANTAGES, annotated_level

EVERY = pytest.mark.parametrize("name", sorted(ADVANTAGES))
CENTERED = ["group_relative", "batch_scaled", "leave_one_out", "opo", "pass_at_k", "reinforce_plus_plus_baseline"]
SCALED = [
    ("arpo", {}),
    ("batch_scaled", {}),
    ("dgrpo", {}),
    ("dr_mas", {}),
    ("flow_grpo", {}),
    ("flow_grpo", {"weight": "trajectory"}),
    ("gigpo", {"scale": True}),
    ("gigpo", {"scale": True, "weight": "turn"}),
    ("group_relative", {}),
    ("hrpo", {"weight": 0.0}),
    ("igpo", {}),
    ("igpo", {"norm": "pooled"}),
    ("matchtir", {}),
    ("oprl", {"scale": "set"}),
    ("pass_at_k", {"scale": True}),
    ("portool", {}),
    ("rlvmr", {}),
    ("ui_s1", {}),
]
"""Estimators, with options under which each part is divided by a standard deviation."""
NO_HALF = {"hrpo": {"weight": 0.3}}
"""Options with which products are exact in every precision, instead of the defaults."""
FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
VERY_FEW = settings(max_examples=min(10, settings.default.max_examples), deadline=None)


TOKEN = dict.fromkeys(("token_values", "entropies", "old_logprobs", "reference_logprobs", "model_logprobs"), 0.0)
TURN = dict.fromkeys((*CRITICS, *SLOW, "answer_beliefs", "progress", "process_rewards", "implicit", "calls"), 0.0)
TURN |= {"state_keys": 0, "tags": 0, "matched": 1, "grounded": 0, "first_attempt": 0, "node": 0}
TURN["tokens"] = [TOKEN]
ALONE = {"group": 0, "turns": [TURN], "outcomes": 1.0, "hardness": 1.0, "greedy_rewards": 1.0, "roles": 0}
ALONE |= {"action_rewards": 0.0, **{f"last_{n}": 0.0 for n in ("token_values", *CRITICS, *SLOW)}}
"""A trajectory of one turn with one token."""


def estimate(name, batch):
    return advantages_of(call_with_columns(ADVANTAGES[name], columns(batch)))


@EVERY
@FEW
@given(batch=batches())
def test_estimator_equals_loops_over_floats(name, batch):
    expected = torch.tensor(getattr(naive, name)(batch), dtype=torch.float64)
    actual = estimate(name, batch)
    assert actual.shape == expected.shape
    assert torch.allclose(actual, expected, rtol=1e-9, atol=1e-9), (actual, expected)


@EVERY
@VERY_FEW
@given(batch=batches())
def test_half_precision_columns_are_computed_in_full_precision(name, batch):
    narrow = {key: column.float() if column.is_floating_point() else column for key, column in columns(batch).items()}
    wide = {key: column.double() if column.is_floating_point() else column for key, column in narrow.items()}
    result, expected = (call_with_columns(ADVANTAGES[name], each, **NO_HALF.get(name, {})) for each in (narrow, wide))
    pairs = [(advantages_of(result), advantages_of(expected))]
    pairs += [(result.targets[critic], target) for critic, target in getattr(expected, "targets", {}).items()]
    for actual, exact in pairs:
        assert actual.dtype is torch.float64
        assert torch.equal(actual, exact)


@EVERY
def test_targets_are_keyed_by_the_column_of_their_critic(name):
    alone = columns([{**ALONE, "turns": [{**TURN, "tokens": [TOKEN, TOKEN]}]}])
    for critic, target in getattr(call_with_columns(ADVANTAGES[name], alone), "targets", {}).items():
        assert critic in inspect.signature(ADVANTAGES[name]).parameters
        assert target.shape == alone[critic].shape


@EVERY
@VERY_FEW
@given(batch=batches())
def test_columns_are_not_modified(name, batch):
    inputs = columns(batch)
    call_with_columns(ADVANTAGES[name], inputs)
    untouched = columns(batch)
    assert all(torch.equal(inputs[key].nan_to_num(), column.nan_to_num()) for key, column in untouched.items())


@pytest.mark.parametrize(("name", "options"), SCALED)
@VERY_FEW
@given(batch=batches())
def test_epsilon_is_added_to_every_deviation(name, options, batch):
    advantages = advantages_of(call_with_columns(ADVANTAGES[name], columns(batch), epsilon=1e12, **options))
    assert (advantages.abs() < 1e-9).all()  # rewards of a few ones over 10¹²


@EVERY
@FEW
@given(batch=batches(), seed=st.integers(0, 5))
def test_order_of_trajectories_has_no_effect(name, batch, seed):
    order = list(range(len(batch)))
    random.Random(seed).shuffle(order)
    advantages, moved = by_trajectory(name, batch), by_trajectory(name, [batch[i] for i in order])
    if name == "pass_at_k":  # of equal rewards the first counts as the best, and has advantage 0
        advantages, moved = [sorted(x) for x in advantages], [sorted(x) for x in moved]
    for place, i in enumerate(order):
        assert torch.allclose(torch.tensor(advantages[i]), torch.tensor(moved[place]), atol=1e-7)


@EVERY
@FEW
@given(batch=batches())
def test_numbers_of_tasks_and_roles_have_no_effect(name, batch):
    inputs = columns(batch)
    renamed = inputs | {
        key: 5 - 3 * inputs[key] for key in ("group", "roles", "nodes", "state_keys")
    }  # some below 0, none consecutive
    advantages, with_renamed = (advantages_of(call_with_columns(ADVANTAGES[name], each)) for each in (inputs, renamed))
    assert torch.allclose(advantages, with_renamed, atol=1e-7)


def by_trajectory(name, batch):
    """Return the advantages per trajectory."""
    inputs = columns(batch)
    flat = advantages_of(call_with_columns(ADVANTAGES[name], inputs)).tolist()
    owners = {"trajectory": range(len(batch)), "turn": inputs["trajectory"], "token": inputs["token_trajectory"]}
    owner = [int(i) for i in owners[annotated_level(ADVANTAGES[name])]]
    return [[a for a, i in zip(flat, owner, strict=True) if i == k] for k in range(len(batch))]


@EVERY
def test_degenerate_batches_give_finite_advantages(name):
    empty = {**ALONE, "turns": [{**TURN, "tokens": [], "node": 1}]}
    for batch in ([ALONE], [ALONE, ALONE], [ALONE, empty], [{**ALONE, "turns": []}]):
        assert estimate(name, batch).isfinite().all(), batch
    nothing = call_with_columns(ADVANTAGES[name], {key: column[:0] for key, column in columns([ALONE]).items()})
    assert len(advantages_of(nothing)) == 0


@pytest.mark.parametrize("name", CENTERED)
@FEW
@given(batch=batches(), constant=st.sampled_from([-3.0, 0.5, 10.0]))
def test_constant_added_to_all_rewards_changes_nothing(name, batch, constant):
    more = [{**trajectory, "outcomes": trajectory["outcomes"] + constant} for trajectory in batch]
    assert torch.allclose(estimate(name, batch), estimate(name, more), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["group_relative", "leave_one_out", "opo", "arpo", "flow_grpo", "dr_mas", "ui_s1", "igpo", "tree_ps"]
)
@FEW
@given(batch=batches(), others=batches())
def test_other_tasks_do_not_change_advantages(name, batch, others):
    count = 1 + max(trajectory["group"] for trajectory in batch)
    relabeled = [relabel(trajectory, count) for trajectory in others]
    advantages, together = by_trajectory(name, batch), by_trajectory(name, batch + relabeled)
    for expected, with_others in zip(advantages, together[: len(batch)], strict=True):
        assert expected == pytest.approx(with_others, abs=1e-9)


def relabel(trajectory, count):
    turns = [{**turn, "node": turn["node"] + 10_000} for turn in trajectory["turns"]]
    return {**trajectory, "group": trajectory["group"] + count, "turns": turns}


@FEW
@given(batch=batches(), factor=st.sampled_from([0.25, 3.0]))
def test_factor_scales_centered_and_leaves_normalized_advantages(batch, factor):
    inputs = columns(batch)
    larger = inputs["rewards"] * factor
    leave_one_out, group_relative = ADVANTAGES["leave_one_out"], ADVANTAGES["group_relative"]
    group = inputs["group"]
    assert torch.allclose(leave_one_out(larger, group), factor * leave_one_out(inputs["rewards"], group), atol=1e-9)
    exact = {"epsilon": 0.0}
    assert torch.allclose(
        group_relative(larger, group, **exact), group_relative(inputs["rewards"], group, **exact), atol=1e-6
    )
