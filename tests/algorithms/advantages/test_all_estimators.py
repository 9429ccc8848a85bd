"""What holds for every estimator: it says what its naive second implementation says, and keeps the common rules."""

import copy
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
FEW = settings(max_examples=40, deadline=None)


def said(name, batch):
    return advantages_of(asked(ADVANTAGES[name], columns(batch)))


@EVERY
@FEW
@given(batch=batches())
def test_it_says_what_loops_over_floats_say(name, batch):
    expected = torch.tensor(getattr(naive, name)(batch), dtype=torch.float64)
    found = said(name, batch)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-7), (found, expected)


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
    token = {"token_values": 0.0, "entropies": 0.0, "old_logprobs": 0.0, "reference_logprobs": 0.0}
    turn = dict.fromkeys((*CRITICS, *SLOW, "answer_beliefs", "progress", "process_rewards", "implicit", "calls"), 0.0)
    turn |= {"state_keys": 0, "tags": 0, "matched": 1, "grounded": 0, "node": 0, "tokens": [token]}
    token["model_logprobs"] = 0.0
    alone = {"group": 0, "turns": [turn], "outcomes": 1.0, "hardness": 1.0, "greedy_rewards": 1.0, "roles": 0}
    alone |= {"action_rewards": 0.0, **{f"last_{n}": 0.0 for n in ("token_values", *CRITICS, *SLOW)}}
    empty = {**copy.deepcopy(alone), "turns": [{**copy.deepcopy(turn), "tokens": [], "node": 1}]}
    for batch in ([alone], [alone, copy.deepcopy(alone)], [alone, empty], [{**alone, "turns": []}]):
        assert said(name, batch).isfinite().all(), batch
    nothing = asked(ADVANTAGES[name], {key: column[:0] for key, column in columns([alone]).items()})
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
