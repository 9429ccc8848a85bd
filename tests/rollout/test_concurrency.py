"""The limit of concurrent episodes follows the KV cache, and sampled tokens do not depend on it."""

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whetstone.assembly.assembly import assemble
from whetstone.chat import user
from whetstone.environments import Observation, StepResult
from whetstone.errors import EngineError, InfrastructureError, RecipeError
from whetstone.inference.protocol import EngineLoad
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rollout import Independent, make_plans
from whetstone.rollout.concurrency import ConcurrencyController, EpisodeCancelled, EpisodeSlots
from whetstone.training import train

FREE, FULL = EngineLoad(0.1, 0, 0), EngineLoad(0.99, 0, 0)
LOADS = st.builds(EngineLoad, st.floats(0, 1), st.integers(0, 40), st.just(0))


def observe(controller, *loads, running=None, rate=10.0):
    """Return the limit after each observation, of one second each."""
    return [
        controller.observe_load(load, running=controller.limit if running is None else running, turns=rate, seconds=1)
        for load in loads
    ]


class TestController:
    def test_limit_grows_by_half_until_the_first_overload_and_by_5_percent_after_it(self):
        controller = ConcurrencyController(limit=32)
        assert observe(controller, FREE, FREE, FREE) == [48, 72, 108]
        # full twice in a row: 108 · 0.85 = 91; the two observations after it change nothing; then 91 · 1.05 = 95
        assert observe(controller, FULL, FULL, FREE, FREE, FREE, FREE) == [108, 91, 91, 91, 95, 99]

    def test_lost_keys_of_more_than_5_percent_of_the_episodes_are_an_overload(self):
        controller = ConcurrencyController(limit=100)
        assert observe(controller, EngineLoad(0.5, 0, 70), running=50) == [100]  # lost before this run
        assert observe(controller, EngineLoad(0.85, 0, 75), EngineLoad(0.85, 0, 81)) == [100, 100]
        assert observe(controller, EngineLoad(0.85, 0, 87)) == [85]  # the second time in a row

    def test_full_cache_that_costs_no_throughput_is_no_later_overload(self):
        controller = ConcurrencyController(limit=100, has_overloaded=True)
        assert observe(controller, *[FULL] * 6) == [100] * 6
        # 10 · 0.7 + 8 · 0.3 = 9.4 turns per second, 5.5 % below the best mean of 9.95
        assert observe(controller, FULL, rate=8.0) == [85]

    @given(st.lists(st.floats(0.8, 0.95), max_size=30))
    def test_limit_stays_the_same_between_the_thresholds(self, usages):
        controller = ConcurrencyController(limit=40)
        assert observe(controller, *(EngineLoad(usage, 0, 0) for usage in usages)) == [40] * len(usages)

    @given(st.lists(st.tuples(LOADS, st.integers(0, 600), st.integers(0, 3)), max_size=60))
    def test_limit_is_always_within_its_bounds(self, observations):
        controller, preemptions = ConcurrencyController(), 0
        for load, running, more in observations:
            preemptions += more
            limit = controller.observe_load(
                replace(load, preemptions=preemptions), running=running, turns=running, seconds=more
            )
            assert 4 <= limit <= 512

    def test_limit_grows_only_if_slots_are_taken_and_no_request_waits(self):
        controller = ConcurrencyController(limit=32)
        assert observe(controller, FREE, running=31) == [32]
        assert observe(controller, EngineLoad(0.1, 4, 0), running=32) == [32]
        assert observe(controller, EngineLoad(0.1, 3, 0), running=32) == [48]

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"limit": 3}, "limit: must be from min_limit 4"), ({"grow_below": 0.96}, "grow_below: must be below")],
    )
    def test_invalid_bounds_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            ConcurrencyController(**options)


class TestSlots:
    def test_youngest_attempts_are_cancelled_first(self):
        async def main():
            slots, ended = EpisodeSlots(5), []

            async def play(age):
                await slots.take_slot()
                try:
                    await slots.run_attempt(age, asyncio.sleep(60))
                except EpisodeCancelled:
                    ended.append(age)
                slots.return_slot()

            tasks = [asyncio.create_task(play(age)) for age in (3, 1, 5, 2, 4)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            slots.set_limit(3)
            slots.set_limit(3)  # those that are ending count as gone
            for _ in range(20):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return ended, slots.num_cancelled

        ended, count = asyncio.run(main())
        assert sorted(ended) == [4, 5]
        assert count == 2

    @settings(deadline=None, max_examples=30)
    @given(st.integers(0, 2**32), st.integers(1, 6))
    def test_no_slot_is_lost_or_doubled(self, seed, limit):
        random = Random(seed)

        async def main():
            slots, inside, over = EpisodeSlots(limit), [0], []

            async def use(number):
                await slots.take_slot(is_first=number % 5 == 0)
                inside[0] += 1
                over.append(inside[0] > slots.num_used)
                try:
                    await asyncio.sleep(0)
                    if number % 3 == 0:
                        inside[0] -= 1
                        try:
                            await slots.yield_slot()
                        finally:
                            inside[0] += 1
                finally:
                    inside[0] -= 1
                    slots.return_slot()

            tasks = [asyncio.create_task(use(number)) for number in range(20)]
            for _ in range(30):
                await asyncio.sleep(0)
                if random.random() < 0.3:
                    slots.set_limit(random.randint(1, 6))
                if random.random() < 0.3:
                    random.choice(tasks).cancel()
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
            assert not any(over)
            return slots.num_used, slots.is_full

        assert asyncio.run(main()) == (0, False)


class ScriptedController:
    """Changes the limit at each observation, whatever the load is."""

    def __init__(self, limits):
        self.limits = list(limits)
        self.limit = self.limits.pop(0)

    def observe_load(self, load, *, running, turns, seconds):
        self.limit = self.limits.pop(0) if self.limits else self.limit
        return self.limit


class Talk:
    """Environment of three to six turns with waits of different lengths, which counts its episodes in progress."""

    running = 0

    async def reset(self, task, *, seed):
        self.random, self.left = Random(seed), 3 + seed % 4
        Talk.running += 1
        return Observation((user(task.prompt),))

    async def step(self, action):
        self.left -= 1
        for _ in range(self.random.randint(0, 6)):
            await asyncio.sleep(0)
        return StepResult(Observation((user(f"{self.random.random():.2f}"),)), terminated=self.left == 0)

    async def close(self):
        Talk.running -= 1


def sample(assembly, tasks, *, limits, **changes):
    """Return the sampled ids of each trajectory, and the number of cancelled episodes."""

    async def main():
        engine = assembly.build_engine()
        try:
            collector = replace(
                assembly.build_collector(assembly.policy_actor(engine, temperature=1.0)),
                environment=Talk,
                concurrency=ScriptedController(limits),
                **changes,
            )
            groups = [group async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=2))]
            return groups, collector.concurrency_metrics()
        finally:
            await engine.close()

    groups, metrics = asyncio.run(main())
    assert Talk.running == 0
    trajectories = [each for group in groups for each in group.trajectories]
    assert max(Counter(each.id for each in trajectories).values()) == 1
    assert all(each.score is not None for each in trajectories)
    ids = {each.id: [turn.action.ids for turn in each.turns] for each in trajectories}
    return ids, metrics["rollout/episodes_cancelled"]


@pytest.fixture(scope="module")
def talker():
    """Return the assembly of a demo whose episodes have several turns, and its tasks."""
    from support.fixtures import SMALL

    keys = ["ablations=null", "rollout.max_new_tokens=4", "environment.max_turns=8", "reward=support.small:parity"]
    assembled = assemble(load_recipe("demo", [*SMALL, *keys]))
    return assembled, assembled.source.held_out(8)


@pytest.fixture(scope="module")
def sampled_alone(talker):
    ids, cancelled = sample(*talker, limits=[1])
    assert cancelled == 0
    return ids


@pytest.mark.parametrize("limits", [[16], [16, 3, 16, 2, 16, 1, 9, 4], [8, 1, 8, 1, 8, 1, 8, 1, 8]])
def test_sampled_tokens_do_not_depend_on_the_limit(talker, sampled_alone, limits):
    ids, cancelled = sample(*talker, limits=limits)
    assert ids == sampled_alone
    assert (cancelled > 0) == (len(limits) > 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(limits=st.lists(st.integers(1, 16), min_size=2, max_size=30))
def test_no_sequence_of_limits_loses_or_doubles_an_episode(talker, sampled_alone, limits):
    assert sample(*talker, limits=limits)[0] == sampled_alone


def test_tools_with_side_effects_are_never_repeated(talker, sampled_alone):
    ids, cancelled = sample(*talker, limits=[16, 1, 16, 1], can_cancel=False)
    assert ids == sampled_alone
    assert cancelled == 0


def test_side_effects_that_a_recipe_allows_prevent_cancellation(small_demo):
    keys = "rollout.max_in_flight=auto", "environment.allow_effects=true"
    assembled = assemble(small_demo(*keys))
    assert not assembled.build_collector(assembled.policy_actor(assembled.build_engine(), temperature=1.0)).can_cancel


def test_engine_without_a_load_stops_the_run_and_a_failed_measurement_does_not(talker):
    assembly, tasks = talker

    async def play(error):
        engine = assembly.build_engine()

        async def measure_load():
            raise error

        engine.measure_load = measure_load
        collector = replace(
            assembly.build_collector(assembly.policy_actor(engine, temperature=1.0)),
            concurrency=ConcurrencyController(),
            environment=Talk,
        )
        try:
            return [group async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=2))]
        finally:
            await engine.close()

    assert len(asyncio.run(play(InfrastructureError("late")))) == len(tasks)
    tasks = assembly.source.held_out(40)  # more episodes than the first limit
    with pytest.raises(EngineError, match="no metrics"):
        asyncio.run(play(EngineError("no metrics")))


def test_run_with_an_adaptive_limit_is_the_run_with_a_fixed_one(tmp_path, small_demo):
    rows = {}
    for limit in ("auto", "256"):
        metrics_rows = rows[limit] = []
        train(
            small_demo(f"rollout.max_in_flight={limit}", "reward=support.small:parity"),
            tmp_path / limit,
            progress=Progress(quiet=True),
            on_metrics=metrics_rows.append,
        )
    last = rows["auto"][-1]
    assert last["rollout/episode_limit"] == 32
    assert last["rollout/episodes_cancelled"] == 0
    assert 0 <= last["rollout/kv_cache_usage"] <= 1
    for adaptive, fixed in zip(rows["auto"], rows["256"], strict=True):
        same = [name for name in fixed if name.partition("/")[0] in ("reward", "loss", "episode", "update")]
        assert len(same) > 5
        assert {name: adaptive[name] for name in same} == {name: fixed[name] for name in same}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("scale=local-ray", r"rollout.max_in_flight: auto adapts to one engine, and scale.backend is local-ray"),
        ("rollout.max_in_flight=many", r"rollout.max_in_flight"),
    ],
)
def test_adaptive_limit_is_refused_where_it_cannot_work(small_demo, change, message):
    with pytest.raises(RecipeError, match=message):
        small_demo("rollout.max_in_flight=auto", change)
