"""Groups with a greedy episode, and tree-structured groups."""

import asyncio

import pytest

from whetstone.inference import LocalEngine
from whetstone.rollout import STRATEGIES, GroupPlan
from whetstone.trajectory import RemovalScope


@pytest.fixture
def sample_group(assembly):
    """Return a function that samples a group of a strategy with a policy that can call tools."""

    async def group(name, size, temperature=1.0):
        engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
        try:
            collector = assembly.build_collector(assembly.policy_actor(engine, temperature=temperature))
            task = assembly.source.held_out(1)[0]
            return await collector.group(GroupPlan(task, seed=3, name="x/"), STRATEGIES[name](group_size=size))
        finally:
            await engine.close()

    return lambda name, size, **how: asyncio.run(group(name, size, **how))


def test_greedy_episode_is_only_a_baseline(sample_group):
    group = sample_group("greedy_baseline", 4)
    (greedy,) = [t for t in group.trajectories if t.greedy]
    assert greedy.removal is RemovalScope.BEFORE_BASELINE
    assert greedy.score is not None
    assert len(group.counted) == len(group.rewards) == 3
    # it equals sampling at temperature 0
    (plain, *_) = sample_group("independent", 2, temperature=0.0).trajectories
    assert [turn.action.ids for turn in greedy.turns] == [turn.action.ids for turn in plain.turns]


def test_fork_shares_turns_with_its_parent_and_continues_independently(expert_group):
    parent, fork = expert_group
    shared = fork.fork_turn
    assert fork.parent == parent.id
    assert 0 < shared < len(parent.turns)
    assert all(
        fork_turn is parent_turn for fork_turn, parent_turn in zip(fork.turns[:shared], parent.turns, strict=False)
    )
    assert fork.turns[shared] is not parent.turns[shared]
    assert fork.messages == parent.messages  # the expert repeats its actions
    assert fork.score == parent.score


@pytest.fixture
def expert_group(assembly):
    async def group():
        collector = assembly.build_collector(assembly.expert_actor())
        task = next(t for t in assembly.source.held_out(20) if len(t.private["steps"]) == 3)
        return await collector.group(GroupPlan(task, seed=0, name="y/"), STRATEGIES["random_branching"](group_size=2))

    return asyncio.run(group()).trajectories


def test_fork_turns_are_sampled_deterministically(assembly):
    async def fork_turns(seed):
        collector = assembly.build_collector(assembly.expert_actor())
        task = next(t for t in assembly.source.held_out(20) if len(t.private["steps"]) == 3)
        group = await collector.group(
            GroupPlan(task, seed=seed, name="z/"), STRATEGIES["random_branching"](group_size=12)
        )
        return [t.fork_turn for t in group.trajectories[6:]]

    first = asyncio.run(fork_turns(1))
    assert set(first) <= {1, 2, 3}
    assert len(set(first)) > 1
    assert first == asyncio.run(fork_turns(1))


def test_parent_of_one_turn_cannot_fork(sample_group):
    group = sample_group("random_branching", 4)  # episodes of an untrained policy end in the first turn, or not
    for trajectory in group.trajectories[2:]:
        parent = next((t for t in group.trajectories if t.id == trajectory.parent), None)
        assert parent is None or len(parent.turns) > 1
    assert len({t.id for t in group.trajectories}) == 4
