"""Stored trajectories: what is stored, when it comes back, what its ratios compare with, and when it vanishes."""

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from tests_episodes import TASK, group, heard, path, turn
from whetstone.errors import CreditError
from whetstone.plugins import OptionError
from whetstone.rollout.replay import SelfImitation, SuccessReplay
from whetstone.rollout.replay.self_imitation import ascent, recalibrated
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, Group, OffPolicy, Provenance, Task, Tokens

DRAW = derive_random("test")


def failed(size=8, number=5):
    return group(*[0] * size, number=number)


def filled(**options):
    made = SuccessReplay(**options)
    made.observe(heard(group(1, 0)))
    return made


# ------------------------------------------------------------ successes replayed


def test_arpo_gui_worked_numbers():
    made = filled()
    injected = made(failed(), DRAW)
    rewards = injected.rewards
    assert rewards == (1, 0, 0, 0, 0, 0, 0, 0)
    advantages = [(r - fmean(rewards)) / stdev(rewards) for r in rewards]
    assert advantages[:2] == pytest.approx([2.4749, -0.3536], abs=1e-4)
    assert made(group(*[0.3] * 8), DRAW).rewards == (0.3,) * 8  # equal, and not low


def test_what_is_replayed_is_known_for_what_it_is():
    first, *rest = filled(off_policy=OffPolicy.STORED)(failed(), DRAW).trajectories
    assert first.id == "group-5/replayed/0/0"
    assert (first.provenance, first.off_policy) == (Provenance.REPLAYED, OffPolicy.STORED)
    assert [t.id for t in rest] == [f"5/{k}" for k in range(1, 8)]


def test_a_group_never_replays_itself_nor_what_was_replayed():
    made = SuccessReplay()
    assert made(failed(), DRAW).rewards == (0,) * 8  # nothing is stored yet
    made.observe(heard(group(1, 0, provenance=Provenance.REPLAYED)))
    assert len(made.buffer) == 0


def test_only_of_the_same_task():
    made = SuccessReplay()
    made.observe(heard(group(1, 0, task=Task("other", ""))))
    assert made(failed(), DRAW).rewards == (0,) * 8


def test_dart_replaces_by_the_newest_where_nothing_succeeded():
    made = SuccessReplay(below=0.0001, pick="newest")
    for k in range(3):
        made.observe(heard(Group(TASK, (path(f"s{k}", 1),)), step=k + 1))
    injected = made(failed(), DRAW)
    assert injected.trajectories[0].id.endswith("s2")
    assert fmean(injected.rewards) == 0.125
    assert made(group(0.1, 0, 0, 0), DRAW).rewards == (0.1, 0, 0, 0)


def test_the_buffer_is_bounded_by_task_in_all_and_by_age():
    component = SuccessReplay(max_per_task=2, capacity=3, max_age_updates=5)
    for k in range(4):
        component.observe(heard(Group(TASK, (path(f"s{k}", 1),)), step=k + 1))
    assert len(component.buffer) == 2
    for k in range(4):
        component.observe(heard(Group(Task(f"t{k}", ""), (path(f"o{k}", 1),)), step=5 + k))
    assert len(component.buffer) == 3
    component.observe(heard(step=50))
    assert component(Group(Task("t3", ""), failed().trajectories), DRAW).rewards == (0,) * 8


def test_with_a_bound_of_zero_nothing_is_ever_replayed():
    assert filled(below=0)(failed(), DRAW).rewards == (0,) * 8


def test_a_correction_that_needs_log_probs_refuses_what_has_none():
    written = replace(turn("4"), action=Tokens.written((7,), Author.EXPERT))
    unknown = replace(turn("4"), action=replace(turn("4").action, logprobs=(math.nan, math.nan)))
    made = SuccessReplay(off_policy=OffPolicy.STORED)
    made.observe(heard(Group(TASK, (path("s", 1, [written]),))))
    assert made(failed(), DRAW).rewards[0] == 1  # an expert's tokens have no ratio
    made = SuccessReplay(off_policy=OffPolicy.STORED)
    made.observe(heard(Group(TASK, (path("s", 1, [unknown]),))))
    with pytest.raises(CreditError, match="s: has no log-probs from when it was drawn"):
        made(failed(), DRAW)


def test_it_is_remembered_whole():
    made, again = filled(), SuccessReplay()
    again.load_state(made.state())
    assert again.state() == made.state()
    ours, theirs = (each(failed(), derive_random(0)).trajectories[0] for each in (made, again))
    assert ours.turns[0].action == theirs.turns[0].action
    assert ours.score == theirs.score


# ------------------------------------------------------------ self-imitation


def test_spear_worked_numbers():
    assert recalibrated([1.0, 0.5, 0.2], 0.5) == pytest.approx([0.5, 0, -0.3])
    assert [ascent(g) for g in (0, 50, 100, 200, 900)] == pytest.approx([0, 0.1464, 0.5, 1, 1], abs=1e-4)


def imitating(count, **options):
    made = SelfImitation(size=2, ascent_steps=1, **options)
    for k in range(count):
        made.observe(heard(Group(TASK, (path(f"s{k}", 1), path(f"f{k}", 0))), step=k + 1))
    return made


def test_a_second_pass_comes_once_enough_is_better_than_usual_and_empties_the_buffer():
    made = imitating(3)
    assert made.again(3, DRAW) == []  # three are not more than 1.5 times two
    made = imitating(4)
    groups = made.again(4, derive_random(0))
    assert len(groups) == 2
    for each in groups:
        (trajectory,) = each.trajectories
        assert trajectory.score.parts == {"advantage": 0.5}  # 1 − the median of group means
        assert trajectory.off_policy is OffPolicy.STORED
    made.observe(heard(step=5))
    assert (len(made.buffer), made.passes) == (0, 1)


def test_old_and_now_usual_successes_vanish():
    assert imitating(4, max_age_updates=1).again(40, DRAW) == []
    made = imitating(4)
    made.baselines.extend([1.0] * 9)  # what was good is usual by now
    assert made.again(4, DRAW) == []


def test_with_weight_zero_it_is_as_if_it_was_not_there():
    assert imitating(9, weight=0).again(9, DRAW) == []


def test_failures_and_what_had_no_advantage_are_not_stored():
    made = SelfImitation(size=2)
    made.observe(heard(group(0, 0)))
    made.observe(heard(group(1, 0), advantages={}))
    assert len(made.buffer) == 0
    again = SelfImitation(size=2)
    again.load_state(imitating(4).state())
    assert again.state() == imitating(4).state()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SuccessReplay(off_policy=OffPolicy.MIXTURE), "recompute, stored or truncated"),
        (lambda: SuccessReplay(max_per_task=8, capacity=4), "or more, got 4"),
        (lambda: SelfImitation(size=0), "one trajectory"),
    ],
)
def test_options_that_cannot_be(made, said):
    with pytest.raises(OptionError, match=said):
        made()
