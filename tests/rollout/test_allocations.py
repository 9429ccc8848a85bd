"""Budgets of a group, and the turn at which its episodes start."""

import asyncio

import pytest

from support.episodes import TASK, call, collected, group, in_order, path, step_outcome, turn
from whetstone.chat import assistant
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError
from whetstone.rollout import EpisodeKey, GroupPlan, MethodComponents
from whetstone.rollout.budget_allocation import BySuccess, HorizonStages
from whetstone.rollout.protocol import GroupBudget
from whetstone.rollout.start_states import ExpertPrefix, ReplayPrefix
from whetstone.rollout.start_states.expert_prefix import start_fraction
from whetstone.rollout.strategies import EntropyBranching, Independent
from whetstone.tools import FrozenModel
from whetstone.trajectory import Author, EndReason, Group, Task

WORDS = in_order(*[call("1+1")] * 7, assistant("2"))


def at(step, task=TASK):
    return EpisodeKey(task, 0, step, 0, 8)


def test_scaling_inter_worked_numbers():
    component = HorizonStages(turns=[10, 20, 30], updates_per_stage=100)
    steps = [1, 99, 100, 101, 200, 201, 320]  # from 1, as in the paper
    assert [component(at(step - 1)).max_turns for step in steps] == [10, 10, 10, 20, 20, 30, 30]


def test_horizon_truncates_and_does_not_drop():
    method = MethodComponents(allocate=HorizonStages(turns=[2, 5], updates_per_stage=3))
    for step, turns in ((0, 2), (2, 2), (3, 5)):
        truncated = collected(
            Independent(group_size=2), WORDS, method=method, plan=GroupPlan(TASK, 3, name="g/", step=step)
        )
        assert [len(t.turns) for t in truncated.trajectories] == [turns, turns]
        assert {t.ended for t in truncated.trajectories} == {EndReason.MAX_TURNS}
        assert all(t.score is not None and t.removal is None for t in truncated.trajectories)


def test_single_stage_is_a_fixed_horizon():
    plain = collected(Independent(group_size=2), WORDS)
    staged = collected(
        Independent(group_size=2),
        WORDS,
        method=MethodComponents(allocate=HorizonStages(turns=[8], updates_per_stage=1)),
    )
    assert [t.turns[-1].action.ids for t in plain.trajectories] == [t.turns[-1].action.ids for t in staged.trajectories]


def test_dart_numbers():
    allocation = BySuccess(group_size=8, max_turns=30)
    assert allocation(at(0)) == GroupBudget()  # nothing is known
    allocation.observe(step_outcome(Group(TASK, (path("a", 1, [turn("4")] * 6), path("b", 0)))))
    assert allocation(at(1)) == GroupBudget(8, 8)  # solved half of the time; ceil(1.2 · 6)
    for _ in range(4):
        allocation.observe(step_outcome(group(1, 1)))
    assert allocation(at(2)) == GroupBudget(4, 8)
    allocation.observe(step_outcome(Group(TASK, (path("c", 1, [turn("4")] * 30),))))
    assert allocation(at(3)).max_turns == 30
    other = BySuccess(group_size=8, max_turns=30)
    other.load_state(allocation.state())
    assert other(at(3)) == allocation(at(3))


def test_tasks_need_enough_turns_and_old_tasks_are_evicted():
    allocation = BySuccess(group_size=8, max_turns=30, capacity=2)
    allocation.observe(step_outcome(group(1, 1)))
    assert allocation(at(0)) == GroupBudget(4, 5)
    allocation.observe(step_outcome(*(group(1, task=Task(f"t{k}", "")) for k in range(2))))
    assert allocation(at(0)) == GroupBudget()


def test_smaller_group_has_fewer_samples():
    class Two:
        def __call__(self, episode_key):
            return GroupBudget(group_size=2)

    for strategy in (Independent(group_size=6), EntropyBranching(group_size=6, roots=4)):
        groups = collected(strategy, WORDS, method=MethodComponents(allocate=Two()))
        assert len(groups.trajectories) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turns": [], "updates_per_stage": 1}, "at least 1 in each stage"),
        ({"turns": [9], "updates_per_stage": 1, "max_turns": 8}, r"at most environment\.max_turns \(8\)"),
        ({"turns": [4], "updates_per_stage": 0}, "at least 1 update"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        HorizonStages(**options)


# ------------------------------------------------------------ starts


def test_snapshot_rl_worked_numbers():
    assert [start_fraction(step, 10) for step in (0, 5, 10, 20)] == [1, 0.5, 0, 0]


@pytest.fixture
def start_group(assembly):
    """Return a function that samples a group which starts after turns of an expert."""

    def group(step, until=10, steps=3):
        async def main():
            method = MethodComponents(start=ExpertPrefix(anneal_updates=until))
            collector = assembly.build_collector(assembly.expert_actor(), method=method)
            task = next(t for t in assembly.source.held_out(20) if len(t.private["steps"]) == steps)
            return await collector.group(GroupPlan(task, 0, name="y/", step=step), Independent(group_size=3))

        return asyncio.run(main())

    return group


def test_group_starts_at_one_turn_and_earlier_turns_are_not_trained(start_group):
    paths = start_group(0).trajectories
    count = 3  # all but the last of four turns
    for trajectory in paths:
        assert "started_later" in trajectory.marks
        assert trajectory.turns[:count] == paths[0].turns[:count]
        assert {a for t in trajectory.turns[:count] for a in t.action.authors} == {Author.INSERTED}
        (segment,) = trajectory.segments()
        assert sum(segment.action_mask) == len(trajectory.turns[count].action)
        assert trajectory.solved


def test_start_moves_to_the_first_turn_and_stays_there(start_group):
    assert all(t.marks == () for t in start_group(10).trajectories)
    shares = [sum(a is Author.INSERTED for t in start_group(step, until=100).trajectories[0].turns
                  for a in t.action.authors[:1]) for step in (0, 30, 60)]  # fmt: skip
    assert shares == sorted(shares, reverse=True)


def test_frozen_model_plays_the_start_instead_of_the_expert():
    def respond(conversation, tools, seed):
        turn = sum(message.role == "assistant" for message in conversation)
        return (call("1+1"), call("2+2"), assistant("4"))[turn]

    start = ExpertPrefix(anneal_updates=10, model="guide", models={"guide": FrozenModel("guide", respond)})
    words = in_order(call("12*34"), call("408+0"), assistant("408"))
    for trajectory in collected(Independent(group_size=2), words, method=MethodComponents(start=start)).trajectories:
        assert trajectory.marks == ("started_later",)
        assert [{*t.action.authors} for t in trajectory.turns] == [{Author.INSERTED}] * 2 + [{Author.POLICY}]
        assert trajectory.turns[0].message.tool_calls[0].arguments == call("1+1").tool_calls[0].arguments
        assert trajectory.solved
    with pytest.raises(RecipeError, match='no model named "guid"; did you mean "guide"'):
        ExpertPrefix(anneal_updates=10, model="guid", models={"guide": FrozenModel("guide", respond)})


def test_groups_start_after_turns_of_own_successes():
    right = in_order(call("12*34"), call("408+0"), assistant("408"))
    start = ReplayPrefix(anneal_updates=10)
    method = MethodComponents(start=start)
    first = collected(Independent(group_size=2), right, method=method)
    assert all(t.marks == () for t in first.trajectories)  # nothing is known yet
    start.observe(step_outcome(first))
    restored = ReplayPrefix(anneal_updates=10)
    restored.load_state(start.state())
    for known in (start, restored):
        begun = collected(Independent(group_size=2), right, method=MethodComponents(start=known))
        for trajectory in begun.trajectories:
            assert trajectory.marks == ("started_later",)
            assert [{*t.action.authors} for t in trajectory.turns] == [{Author.INSERTED}] * 2 + [{Author.POLICY}]
            assert trajectory.turns[0].action.ids == first.trajectories[0].turns[0].action.ids
    start.observe(step_outcome(begun))
    assert len(start.buffer) == 2  # an episode that started later is no separate success
    late = collected(Independent(group_size=2), right, method=method, plan=GroupPlan(TASK, 3, name="g/", step=10))
    assert all(t.marks == () for t in late.trajectories)


@pytest.mark.parametrize("start", [ExpertPrefix, ReplayPrefix])
def test_expert_prefix_requires_a_number_of_updates(start):
    with pytest.raises(OptionError, match="at least 1 update"):
        start(anneal_updates=0)
