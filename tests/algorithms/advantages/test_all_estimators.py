"""What holds for every estimator: it says what its naive second implementation says, and keeps the common rules."""

import inspect
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests_naive_credit as naive
from tests_batches import CRITICS, SLOW, advantages_of, asked, batches, columns
from whetstone.algorithms import ADVANTAGES, level_of

EVERY = pytest.mark.parametrize("name", sorted(ADVANTAGES))
CENTRED = ["group_relative", "batch_scaled", "leave_one_out", "opo", "pass_at_k", "reinforce_plus_plus_baseline"]
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
"""Estimators, with options under which every part of theirs is divided by a deviation."""
NO_HALF = {"hrpo": {"weight": 0.3}}
"""Options in the place of defaults with which products are exact in any width."""
FEW = settings(max_examples=min(40, settings.default.max_examples), deadline=None)
VERY_FEW = settings(max_examples=min(10, settings.default.max_examples), deadline=None)


TOKEN = dict.fromkeys(("token_values", "entropies", "old_logprobs", "reference_logprobs", "model_logprobs"), 0.0)
TURN = dict.fromkeys((*CRITICS, *SLOW, "answer_beliefs", "progress", "process_rewards", "implicit", "calls"), 0.0)
TURN |= {"state_keys": 0, "tags": 0, "matched": 1, "grounded": 0, "first_attempt": 0, "node": 0}
TURN["tokens"] = [TOKEN]
ALONE = {"group": 0, "turns": [TURN], "outcomes": 1.0, "hardness": 1.0, "greedy_rewards": 1.0, "roles": 0}
ALONE |= {"action_rewards": 0.0, **{f"last_{n}": 0.0 for n in ("token_values", *CRITICS, *SLOW)}}
"""A trajectory of one turn with one token."""


def said(name, batch):
    return advantages_of(asked(ADVANTAGES[name], columns(batch)))


@EVERY
@FEW
@given(batch=batches())
def test_it_says_what_loops_over_floats_say(name, batch):
    expected = torch.tensor(getattr(naive, name)(batch), dtype=torch.float64)
    found = said(name, batch)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9), (found, expected)


@EVERY
@VERY_FEW
@given(batch=batches())
def test_columns_of_half_the_width_are_computed_with_in_the_whole_width(name, batch):
    narrow = {key: column.float() if column.is_floating_point() else column for key, column in columns(batch).items()}
    wide = {key: column.double() if column.is_floating_point() else column for key, column in narrow.items()}
    found, expected = (asked(ADVANTAGES[name], each, **NO_HALF.get(name, {})) for each in (narrow, wide))
    pairs = [(advantages_of(found), advantages_of(expected))]
    pairs += [(found.targets[critic], said) for critic, said in getattr(expected, "targets", {}).items()]
    for mine, exact in pairs:
        assert mine.dtype is torch.float64
        assert torch.equal(mine, exact)


@EVERY
def test_critics_are_told_what_to_say_by_the_name_of_their_column(name):
    alone = columns([{**ALONE, "turns": [{**TURN, "tokens": [TOKEN, TOKEN]}]}])
    for critic, said in getattr(asked(ADVANTAGES[name], alone), "targets", {}).items():
        assert critic in inspect.signature(ADVANTAGES[name]).parameters
        assert said.shape == alone[critic].shape


@EVERY
@VERY_FEW
@given(batch=batches())
def test_no_column_is_written_to(name, batch):
    found = columns(batch)
    asked(ADVANTAGES[name], found)
    untouched = columns(batch)
    assert all(torch.equal(found[key].nan_to_num(), column.nan_to_num()) for key, column in untouched.items())


@pytest.mark.parametrize(("name", "options"), SCALED)
@VERY_FEW
@given(batch=batches())
def test_epsilon_is_added_to_every_deviation(name, options, batch):
    found = advantages_of(asked(ADVANTAGES[name], columns(batch), epsilon=1e12, **options))
    assert (found.abs() < 1e-9).all()  # rewards of a few ones over 10¹²


@EVERY
@FEW
@given(batch=batches(), seed=st.integers(0, 5))
def test_the_order_of_trajectories_matters_to_nobody(name, batch, seed):
    order = list(range(len(batch)))
    random.Random(seed).shuffle(order)
    found, moved = by_trajectory(name, batch), by_trajectory(name, [batch[i] for i in order])
    if name == "pass_at_k":  # of equally good ones the first is the best, and gets 0
        found, moved = [sorted(x) for x in found], [sorted(x) for x in moved]
    for place, i in enumerate(order):
        assert torch.allclose(torch.tensor(found[i]), torch.tensor(moved[place]), atol=1e-7)


@EVERY
@FEW
@given(batch=batches())
def test_what_tasks_and_roles_are_called_matters_to_nobody(name, batch):
    found = columns(batch)
    renamed = found | {
        key: 5 - 3 * found[key] for key in ("group", "roles", "nodes", "state_keys")
    }  # some below 0, none beside another
    said, again = (advantages_of(asked(ADVANTAGES[name], each)) for each in (found, renamed))
    assert torch.allclose(said, again, atol=1e-7)


def by_trajectory(name, batch):
    """The advantages, trajectory by trajectory."""
    found = columns(batch)
    flat = advantages_of(asked(ADVANTAGES[name], found)).tolist()
    owners = {"trajectory": range(len(batch)), "turn": found["trajectory"], "token": found["token_trajectory"]}
    owner = [int(i) for i in owners[level_of(ADVANTAGES[name])]]
    return [[a for a, i in zip(flat, owner, strict=True) if i == k] for k in range(len(batch))]


@EVERY
def test_no_number_is_lost_where_there_is_little_to_go_on(name):
    empty = {**ALONE, "turns": [{**TURN, "tokens": [], "node": 1}]}
    for batch in ([ALONE], [ALONE, ALONE], [ALONE, empty], [{**ALONE, "turns": []}]):
        assert said(name, batch).isfinite().all(), batch
    nothing = asked(ADVANTAGES[name], {key: column[:0] for key, column in columns([ALONE]).items()})
    assert len(advantages_of(nothing)) == 0


@pytest.mark.parametrize("name", CENTRED)
@FEW
@given(batch=batches(), constant=st.sampled_from([-3.0, 0.5, 10.0]))
def test_a_constant_added_to_all_rewards_changes_nothing(name, batch, constant):
    more = [{**trajectory, "outcomes": trajectory["outcomes"] + constant} for trajectory in batch]
    assert torch.allclose(said(name, batch), said(name, more), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["group_relative", "leave_one_out", "opo", "arpo", "flow_grpo", "dr_mas", "ui_s1", "igpo", "tree_ps"]
)
@FEW
@given(batch=batches(), others=batches())
def test_another_task_changes_nothing_for_this_one(name, batch, others):
    count = 1 + max(trajectory["group"] for trajectory in batch)
    apart = [relabelled(trajectory, count) for trajectory in others]
    found, together = by_trajectory(name, batch), by_trajectory(name, batch + apart)
    for mine, with_others in zip(found, together[: len(batch)], strict=True):
        assert mine == pytest.approx(with_others, abs=1e-9)


def relabelled(trajectory, count):
    turns = [{**turn, "node": turn["node"] + 10_000} for turn in trajectory["turns"]]
    return {**trajectory, "group": trajectory["group"] + count, "turns": turns}


@FEW
@given(batch=batches(), factor=st.sampled_from([0.25, 3.0]))
def test_a_factor_scales_what_is_centred_and_leaves_what_is_scaled(batch, factor):
    found = columns(batch)
    larger = found["rewards"] * factor
    leave_one_out, group_relative = ADVANTAGES["leave_one_out"], ADVANTAGES["group_relative"]
    group = found["group"]
    assert torch.allclose(leave_one_out(larger, group), factor * leave_one_out(found["rewards"], group), atol=1e-9)
    exact = {"epsilon": 0.0}
    assert torch.allclose(
        group_relative(larger, group, **exact), group_relative(found["rewards"], group, **exact), atol=1e-6
    )
