"""Deadlines that are derived from measured times."""

import asyncio
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.recipe import load_recipe
from whetstone.rollout import Independent, make_plans
from whetstone.rollout.deadlines import MeasuredDeadline, group_deadline, step_deadline, turn_deadline
from whetstone.trajectory import EndReason


@given(st.lists(st.floats(0.01, 1e4), min_size=64, max_size=200))
def test_derived_deadline_leaves_room_for_what_is_slow_by_nature(durations):
    deadline = turn_deadline("auto")
    for duration in durations:
        deadline.add([duration])
    counted = durations[: len(durations) // 64 * 64]
    percentile = statistics.quantiles([*counted, 0.0], n=20, method="inclusive")[-1]
    assert deadline.seconds == max(60.0, 20 * percentile)
    assert sum(duration > deadline.seconds for duration in durations[:64]) <= 3


@pytest.mark.parametrize("make", [turn_deadline, group_deadline, step_deadline])
def test_deadline_is_unset_until_enough_is_measured(make):
    deadline = make("auto")
    deadline.add([1.0] * (deadline.count - 1))
    assert deadline.seconds is None
    deadline.add([1.0])
    assert deadline.seconds == deadline.floor
    assert make(2.5).seconds == 2.5
    assert make("none").seconds is None


def test_deadline_follows_tools_that_become_slower():
    deadline = turn_deadline("auto")
    deadline.add([1.0] * 1000)
    deadline.add([100.0] * 600)
    assert deadline.seconds == 2000.0


def test_recipe_has_derived_deadlines_unless_it_sets_them():
    recipe = load_recipe("demo").recipe
    values = (
        recipe.environment.turn_timeout_seconds,
        recipe.rollout.group_timeout_seconds,
        recipe.reinforcement.step_timeout_seconds,
    )
    assert values == ("auto",) * 3
    changed = load_recipe("demo", ["environment.turn_timeout_seconds=none", "rollout.group_timeout_seconds=9"]).recipe
    assert (changed.environment.turn_timeout_seconds, changed.rollout.group_timeout_seconds) == ("none", 9)


def test_tool_that_hangs_ends_at_the_derived_deadline(assembly):
    hanging = []

    async def main():
        deadline = MeasuredDeadline("auto", floor=0.2, factor=0.0, count=8)
        collector = assembly.build_collector(assembly.expert_actor())
        make = collector.environment

        def environment():
            instance = make()
            if len(hanging) >= 20:
                instance.step = hang
            hanging.append(1)
            return instance

        async def hang(action):
            await asyncio.sleep(1e6)

        collector = replace(collector, environment=environment, turn_deadline=deadline, max_in_flight=1)
        plans = make_plans(assembly.source.held_out(22), seed=0)
        return [group async for group in collector.groups(plans, Independent(group_size=1))]

    ends = [group.trajectories[0].ended for group in asyncio.run(main())]
    assert ends == [EndReason.TERMINATED] * 20 + [EndReason.TIMEOUT] * 2
