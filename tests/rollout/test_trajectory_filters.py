"""Which trajectories are trained, at which stage removal applies, and which groups count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.episodes import TASK, group, path, step_outcome, turn
from whetstone.plugins import OptionError
from whetstone.rollout.dynamic_sampling import NonzeroVariance
from whetstone.rollout.trajectory_filters import Balanced, PairCaps, RareSuccesses, ResampleOnCorrect
from whetstone.rollout.trajectory_filters.rare_success import rare_success_indices
from whetstone.rollout.trajectory_filters.resample_on_correct import format_penalty, outcome_quotas
from whetstone.seeding import derive_random
from whetstone.trajectory import Group, RemovalScope, Task

DRAW = derive_random("test")


def kept_ids(filtered):
    return [t.id for t in filtered.trajectories if t.removal is None]


# ------------------------------------------------------------ resample on correct


def trajectory_with_penalty(id, reward, penalised):
    """Return a trajectory with this penalty, by the fraction of failed calls and the number of further answers."""
    if penalised >= 1:  # no answer
        calls = ["tool_error"] * round(4 * (penalised - 1)) + ["ok"] * round(4 * (2 - penalised))
        return path(id, reward, [turn(calls=(c,)) for c in calls])
    calls = ["tool_error"] * round(4 * penalised) + ["ok"] * round(4 * (1 - penalised))
    return path(id, reward, [*(turn(calls=(c,)) for c in calls), turn("4")])


def test_grpo_roc_worked_numbers():
    penalties = {"a": 0.5, "b": 0, "c": 1.25, "d": 0.25, "e": 0.75}
    positives = [trajectory_with_penalty(id, 1, value) for id, value in penalties.items()]
    assert [format_penalty(t) for t in positives] == list(penalties.values())
    negatives = [path(id, 0) for id in "fgh"]
    component = ResampleOnCorrect(group_size=8, keep=4, min_successes=1, min_failures=1)
    (filtered,) = component([Group(TASK, (*positives, *negatives))], DRAW)
    assert outcome_quotas(5, 3, 4, min_counts=(1, 1)) == (2, 2)
    assert kept_ids(filtered) == ["b", "d", "f", "g"]
    assert outcome_quotas(7, 1, 4) == (3, 1)
    assert {t.removal for t in filtered.trajectories if t.id in "ace"} == {RemovalScope.BEFORE_BASELINE}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 30))
def test_quotas_add_up(positive, negative, keep):
    if positive + negative <= keep:
        return
    assert sum(outcome_quotas(positive, negative, keep)) == keep


def test_format_penalties():
    assert format_penalty(path("x", 1, [turn("4")])) == 0.5  # no calls
    assert format_penalty(path("x", 1, [turn(calls=("ok",))])) == 1.0  # no answer
    assert format_penalty(path("x", 1, [turn("4"), turn("5")])) == 0.5 + 0.5  # one answer too many, of two turns
    assert format_penalty(path("x", 1, [turn("Answer: 4")]), answer="Answer") == 0.5
    assert format_penalty(path("x", 1, [])) == 1.5


def test_group_of_the_kept_size_stays_and_one_with_equal_rewards_is_removed():
    component = ResampleOnCorrect(group_size=4, keep=4)
    same, complete = component([group(1, 1, 1, 1), group(1, 0, 0, 0, number=1)], DRAW)
    assert kept_ids(same) == []
    assert len(kept_ids(complete)) == 4


# ------------------------------------------------------------ balanced, pairs, rare successes


def test_balanced_selection_keeps_a_success_and_a_failure():
    (selected,) = Balanced(keep=8)([group(1, *[0] * 9)], derive_random(1))
    assert len(kept_ids(selected)) == 8
    assert "0/0" in kept_ids(selected)
    (complete,) = Balanced(keep=8)([group(1, 0)], DRAW)
    assert len(kept_ids(complete)) == 2
    failures = Balanced(keep=4)([group(*[0] * 9)], derive_random(1))[0]
    assert kept_ids(failures) == kept_ids(Balanced(keep=4)([group(*[0] * 9)], derive_random(1))[0])


def test_agent_rlvr_worked_numbers():
    """Filter plain 0 0 and guided 1 0: one success with three failures, capped to two; 1 0 is a pair; all 0 is none."""
    capped, pair, none = PairCaps(max_per_outcome=2)(
        [group(0, 0, 1, 0), group(1, 0, number=1), group(0, 0, number=2)], DRAW
    )
    pairs = [sum(t.solved for t in g.counted) * sum(not t.solved for t in g.counted) for g in (capped, pair, none)]
    assert pairs == [2, 1, 0]


def test_digirl_worked_numbers():
    rewards = [1, 1, 0, 0, 1, 0, 0, 0, 0, 1]
    values = [0.9, 0.2, 0.1, 0.5, 0.6, 0.05, 0.2, 0.3, 0.4, 0.5]
    assert rare_success_indices(rewards, values) == [1]
    assert rare_success_indices([0, 0, 0], [0.5, 0.2, 0.1]) == []  # the most likely failure is no success
    assert rare_success_indices([1, 0, 1], [0.5, 0.5, 0.5], quantile=0) == [0, 2]
    assert rare_success_indices([], []) == []


def test_rarity_is_relative_to_the_task():
    easy, hard = Task("e", "", {}, {"kind": "easy"}), Task("h", "", {}, {"kind": "hard"})
    component = RareSuccesses(quantile=0.75)
    for step in range(5):
        component.observe(step_outcome(group(1, 1, task=easy), group(0, 0, task=hard), step=step + 1))
    filtered = component([group(1, 0, task=easy), group(1, 0, task=hard, number=1)], DRAW)
    assert [kept_ids(g) for g in filtered] == [[], ["1/0"]]
    assert filtered[0].trajectories[0].removal is RemovalScope.LOSS_ONLY
    restored = RareSuccesses(quantile=0.75)
    restored.load_state(component.state())
    assert [kept_ids(g) for g in restored([group(1, 0, task=easy), group(1, 0, task=hard, number=1)], DRAW)] == [
        [],
        ["1/0"],
    ]


# ------------------------------------------------------------ which groups count


def test_dapo_worked_numbers():
    counts = NonzeroVariance()
    groups = {"a": (1, 1, 1, 1), "b": (0, 1, 0, 0), "c": (0, 0, 0, 0), "d": (1, 0, 1, 1)}
    assert [name for name, rewards in groups.items() if counts(group(*rewards))] == ["b", "d"]


def test_success_must_differ_by_default():
    lengths = Group(TASK, tuple(path(str(k), r, success=True) for k, r in enumerate((1.0, 0.9))))
    assert not NonzeroVariance()(lengths)
    assert NonzeroVariance(signal="reward")(lengths)
    assert not NonzeroVariance(signal="reward", min_std=0.1)(lengths)


def test_group_of_one_counts_and_one_without_trajectories_does_not():
    assert NonzeroVariance()(group(0))
    lost = replace(group(0, 0), trajectories=tuple(path(str(k), None) for k in range(2)))
    assert not NonzeroVariance()(lost)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: ResampleOnCorrect(group_size=4, keep=5), "at most rollout.group_size"),
        (lambda: Balanced(keep=1), "at least 2"),
        (lambda: RareSuccesses(quantile=1), "below 1"),
        (lambda: NonzeroVariance(max_tried=0), "at least 1"),
        (lambda: NonzeroVariance(min_std=0.5), r"must be below 0\.5"),
    ],
)
def test_invalid_options_are_refused(create, message):
    with pytest.raises(OptionError, match=message):
        create()
