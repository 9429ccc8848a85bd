"""Episodes that fork at uncertain turns: probability, allocation of slots, and results."""

import asyncio
import math
from dataclasses import replace
from functools import partial

import pytest

from support.episodes import Says, call, collected, in_order, turn
from whetstone.chat import assistant, tool_result
from whetstone.environments import Observation, ToolEnvironment
from whetstone.plugins import OptionError
from whetstone.rollout.strategies import BalancedBranching, EntropyBranching, Independent, RandomBranching
from whetstone.rollout.strategies.balanced_branching import balanced_probability, root_count
from whetstone.rollout.strategies.branching import turn_entropy
from whetstone.rollout.strategies.entropy_branching import fork_probability
from whetstone.tools import pocket_calculator

EXPERT = in_order(call("12*34"), call("408+0"), assistant("408"))


def ids(group):
    return [[t.action.ids for t in trajectory.turns] for trajectory in group.trajectories]


def test_arpo_worked_numbers():
    assert [fork_probability(more) for more in (0.5, -0.5, 3)] == pytest.approx([0.6, 0.4, 1.0])
    top = (0.7, 0.2, 0.1)
    assert -sum(p * math.log(p) for p in top) == pytest.approx(0.801819, abs=1e-6)
    # the statistic of one such token over log |V|, |V| = 1000
    entropy = turn_entropy(turn("a", entropy=0.801819, ids=(7,)), statistic="sum", scale=math.log(1000))
    assert entropy == pytest.approx(0.116075, abs=1e-6)


def test_statistic_is_a_mean_or_a_sum_over_the_first_tokens():
    long = turn("a", entropy=0.5, ids=tuple(range(30)))
    assert turn_entropy(long) == pytest.approx(0.5)
    assert turn_entropy(long, statistic="sum") == pytest.approx(10.0)  # of twenty tokens
    assert turn_entropy(turn("a", entropy=math.nan)) == 0.0


def test_aepo_worked_numbers():
    differences = (-1, -0.2, 0, 0.2, 1)
    assert [root_count(16, more, sharpness=0.5) for more in differences] == [7, 8, 9, 9, 10]
    paper = [16 / (1 + math.exp(-2 * more)) for more in (0.2, -0.2)]
    assert paper == pytest.approx([9.579, 6.421], abs=1e-3)
    probabilities = [balanced_probability(0.5, c) for c in range(4)]
    assert probabilities == pytest.approx([0.6, 0.57368, 0.54444, 0.51176], abs=1e-5)
    assert balanced_probability(0, 20) == 0.0


def test_as_many_roots_as_trajectories_is_independent_sampling():
    plain = collected(Independent(group_size=4), EXPERT)
    branched = collected(EntropyBranching(group_size=4, roots=4), EXPERT)
    assert ids(branched) == ids(plain)
    assert branched.costs == plain.costs
    assert all(t.parent is None for t in branched.trajectories)


def test_certain_fork_occurs_immediately_and_shares_turns_and_costs():
    group = collected(EntropyBranching(group_size=4, roots=2, base=1.0), EXPERT)
    roots, forks = group.trajectories[:2], group.trajectories[2:]
    assert [t.parent for t in roots] == [None, None]
    assert [(t.parent, t.fork_turn) for t in forks] == [(roots[0].id, 1), (roots[1].id, 1)]
    for fork, root in zip(forks, roots, strict=True):
        assert fork.turns[0] is root.turns[0]
        assert fork.turns[1] is not root.turns[1]
    plain = collected(Independent(group_size=4), EXPERT)
    first = len(roots[0].turns[0].action)
    assert group.costs.sampled_tokens == plain.costs.sampled_tokens - 2 * first
    assert group.costs.tool_calls == plain.costs.tool_calls - 2
    assert group.costs.reused_tokens == 2 * (first + len(roots[0].turns[0].context))
    assert plain.costs.reused_tokens == 0


def test_slots_are_assigned_by_number_and_not_by_time():
    """Let both roots fork with one slot, while root 0 is slow."""

    class Slow(Says):
        async def act(self, moment):
            if moment.episode.endswith("#0"):
                await asyncio.sleep(0.02)
            return await super().act(moment)

    quick = collected(EntropyBranching(group_size=3, roots=2, base=1.0), EXPERT)
    slow = collected(EntropyBranching(group_size=3, roots=2, base=1.0), Slow(EXPERT))
    for group in (quick, slow):
        assert group.trajectories[2].parent == group.trajectories[0].id


def test_without_forks_fresh_roots_fill_the_group():
    group = collected(EntropyBranching(group_size=4, roots=2, base=0.0, weight=0.0), EXPERT)
    assert [t.parent for t in group.trajectories] == [None] * 4
    assert [t.id for t in group.trajectories] == [f"g/t#{i}" for i in range(4)]


def test_forks_occur_only_after_a_tool_result():
    group = collected(EntropyBranching(group_size=4, roots=1, base=1.0), in_order(assistant("408")))
    assert [t.parent for t in group.trajectories] == [None] * 4


def test_fork_occurs_when_the_entropy_rises():
    def speak(moment):
        messages = [call("12*34"), call("408+0"), call("1+1"), assistant("408")][min(moment.turn, 3)]
        return messages, 9.0 if moment.turn == 2 else 1.0

    rises = EntropyBranching(group_size=2, roots=1, base=0.0, weight=1.0)
    group = collected(rises, speak)
    assert group.trajectories[1].fork_turn == 2  # after the second tool result the third turn is uncertain
    before = EntropyBranching(group_size=2, roots=1, base=0.0, weight=1.0, measured="before_tool")
    assert collected(before, speak).trajectories[1].fork_turn == 3  # one turn late, as the published code


def test_beam_bounds_the_forks_of_one_turn():
    wide = collected(EntropyBranching(group_size=4, roots=1, base=1.0, beam=4), EXPERT)
    assert [t.fork_turn for t in wide.trajectories] == [None, 1, 1, 1]
    narrow = collected(EntropyBranching(group_size=4, roots=1, base=1.0), EXPERT)
    assert [t.fork_turn for t in narrow.trajectories] == [None, 1, 2, 2]


def test_pilot_episode_is_part_of_the_group():
    group = collected(BalancedBranching(group_size=5, base=0.0), EXPERT)
    count = root_count(5, 0.0, sharpness=3.0)
    assert [t.parent is None for t in group.trajectories] == [True] * count + [False] * (5 - count)
    assert len(group.trajectories) == 5


def test_result_does_not_depend_on_the_concurrency():
    strategy = partial(EntropyBranching, group_size=6, roots=2)
    first = collected(strategy(), EXPERT)
    sequential = collected(strategy(), EXPERT, max_in_flight=1)
    assert [(t.parent, t.fork_turn) for t in first.trajectories] == [
        (t.parent, t.fork_turn) for t in sequential.trajectories
    ]


@pytest.mark.parametrize(
    ("options", "message"), [({"roots": 9}, "0 to group_size"), ({"beam": 1}, "must be at least 2")]
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        EntropyBranching(group_size=4, **options)


class Counter:
    """An environment with state and snapshots."""

    def __init__(self, *, snapshots=True, replayable=True):
        self.inner = None
        self.value, self.steps, self.replayable = 0, 0, replayable
        if snapshots:
            self.snapshot = lambda: self.value
            self.restore = lambda value: setattr(self, "value", value)

    async def reset(self, task, *, seed):
        self.inner = ToolEnvironment(tools=[pocket_calculator])
        return await self.inner.reset(task, seed=seed)

    async def step(self, action):
        self.steps += 1
        self.value += 1
        return await self.inner.step(action)

    async def close(self):
        pass


@pytest.mark.parametrize("snapshots", [True, False])
def test_environment_is_restored_from_a_snapshot_or_by_replaying_actions(snapshots):
    group = collected(
        EntropyBranching(group_size=2, roots=1, base=1.0), EXPERT, environment=lambda: Counter(snapshots=snapshots)
    )
    assert group.trajectories[1].fork_turn == 1
    # three turns, and two of the fork's own; without a snapshot the shared one is played again
    assert group.costs.environment_steps == (5 if snapshots else 6)
    assert group.costs.tool_calls == 3


def test_environment_that_replays_differently_is_reported():
    answers = iter(range(100))

    class Fickle(Counter):
        async def step(self, action):
            result = await super().step(action)
            if not result.observation.messages:
                return result
            return replace(result, observation=Observation((tool_result(str(next(answers))),)))

    group = collected(RandomBranching(group_size=2), EXPERT, environment=lambda: Fickle(snapshots=False))
    fork = group.trajectories[1]
    assert (fork.parent, "not_forked" in fork.marks) == (None, True)
