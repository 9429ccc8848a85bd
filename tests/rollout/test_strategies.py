"""Groups with a greedy episode, and groups that are trees."""

import asyncio

import pytest

from whetstone.inference import LocalEngine
from whetstone.rollout import STRATEGIES, Plan
from whetstone.trajectory import RemovalScope


@pytest.fixture
def sampled(assembly):
    """A group of each strategy, by a policy that knows how to call."""

    async def group(name, size, temperature=1.0):
        engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
        try:
            collector = assembly.collector(assembly.policy_actor(engine, temperature=temperature))
            task = assembly.source.held_out(1)[0]
            return await collector.group(Plan(task, seed=3, name="x/"), STRATEGIES[name](group_size=size))
        finally:
            await engine.close()

    return lambda name, size, **how: asyncio.run(group(name, size, **how))


def test_the_greedy_episode_is_compared_with_and_in_nothing_else(sampled):
    group = sampled("greedy_baseline", 4)
    (greedy,) = [t for t in group.trajectories if t.greedy]
    assert greedy.removal is RemovalScope.BEFORE_BASELINE
    assert greedy.score is not None
    assert len(group.counted) == len(group.rewards) == 3
    # without chance it is what sampling at temperature 0 gives
    (plain, *_) = sampled("independent", 2, temperature=0.0).trajectories
    assert [turn.action.ids for turn in greedy.turns] == [turn.action.ids for turn in plain.turns]


def test_a_fork_shares_turns_with_its_parent_and_goes_on_by_itself(expert_group):
    parent, fork = expert_group
    shared = fork.fork_turn
    assert fork.parent == parent.id
    assert 0 < shared < len(parent.turns)
    assert all(mine is theirs for mine, theirs in zip(fork.turns[:shared], parent.turns, strict=False))
    assert fork.turns[shared] is not parent.turns[shared]
    assert fork.messages == parent.messages  # the expert does the same again
    assert fork.score == parent.score


@pytest.fixture
def expert_group(assembly):
    async def group():
        collector = assembly.collector(assembly.expert_actor())
        task = next(t for t in assembly.source.held_out(20) if len(t.private["steps"]) == 3)
        return await collector.group(Plan(task, seed=0, name="y/"), STRATEGIES["random_branching"](group_size=2))

    return asyncio.run(group()).trajectories


def test_turns_to_part_at_are_drawn_and_the_same_again(assembly):
    async def fork_turns(seed):
        collector = assembly.collector(assembly.expert_actor())
        task = next(t for t in assembly.source.held_out(20) if len(t.private["steps"]) == 3)
        group = await collector.group(Plan(task, seed=seed, name="z/"), STRATEGIES["random_branching"](group_size=12))
        return [t.fork_turn for t in group.trajectories[6:]]

    first = asyncio.run(fork_turns(1))
    assert set(first) <= {1, 2, 3}
    assert len(set(first)) > 1
    assert first == asyncio.run(fork_turns(1))


def test_a_parent_of_one_turn_has_no_middle(sampled):
    group = sampled("random_branching", 4)  # an untrained policy's episodes are over at once, or not
    for trajectory in group.trajectories[2:]:
        parent = next((t for t in group.trajectories if t.id == trajectory.parent), None)
        assert parent is None or len(parent.turns) > 1
    assert len({t.id for t in group.trajectories}) == 4
