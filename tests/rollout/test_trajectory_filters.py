"""Which trajectories are learned from, where removal bites, and which groups count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_episodes import TASK, group, heard, path, turn
from whetstone.plugins import OptionError
from whetstone.rollout.dynamic_sampling import Informative
from whetstone.rollout.trajectory_filters import Balanced, PairCaps, ResampleOnCorrect, Surprising
from whetstone.rollout.trajectory_filters.resample_on_correct import penalty, quotas
from whetstone.rollout.trajectory_filters.surprising import surprising
from whetstone.seeding import derive_random
from whetstone.trajectory import Group, RemovalScope, Task

DRAW = derive_random("test")


def stays(made):
    return [t.id for t in made.trajectories if t.removal is None]


# ------------------------------------------------------------ resample on correct


def clean(id, reward, penalised):
    """A trajectory with this penalty, by the share of its calls that failed and its further answers."""
    if penalised >= 1:  # no answer
        calls = ["tool_error"] * round(4 * (penalised - 1)) + ["ok"] * round(4 * (2 - penalised))
        return path(id, reward, [turn(calls=(c,)) for c in calls])
    calls = ["tool_error"] * round(4 * penalised) + ["ok"] * round(4 * (1 - penalised))
    return path(id, reward, [*(turn(calls=(c,)) for c in calls), turn("4")])


def test_grpo_roc_worked_numbers():
    penalties = {"a": 0.5, "b": 0, "c": 1.25, "d": 0.25, "e": 0.75}
    positives = [clean(id, 1, value) for id, value in penalties.items()]
    assert [penalty(t) for t in positives] == list(penalties.values())
    negatives = [path(id, 0) for id in "fgh"]
    component = ResampleOnCorrect(group_size=8, keep=4, min_successes=1, min_failures=1)
    (filtered,) = component([Group(TASK, (*positives, *negatives))], DRAW)
    assert quotas(5, 3, 4, least=(1, 1)) == (2, 2)
    assert stays(filtered) == ["b", "d", "f", "g"]
    assert quotas(7, 1, 4) == (3, 1)
    assert {t.removal for t in filtered.trajectories if t.id in "ace"} == {RemovalScope.BEFORE_BASELINE}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 30))
def test_quotas_add_up(positive, negative, keep):
    if positive + negative <= keep:
        return
    assert sum(quotas(positive, negative, keep)) == keep


def test_penalties_of_form():
    assert penalty(path("x", 1, [turn("4")])) == 0.5  # no calls
    assert penalty(path("x", 1, [turn(calls=("ok",))])) == 1.0  # no answer
    assert penalty(path("x", 1, [turn("4"), turn("5")])) == 0.5 + 0.5  # one answer too many, of two turns
    assert penalty(path("x", 1, [turn("Answer: 4")]), answer="Answer") == 0.5
    assert penalty(path("x", 1, [])) == 1.5


def test_a_group_as_large_as_is_kept_stays_and_one_without_a_difference_goes():
    made = ResampleOnCorrect(group_size=4, keep=4)
    same, whole = made([group(1, 1, 1, 1), group(1, 0, 0, 0, number=1)], DRAW)
    assert stays(same) == []
    assert len(stays(whole)) == 4


# ------------------------------------------------------------ balanced, pairs, surprise


def test_of_ten_eight_stay_a_success_and_a_failure_among_them():
    (kept,) = Balanced(keep=8)([group(1, *[0] * 9)], derive_random(1))
    assert len(stays(kept)) == 8
    assert "0/0" in stays(kept)
    (whole,) = Balanced(keep=8)([group(1, 0)], DRAW)
    assert len(stays(whole)) == 2
    again = Balanced(keep=4)([group(*[0] * 9)], derive_random(1))[0]
    assert stays(again) == stays(Balanced(keep=4)([group(*[0] * 9)], derive_random(1))[0])


def test_agent_rlvr_worked_numbers():
    """Plain 0 0, guided 1 0: one success with three failures, capped to two; 1 0 is a pair; all 0 is none."""
    capped, pair, none = PairCaps(max_per_outcome=2)(
        [group(0, 0, 1, 0), group(1, 0, number=1), group(0, 0, number=2)], DRAW
    )
    pairs = [sum(t.solved for t in g.counted) * sum(not t.solved for t in g.counted) for g in (capped, pair, none)]
    assert pairs == [2, 1, 0]


def test_digirl_worked_numbers():
    rewards = [1, 1, 0, 0, 1, 0, 0, 0, 0, 1]
    values = [0.9, 0.2, 0.1, 0.5, 0.6, 0.05, 0.2, 0.3, 0.4, 0.5]
    assert surprising(rewards, values) == [1]
    assert surprising([0, 0, 0], [0.5, 0.2, 0.1]) == []  # the least surprising failure is no success
    assert surprising([1, 0, 1], [0.5, 0.5, 0.5], quantile=0) == [0, 2]
    assert surprising([], []) == []


def test_surprise_is_against_what_is_usual_for_such_tasks():
    easy, hard = Task("e", "", {}, {"kind": "easy"}), Task("h", "", {}, {"kind": "hard"})
    made = Surprising(quantile=0.75)
    for step in range(5):
        made.observe(heard(group(1, 1, task=easy), group(0, 0, task=hard), step=step + 1))
    found = made([group(1, 0, task=easy), group(1, 0, task=hard, number=1)], DRAW)
    assert [stays(g) for g in found] == [[], ["1/0"]]
    assert found[0].trajectories[0].removal is RemovalScope.LOSS_ONLY
    again = Surprising(quantile=0.75)
    again.load_state(made.state())
    assert [stays(g) for g in again([group(1, 0, task=easy), group(1, 0, task=hard, number=1)], DRAW)] == [[], ["1/0"]]


# ------------------------------------------------------------ which groups count


def test_dapo_worked_numbers():
    counts = Informative()
    groups = {"a": (1, 1, 1, 1), "b": (0, 1, 0, 0), "c": (0, 0, 0, 0), "d": (1, 0, 1, 1)}
    assert [name for name, rewards in groups.items() if counts(group(*rewards))] == ["b", "d"]


def test_it_is_success_that_must_differ_unless_asked_otherwise():
    lengths = Group(TASK, tuple(path(str(k), r, success=True) for k, r in enumerate((1.0, 0.9))))
    assert not Informative()(lengths)
    assert Informative(signal="reward")(lengths)
    assert not Informative(signal="reward", min_std=0.1)(lengths)


def test_a_group_of_one_counts_and_one_that_lost_all_does_not():
    assert Informative()(group(0))
    lost = replace(group(0, 0), trajectories=tuple(path(str(k), None) for k in range(2)))
    assert not Informative()(lost)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ResampleOnCorrect(group_size=4, keep=5), "at most rollout.group_size"),
        (lambda: Balanced(keep=1), "two or more"),
        (lambda: Surprising(quantile=1), "below 1"),
        (lambda: Informative(max_tried=0), "one or more"),
        (lambda: Informative(min_std=0.5), r"never differ by more than 0\.5"),
    ],
)
def test_options_that_cannot_be(made, said):
    with pytest.raises(OptionError, match=said):
        made()
