"""Episodes are scored by the least loaded judge, and by another one if it dies."""

import asyncio
import pickle

import pytest

from support.episodes import TASK, path
from whetstone.errors import InfrastructureError
from whetstone.rewards import GroupReward
from whetstone.scaling import distributed_reward
from whetstone.scaling.distributed_reward import DistributedGroupReward, DistributedReward
from whetstone.scaling.protocol import ActorUnavailable
from whetstone.trajectory import Score


class FakeJudge:
    def __init__(self, name, *, failures=0):
        self.name, self.gone, self.judged, self.memories = name, failures, 0, []

    async def judge(self, trajectory, task, memory):
        await asyncio.sleep(0)
        if self.gone:
            self.gone -= 1
            raise ActorUnavailable("dead")
        self.judged += 1
        self.memories.append(memory)
        return Score(0.5)

    async def compare(self, trajectories, task, memory):
        return [Score(float(k)) for k in range(len(trajectories))]


def judged(*judges, times=1, patience=5.0, kind=DistributedReward):
    reward = kind(judges, memory=lambda: b"remembered", patience_seconds=patience)

    async def main():
        return await asyncio.gather(*(reward(path("a"), TASK) for _ in range(times)))

    return asyncio.run(main())


def test_judges_share_the_load_and_receive_the_state_of_the_reward():
    one, two = FakeJudge("one"), FakeJudge("two")
    assert judged(one, two, times=6) == [Score(0.5)] * 6
    assert (one.judged, two.judged) == (3, 3)
    assert set(one.memories) == {b"remembered"}


def test_another_judge_scores_if_one_died():
    one, two = FakeJudge("one", failures=99), FakeJudge("two")
    assert judged(one, two, times=2) == [Score(0.5)] * 2
    assert two.judged == 2


def test_episode_without_a_judge_is_void_and_not_scored_zero(monkeypatch):
    monkeypatch.setattr(distributed_reward, "_LOOK_SECONDS", 0.01)
    assert judged(FakeJudge("one", failures=2)) == [Score(0.5)]  # it returned
    with pytest.raises(InfrastructureError, match=r"none of 1 reward workers responded within 0\.05 s"):
        judged(FakeJudge("one", failures=99), patience=0.05)


def test_one_judge_compares_a_group_if_the_recipe_requires_it():
    assert not isinstance(DistributedReward([FakeJudge("a")], memory=lambda: None, patience_seconds=1), GroupReward)
    reward = DistributedGroupReward([FakeJudge("a")], memory=lambda: None, patience_seconds=1)
    assert isinstance(reward, GroupReward)
    scores = asyncio.run(reward.compared([path("a"), path("b")], TASK))
    assert [score.value for score in scores] == [0.0, 1.0]


def test_state_of_components_is_sent_if_they_act_in_workers():
    from whetstone.rollout import MethodComponents
    from whetstone.scaling.distributed_collector import pickle_state

    class Remembers:
        def observe(self, outcome): ...

        def state(self):
            return {"seen": 3}

        def load_state(self, state): ...

    assert pickle_state(MethodComponents()) is None
    assert pickle_state(MethodComponents(replay={"buffer": Remembers()})) is None  # it acts in the learner process
    assert pickle.loads(pickle_state(MethodComponents(start=Remembers()))) == {"start": {"seen": 3}}
