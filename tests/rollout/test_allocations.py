"""How much a group may use, and where it begins."""

import asyncio

import pytest

from tests_episodes import TASK, call, collected, group, heard, in_order, path, turn
from whetstone.chat import assistant
from whetstone.plugins import OptionError
from whetstone.rollout import EpisodeKey, Method, Plan
from whetstone.rollout.allocations import BySuccess, HorizonStages
from whetstone.rollout.protocol import Allowance
from whetstone.rollout.starts import ExpertPrefix, OwnPrefix
from whetstone.rollout.starts.expert_prefix import share_started
from whetstone.rollout.strategies import EntropyBranching, Independent
from whetstone.trajectory import Author, EndReason, Group, Task

WORDS = in_order(*[call("1+1")] * 7, assistant("2"))


def at(step, task=TASK):
    return EpisodeKey(task, 0, step, 0, 8)


def test_scaling_inter_worked_numbers():
    component = HorizonStages(turns=[10, 20, 30], updates_per_stage=100)
    steps = [1, 99, 100, 101, 200, 201, 320]  # from 1, as in the paper
    assert [component(at(step - 1)).max_turns for step in steps] == [10, 10, 10, 20, 20, 30, 30]


def test_a_horizon_cuts_and_does_not_drop():
    method = Method(allocate=HorizonStages(turns=[2, 5], updates_per_stage=3))
    for step, turns in ((0, 2), (2, 2), (3, 5)):
        made = collected(Independent(group_size=2), WORDS, method=method, plan=Plan(TASK, 3, name="g/", step=step))
        assert [len(t.turns) for t in made.trajectories] == [turns, turns]
        assert {t.ended for t in made.trajectories} == {EndReason.MAX_TURNS}
        assert all(t.score is not None and t.removal is None for t in made.trajectories)


def test_one_stage_is_a_fixed_horizon():
    plain = collected(Independent(group_size=2), WORDS)
    staged = collected(
        Independent(group_size=2), WORDS, method=Method(allocate=HorizonStages(turns=[8], updates_per_stage=1))
    )
    assert [t.turns[-1].action.ids for t in plain.trajectories] == [t.turns[-1].action.ids for t in staged.trajectories]


def test_dart_numbers():
    made = BySuccess(group_size=8, max_turns=30)
    assert made(at(0)) == Allowance()  # nothing is known
    made.observe(heard(Group(TASK, (path("a", 1, [turn("4")] * 6), path("b", 0)))))
    assert made(at(1)) == Allowance(8, 8)  # solved half of the time; ceil(1.2 · 6)
    for _ in range(4):
        made.observe(heard(group(1, 1)))
    assert made(at(2)) == Allowance(4, 8)
    made.observe(heard(Group(TASK, (path("c", 1, [turn("4")] * 30),))))
    assert made(at(3)).max_turns == 30
    other = BySuccess(group_size=8, max_turns=30)
    other.load_state(made.state())
    assert other(at(3)) == made(at(3))


def test_few_turns_are_never_too_few_and_tasks_are_forgotten():
    made = BySuccess(group_size=8, max_turns=30, capacity=2)
    made.observe(heard(group(1, 1)))
    assert made(at(0)) == Allowance(4, 5)
    made.observe(heard(*(group(1, task=Task(f"t{k}", "")) for k in range(2))))
    assert made(at(0)) == Allowance()


def test_fewer_samples_are_fewer_samples():
    class Two:
        def __call__(self, occasion):
            return Allowance(group_size=2)

    for strategy in (Independent(group_size=6), EntropyBranching(group_size=6, roots=4)):
        made = collected(strategy, WORDS, method=Method(allocate=Two()))
        assert len(made.trajectories) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"turns": [], "updates_per_stage": 1}, "one or more of each stage"),
        ({"turns": [9], "updates_per_stage": 1, "max_turns": 8}, r"at most environment\.max_turns \(8\)"),
        ({"turns": [4], "updates_per_stage": 0}, "one update or more"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(OptionError, match=said):
        HorizonStages(**options)


# ------------------------------------------------------------ starts


def test_snapshot_rl_worked_numbers():
    assert [share_started(step, 10) for step in (0, 5, 10, 20)] == [1, 0.5, 0, 0]


@pytest.fixture
def started(assembly):
    """A group that begins behind an expert's turns."""

    def group(step, until=10, steps=3):
        async def main():
            method = Method(start=ExpertPrefix(anneal_updates=until))
            collector = assembly.collector(assembly.expert_actor(), method=method)
            task = next(t for t in assembly.source.held_out(20) if len(t.private["steps"]) == steps)
            return await collector.group(Plan(task, 0, name="y/", step=step), Independent(group_size=3))

        return asyncio.run(main())

    return group


def test_a_group_begins_at_one_place_and_what_is_in_front_is_not_trained(started):
    paths = started(0).trajectories
    count = 3  # all but the last of four turns
    for trajectory in paths:
        assert "started_later" in trajectory.marks
        assert trajectory.turns[:count] == paths[0].turns[:count]
        assert {a for t in trajectory.turns[:count] for a in t.action.authors} == {Author.INSERTED}
        (segment,) = trajectory.segments()
        assert sum(segment.action_mask) == len(trajectory.turns[count].action)
        assert trajectory.solved


def test_it_moves_to_the_beginning_and_ends_there(started):
    assert all(t.marks == () for t in started(10).trajectories)
    shares = [sum(a is Author.INSERTED for t in started(step, until=100).trajectories[0].turns
                  for a in t.action.authors[:1]) for step in (0, 30, 60)]  # fmt: skip
    assert shares == sorted(shares, reverse=True)


def test_own_successes_are_begun_behind_once_there_are_any():
    right = in_order(call("12*34"), call("408+0"), assistant("408"))
    start = OwnPrefix(anneal_updates=10)
    method = Method(start=start)
    first = collected(Independent(group_size=2), right, method=method)
    assert all(t.marks == () for t in first.trajectories)  # nothing is known yet
    start.observe(heard(first))
    restored = OwnPrefix(anneal_updates=10)
    restored.load_state(start.state())
    for known in (start, restored):
        begun = collected(Independent(group_size=2), right, method=Method(start=known))
        for trajectory in begun.trajectories:
            assert trajectory.marks == ("started_later",)
            assert [{*t.action.authors} for t in trajectory.turns] == [{Author.INSERTED}] * 2 + [{Author.POLICY}]
            assert trajectory.turns[0].action.ids == first.trajectories[0].turns[0].action.ids
    start.observe(heard(begun))
    assert len(start.buffer) == 2  # what began in the middle is no success of the whole
    late = collected(Independent(group_size=2), right, method=method, plan=Plan(TASK, 3, name="g/", step=10))
    assert all(t.marks == () for t in late.trajectories)


@pytest.mark.parametrize("start", [ExpertPrefix, OwnPrefix])
def test_a_start_wants_updates(start):
    with pytest.raises(OptionError, match="one update or more"):
        start(anneal_updates=0)
