"""Intervals account for several episodes per task: they cover the truth in 95 % of cases."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.slow import examples, mostly_slow
from whetstone.evaluation import clustered_interval, success_rate, summarize_episodes, wilson_interval
from whetstone.evaluation.intervals import effective_number
from whetstone.trajectory import EndReason, Group, Score, Task, Trajectory

TABLES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=8)


def draw_table(draw, tasks, episodes, share, correlation):
    """[tasks][episodes] outcomes; the success rate of each task is sampled (beta-binomial)."""
    if correlation == 0:
        rates = np.full(tasks, share)
    elif correlation == 1:
        rates = (draw.random(tasks) < share).astype(float)
    else:
        size = 1 / correlation - 1  # a + b of the beta distribution with this intraclass correlation
        rates = draw.beta(share * size, (1 - share) * size, size=tasks)
    return (draw.random((tasks, episodes)) < rates[:, None]).astype(int).tolist()


def coverage(tasks, episodes, share, correlation, interval, *, count):
    draw = np.random.default_rng([tasks, episodes, round(100 * share), round(100 * correlation)])
    intervals = (interval(draw_table(draw, tasks, episodes, share, correlation)) for _ in range(count))
    return statistics.fmean(low - 1e-12 <= share <= high + 1e-12 for low, high in intervals)


@pytest.mark.parametrize("tasks", mostly_slow([5, 10, 20, 50], quick=[10]))
def test_interval_covers_the_truth_over_a_grid(tasks):
    grid = itertools.product([1, 2, 4, 16], [0.3, 0.5, 0.8], [0.0, 0.1, 0.3, 0.6, 1.0])
    low = {
        cell: covered
        for cell in grid
        if (covered := coverage(tasks, cell[0], *cell[1:], clustered_interval, count=400)) < 0.92 - 0.015
    }
    assert not low  # 92 %, less one standard error of 400 tables


def test_interval_of_independent_episodes_covers_too_little():
    alone = coverage(40, 8, 0.5, 0.5, lambda rows: wilson_interval(sum(map(sum, rows)), sum(map(len, rows))), count=400)
    assert alone < 0.75
    assert coverage(40, 8, 0.5, 0.5, clustered_interval, count=400) > 0.92


def test_worked_numbers_of_the_effective_number():
    # m = 1/2, sums less m n: 1, -1, 1, -1; V = 4/3 * 4 / 64 = 1/12; m (1 - m) / V = 3; z / t_3 = 1.959964 / 3.182446
    assert effective_number([[1, 1], [0, 0], [1, 1], [0, 0]]) == pytest.approx(3 * (1.959964 / 3.182446) ** 2, abs=1e-5)
    # all tasks are equal: at most the number of episodes
    assert effective_number([[1, 0]] * 4) == pytest.approx(8 * (1.959964 / 3.182446) ** 2, abs=1e-5)
    assert effective_number([[1], [0], [1]]) == 3  # one episode per task
    assert effective_number([[1, 1], [1, 1]]) == 2  # no information on the correlation
    assert effective_number([[1, 0, 1]]) == 0


@given(TABLES)
@examples(100)
def test_one_episode_per_task_gives_the_wilson_interval(rows):
    alone = [row[:1] for row in rows]
    assert clustered_interval(alone) == wilson_interval(sum(map(sum, alone)), len(alone))


@given(TABLES, st.randoms(use_true_random=False))
@examples(100)
def test_order_of_tasks_and_episodes_has_no_effect(rows, shuffled):
    mixed = [shuffled.sample(row, len(row)) for row in shuffled.sample(rows, len(rows))]
    assert clustered_interval(mixed) == pytest.approx(clustered_interval(rows), abs=1e-12)


@given(TABLES)
@examples(100)
def test_interval_of_failures_mirrors_that_of_successes(rows):
    low, high = clustered_interval([[1 - value for value in row] for row in rows])
    assert clustered_interval(rows) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_interval_of_rewards_is_that_of_a_ratio_of_sums():
    # m = 2, sums less m n: -1, 0, 1; V = 3/2 * 2 / 9 = 1/3; t_2 = 4.302653
    assert clustered_interval([[1.0], [2.0], [3.0]]) == pytest.approx(
        (2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5
    )
    assert clustered_interval([[0.5], [0.5]]) == (0.5, 0.5)
    assert all(map(math.isnan, clustered_interval([[0.5, 0.7]])))


def episode(success):
    return Trajectory("t", "x", (), (), EndReason.TERMINATED, score=Score(float(success), success=success))


def test_evaluation_reports_the_interval_over_tasks():
    rows = [[True] * 8, [False] * 8, [True] * 8, [False] * 8, [True] * 8, [False] * 8]
    groups = [
        Group(Task(str(number), "", tags={"kind": "sums"}), tuple(map(episode, row))) for number, row in enumerate(rows)
    ]
    result = summarize_episodes(groups, temperature=1.0)
    assert result.interval == result.clustered_interval == result.kinds["sums"].interval == clustered_interval(rows)
    assert result.tags["kind"]["sums"].interval == clustered_interval(rows)
    assert result.interval[1] - result.interval[0] > 2 * (wilson_interval(24, 48)[1] - wilson_interval(24, 48)[0])
    assert success_rate([True, True, False], ["a", "a", "b"]).interval == clustered_interval([[1, 1], [0]])
    # two groups of one task are one task
    split = [Group(group.task, (one,)) for group in groups for one in group.trajectories]
    assert summarize_episodes(split, temperature=1.0).interval == clustered_interval(rows)
