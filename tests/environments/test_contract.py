"""The contract checker finds what it is there to find: each fault planted, each named."""

import asyncio
import random

import pytest

from whetstone.chat import user
from whetstone.environments import Observation, StepResult
from whetstone.evaluation.checks import Verdict
from whetstone.evaluation.contract import Contract, check_contract
from whetstone.rewards import verdict
from whetstone.tasks import Generated
from whetstone.trajectory import Task


class Counting:
    """Say anything five times; well behaved."""

    shared = 0

    def __init__(self):
        self.count, self.seed = 0, 0

    async def reset(self, task, *, seed):
        self.count, self.seed = 0, seed
        return Observation((user(task.prompt),))

    async def step(self, action):
        if self.count >= 5:
            from whetstone.errors import EpisodeError

            raise EpisodeError("it is over")
        self.count += 1
        return StepResult(Observation((user(f"{self.count}"),)), reward=0.2, terminated=self.count == 5)

    def verdict(self):
        return {"success": self.count == 5, "score": self.count / 5}

    async def close(self):
        pass


class Numbers(Generated):
    name = "numbers"

    def make(self, draw, level):
        return Task("", f"count {draw.randrange(1000)}", {})

    def demonstrate(self, task, conversation, tools):
        from whetstone.chat import assistant

        return assistant("on")


class Wild(Counting):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(Observation((user(str(random.random())),)), terminated=result.terminated)


class Shared(Counting):
    async def reset(self, task, *, seed):
        Shared.shared = 0
        return await super().reset(task, seed=seed)

    async def step(self, action):
        await asyncio.sleep(0)
        Shared.shared += 1
        await super().step(action)
        return StepResult(Observation((user(str(Shared.shared)),)), terminated=self.count == 5)


class Forgetful(Counting):
    def snapshot(self):
        return 0

    def restore(self, kept):
        self.count = 1


class Touchy(Counting):
    async def step(self, action):
        if not action.text.strip():
            raise ValueError("say something")
        return await super().step(action)


class Boastful(Counting):
    def verdict(self):
        return {"success": True, "score": 7.0}


class Loose(Counting):
    async def step(self, action):
        self.count += 1
        return StepResult(Observation((user("on"),)), terminated=self.count >= 5)


class Leaky(Numbers):
    def held_out(self, count):
        return [self.task(index) for index in range(count)]


class Moody(Numbers):
    def task(self, index):
        return Task(f"t{index}", str(random.random()))


class Clumsy(Numbers):
    name = "clumsy"


class Unsolved(Counting):
    def verdict(self):
        return {"success": False, "score": 0.0}


def bad(environment, source=Numbers):
    contract = Contract(environment, source(), source, verdict, episodes=6, needs_process=False, concurrent=8)

    async def all_checks():
        return {check.name: check async for check in check_contract(contract)}

    checks = asyncio.run(all_checks())
    return {name for name, check in checks.items() if check.verdict is Verdict.BAD}, checks


def test_a_well_behaved_environment_breaks_no_promise():
    assert bad(Counting)[0] == set()


@pytest.mark.parametrize(
    ("environment", "source", "where"),
    [
        (Wild, Numbers, "same again"),
        (Shared, Numbers, "side by side"),
        (Forgetful, Numbers, "kept"),
        (Touchy, Numbers, "strange actions"),
        (Boastful, Numbers, "verdict"),
        (Counting, Leaky, "tasks"),
        (Counting, Moody, "tasks"),
        (Unsolved, Numbers, "expert"),
    ],
)
def test_a_planted_fault_is_found_where_it_is(environment, source, where):
    found, checks = bad(environment, source)
    assert where in found, {name: check.said for name, check in checks.items()}


def test_a_step_behind_the_end_is_noted():
    _, checks = bad(Loose)
    assert checks["endings"].verdict is Verdict.NOTE
    assert "behind the end" in checks["endings"].said


class Stillborn(Counting):
    async def reset(self, task, *, seed):
        raise RuntimeError("no power")


def test_where_no_episode_comes_about_that_is_what_is_said():
    _, checks = bad(Stillborn)
    assert "no power" in checks["random"].said
    assert "no episode came about" in checks["kept"].said
