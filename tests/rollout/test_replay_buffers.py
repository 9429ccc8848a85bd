"""Replay buffers: stored trajectories, when they are replayed, their importance ratios, and when they are evicted."""

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from support.episodes import TASK, group, path, step_outcome, turn
from whetstone.errors import CreditError
from whetstone.plugins import OptionError
from whetstone.rollout.replay import SelfImitation, SuccessReplay
from whetstone.rollout.replay.self_imitation import center_on_baseline, second_pass_weight
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, Group, OffPolicy, Provenance, Task, Tokens

DRAW = derive_random("test")


def failed(size=8, number=5):
    return group(*[0] * size, number=number)


def filled_replay(**options):
    replay = SuccessReplay(**options)
    replay.observe(step_outcome(group(1, 0)))
    return replay


# ------------------------------------------------------------ successes replayed


def test_arpo_gui_worked_numbers():
    replay = filled_replay()
    injected = replay(failed(), DRAW)
    rewards = injected.rewards
    assert rewards == (1, 0, 0, 0, 0, 0, 0, 0)
    advantages = [(r - fmean(rewards)) / stdev(rewards) for r in rewards]
    assert advantages[:2] == pytest.approx([2.4749, -0.3536], abs=1e-4)
    assert replay(group(*[0.3] * 8), DRAW).rewards == (0.3,) * 8  # equal, and not low


def test_replayed_trajectory_is_marked():
    first, *rest = filled_replay(off_policy=OffPolicy.STORED)(failed(), DRAW).trajectories
    assert first.id == "group-5/replayed/0/0"
    assert (first.provenance, first.off_policy) == (Provenance.REPLAYED, OffPolicy.STORED)
    assert [t.id for t in rest] == [f"5/{k}" for k in range(1, 8)]


def test_group_replays_neither_itself_nor_replayed_trajectories():
    replay = SuccessReplay()
    assert replay(failed(), DRAW).rewards == (0,) * 8  # nothing is stored yet
    replay.observe(step_outcome(group(1, 0, provenance=Provenance.REPLAYED)))
    assert len(replay.buffer) == 0


def test_only_trajectories_of_the_same_task_are_replayed():
    replay = SuccessReplay()
    replay.observe(step_outcome(group(1, 0, task=Task("other", ""))))
    assert replay(failed(), DRAW).rewards == (0,) * 8


def test_dart_replays_the_newest_if_no_trajectory_succeeded():
    replay = SuccessReplay(below=0.0001, pick="newest")
    for k in range(3):
        replay.observe(step_outcome(Group(TASK, (path(f"s{k}", 1),)), step=k + 1))
    injected = replay(failed(), DRAW)
    assert injected.trajectories[0].id.endswith("s2")
    assert fmean(injected.rewards) == 0.125
    assert replay(group(0.1, 0, 0, 0), DRAW).rewards == (0.1, 0, 0, 0)


def test_buffer_is_bounded_per_task_in_total_and_by_age():
    component = SuccessReplay(max_per_task=2, capacity=3, max_age_updates=5)
    for k in range(4):
        component.observe(step_outcome(Group(TASK, (path(f"s{k}", 1),)), step=k + 1))
    assert len(component.buffer) == 2
    for k in range(4):
        component.observe(step_outcome(Group(Task(f"t{k}", ""), (path(f"o{k}", 1),)), step=5 + k))
    assert len(component.buffer) == 3
    component.observe(step_outcome(step=50))
    assert component(Group(Task("t3", ""), failed().trajectories), DRAW).rewards == (0,) * 8


def test_threshold_of_zero_replays_nothing():
    assert filled_replay(below=0)(failed(), DRAW).rewards == (0,) * 8


def test_correction_that_needs_log_probs_refuses_trajectories_without_them():
    written = replace(turn("4"), action=Tokens.from_ids((7,), Author.EXPERT))
    unknown = replace(turn("4"), action=replace(turn("4").action, logprobs=(math.nan, math.nan)))
    replay = SuccessReplay(off_policy=OffPolicy.STORED)
    replay.observe(step_outcome(Group(TASK, (path("s", 1, [written]),))))
    assert replay(failed(), DRAW).rewards[0] == 1  # an expert's tokens have no ratio
    replay = SuccessReplay(off_policy=OffPolicy.STORED)
    replay.observe(step_outcome(Group(TASK, (path("s", 1, [unknown]),))))
    with pytest.raises(CreditError, match="s: has no log-probs from sampling"):
        replay(failed(), DRAW)


def test_state_is_restored():
    replay, restored = filled_replay(), SuccessReplay()
    restored.load_state(replay.state())
    assert restored.state() == replay.state()
    expected, trajectory = (each(failed(), derive_random(0)).trajectories[0] for each in (replay, restored))
    assert expected.turns[0].action == trajectory.turns[0].action
    assert expected.score == trajectory.score


# ------------------------------------------------------------ self-imitation


def test_spear_worked_numbers():
    assert center_on_baseline([1.0, 0.5, 0.2], 0.5) == pytest.approx([0.5, 0, -0.3])
    assert [second_pass_weight(g) for g in (0, 50, 100, 200, 900)] == pytest.approx([0, 0.1464, 0.5, 1, 1], abs=1e-4)


def filled_imitation(count, **options):
    imitation = SelfImitation(size=2, ascent_steps=1, **options)
    for k in range(count):
        imitation.observe(step_outcome(Group(TASK, (path(f"s{k}", 1), path(f"f{k}", 0))), step=k + 1))
    return imitation


def test_second_pass_follows_enough_better_trajectories_and_empties_the_buffer():
    imitation = filled_imitation(3)
    assert imitation.second_pass_groups(3, DRAW) == []  # three are not more than 1.5 times two
    imitation = filled_imitation(4)
    groups = imitation.second_pass_groups(4, derive_random(0))
    assert len(groups) == 2
    for each in groups:
        (trajectory,) = each.trajectories
        assert trajectory.score.parts == {"advantage": 0.5}  # 1 − the median of group means
        assert trajectory.off_policy is OffPolicy.STORED
    imitation.observe(step_outcome(step=5))
    assert (len(imitation.buffer), imitation.passes) == (0, 1)


def test_old_and_ordinary_successes_are_evicted():
    assert filled_imitation(4, max_age_updates=1).second_pass_groups(40, DRAW) == []
    imitation = filled_imitation(4)
    imitation.baselines.extend([1.0] * 9)  # the reward is ordinary by now
    assert imitation.second_pass_groups(4, DRAW) == []


def test_weight_of_zero_changes_nothing():
    assert filled_imitation(9, weight=0).second_pass_groups(9, DRAW) == []


def test_failures_and_trajectories_without_advantage_are_not_stored():
    imitation = SelfImitation(size=2)
    imitation.observe(step_outcome(group(0, 0)))
    imitation.observe(step_outcome(group(1, 0), advantages={}))
    assert len(imitation.buffer) == 0
    restored = SelfImitation(size=2)
    restored.load_state(filled_imitation(4).state())
    assert restored.state() == filled_imitation(4).state()


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: SuccessReplay(off_policy=OffPolicy.MIXTURE), "recompute, stored or truncated"),
        (lambda: SuccessReplay(max_per_task=8, capacity=4), r"must be at least max_per_task \(8\), got 4"),
        (lambda: SelfImitation(size=0), "size and max_age_updates must be at least 1"),
    ],
)
def test_invalid_options_are_refused(create, message):
    with pytest.raises(OptionError, match=message):
        create()
