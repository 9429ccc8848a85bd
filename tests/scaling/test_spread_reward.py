"""An episode is judged by whoever has the least to do, and by another where that one died."""

import asyncio
import pickle

import pytest

from tests_episodes import TASK, path
from whetstone.errors import InfrastructureError
from whetstone.rewards import Compares
from whetstone.scaling import spread_reward
from whetstone.scaling.protocol import Gone
from whetstone.scaling.spread_reward import ComparingSpreadReward, SpreadReward
from whetstone.trajectory import Score


class Fake:
    def __init__(self, name, *, gone=0):
        self.name, self.gone, self.judged, self.heard = name, gone, 0, []

    async def judge(self, trajectory, task, memory):
        await asyncio.sleep(0)
        if self.gone:
            self.gone -= 1
            raise Gone("dead")
        self.judged += 1
        self.heard.append(memory)
        return Score(0.5)

    async def compare(self, trajectories, task, memory):
        return [Score(float(k)) for k in range(len(trajectories))]


def judged(*judges, times=1, patience=5.0, kind=SpreadReward):
    reward = kind(judges, memory=lambda: b"remembered", patience_seconds=patience)

    async def main():
        return await asyncio.gather(*(reward(path("a"), TASK) for _ in range(times)))

    return asyncio.run(main())


def test_judges_share_the_work_and_know_what_the_reward_remembers():
    one, two = Fake("one"), Fake("two")
    assert judged(one, two, times=6) == [Score(0.5)] * 6
    assert (one.judged, two.judged) == (3, 3)
    assert set(one.heard) == {b"remembered"}


def test_another_judge_is_asked_where_one_died():
    one, two = Fake("one", gone=99), Fake("two")
    assert judged(one, two, times=2) == [Score(0.5)] * 2
    assert two.judged == 2


def test_without_a_judge_an_episode_is_void_and_not_worth_nothing(monkeypatch):
    monkeypatch.setattr(spread_reward, "_LOOK_SECONDS", 0.01)
    assert judged(Fake("one", gone=2)) == [Score(0.5)]  # it came back
    with pytest.raises(InfrastructureError, match=r"none of 1 reward workers answered within 0\.05 s"):
        judged(Fake("one", gone=99), patience=0.05)


def test_one_compares_where_the_recipe_does():
    assert not isinstance(SpreadReward([Fake("a")], memory=lambda: None, patience_seconds=1), Compares)
    reward = ComparingSpreadReward([Fake("a")], memory=lambda: None, patience_seconds=1)
    assert isinstance(reward, Compares)
    scores = asyncio.run(reward.compared([path("a"), path("b")], TASK))
    assert [score.value for score in scores] == [0.0, 1.0]


def test_what_parts_remember_is_packed_where_they_act_in_workers():
    from whetstone.rollout import Method
    from whetstone.scaling.spread_collector import packed

    class Remembers:
        def observe(self, heard): ...

        def state(self):
            return {"seen": 3}

        def load_state(self, state): ...

    assert packed(Method()) is None
    assert packed(Method(replay={"buffer": Remembers()})) is None  # it acts where it is learned
    assert pickle.loads(packed(Method(start=Remembers()))) == {"start": {"seen": 3}}
