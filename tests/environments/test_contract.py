"""The contract checker finds and names each planted fault."""

import asyncio
import contextlib
import json
import random

import numpy
import pytest

from whetstone.chat import ToolCall, ToolSpec, assistant, user
from whetstone.cli.environments import create_contract
from whetstone.environments import Observation, StepResult
from whetstone.errors import RecipeError
from whetstone.evaluation.check_result import CheckStatus
from whetstone.evaluation.environment_checks import Contract, check_contract
from whetstone.evaluation.environment_checks.chance_level import (
    UNLISTED,
    is_explained_by_luck,
    lucky_move_probability,
    lucky_win_probability,
    wins_tail_probability,
)
from whetstone.evaluation.environment_checks.degenerate_policies import ODD_ARGUMENTS, ODD_TEXTS, MalformedTexts
from whetstone.evaluation.environment_checks.trivial_policies import TrivialPolicyCheck
from whetstone.rewards import verdict
from whetstone.tasks import Generated
from whetstone.trajectory import Task


class CountingWorld:
    """A valid world: `on` five times succeeds."""

    shared = 0

    def __init__(self):
        self.count, self.right, self.seed = 0, 0, 0

    async def reset(self, task, *, seed):
        self.count, self.right, self.seed = 0, 0, seed
        return Observation((user(task.prompt),))

    async def step(self, action):
        if self.count >= 5:
            from whetstone.errors import EpisodeError

            raise EpisodeError("it is over")
        self.count += 1
        self.right += action.text == "on"
        return StepResult(Observation((user(f"{self.count}"),)), reward=0.2, terminated=self.count == 5)

    def verdict(self):
        return {"success": self.right == 5, "score": self.right / 5}

    async def close(self):
        pass


class NumberTasks(Generated):
    name = "numbers"

    def make(self, draw, level):
        return Task("", f"count {draw.randrange(1000)}", {})

    def demonstrate(self, task, conversation, tools):
        from whetstone.chat import assistant

        return assistant("on")


class RandomWorld(CountingWorld):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(Observation((user(str(random.random())),)), terminated=result.terminated)


class SharedStateWorld(CountingWorld):
    async def reset(self, task, *, seed):
        SharedStateWorld.shared = 0
        return await super().reset(task, seed=seed)

    async def step(self, action):
        await asyncio.sleep(0)
        SharedStateWorld.shared += 1
        await super().step(action)
        return StepResult(Observation((user(str(SharedStateWorld.shared)),)), terminated=self.count == 5)


class LossySnapshotWorld(CountingWorld):
    def snapshot(self):
        return 0

    def restore(self, snapshot):
        self.count = 1


class RaisingWorld(CountingWorld):
    async def step(self, action):
        if not action.text.strip():
            raise ValueError("say something")
        return await super().step(action)


class AlwaysSuccessfulWorld(CountingWorld):
    def verdict(self):
        return {"success": True, "score": 7.0}


class AnyActionWorld(CountingWorld):
    async def step(self, action):
        self.count += 1
        return StepResult(Observation((user("on"),)), terminated=self.count >= 5)


class OverlappingTasks(NumberTasks):
    def held_out(self, count):
        return [self.task(index) for index in range(count)]


class UnstableTasks(NumberTasks):
    def task(self, index):
        return Task(f"t{index}", str(random.random()))


class NeverSuccessfulWorld(CountingWorld):
    def verdict(self):
        return {"success": False, "score": 0.0}


def failed_checks(environment, source=NumberTasks, episodes=6):
    contract = Contract(environment, source(), source, verdict, episodes=episodes, needs_process=False, concurrent=8)

    async def all_checks():
        return {check.name: check async for check in check_contract(contract)}

    checks = asyncio.run(all_checks())
    return {name for name, check in checks.items() if check.verdict is CheckStatus.FAIL}, checks


def test_valid_environment_passes_every_check():
    assert failed_checks(CountingWorld)[0] == set()


@pytest.mark.parametrize(
    ("environment", "source", "where"),
    [
        (RandomWorld, NumberTasks, "same again"),
        (SharedStateWorld, NumberTasks, "side by side"),
        (LossySnapshotWorld, NumberTasks, "kept"),
        (RaisingWorld, NumberTasks, "strange actions"),
        (AlwaysSuccessfulWorld, NumberTasks, "verdict"),
        (CountingWorld, OverlappingTasks, "tasks"),
        (CountingWorld, UnstableTasks, "tasks"),
        (NeverSuccessfulWorld, NumberTasks, "expert"),
    ],
)
def test_planted_fault_fails_its_check(environment, source, where):
    failed, checks = failed_checks(environment, source)
    assert where in failed, {name: check.said for name, check in checks.items()}


def test_step_after_the_end_is_noted():
    _, checks = failed_checks(AnyActionWorld)
    assert checks["endings"].verdict is CheckStatus.WARN
    assert "after the end" in checks["endings"].said


class FailingResetWorld(CountingWorld):
    async def reset(self, task, *, seed):
        raise RuntimeError("no power")


def test_missing_episodes_are_reported():
    _, checks = failed_checks(FailingResetWorld)
    assert "no power; the other checks need its episodes and were not run" in checks["random"].said
    assert list(checks)[-1] == "random"


# ------------------------------------------------------------ nothing for nothing


class LenientWorld(CountingWorld):
    """A world that succeeds when the policy ends it, regardless of correctness."""

    def verdict(self):
        return {"success": self.count >= 5, "score": 0.0}


class MovesWorld(CountingWorld):
    """A world that any of eight moves ends; the winning move depends on the task."""

    wins = staticmethod(lambda task: {f"m{int(task.prompt.split()[1]) % 8}"})

    async def reset(self, task, *, seed):
        self.winning = self.wins(task)
        return await super().reset(task, seed=seed)

    async def admissible(self):
        return [f"m{k}" for k in range(8)]

    async def step(self, action):
        result = await super().step(action)
        self.right = action.text in self.winning
        return StepResult(result.observation, terminated=result.terminated or action.text.startswith("m"))

    def verdict(self):
        return {"success": self.right, "score": float(self.right)}


class ForfeitingWorld(MovesWorld):
    """A world whose opponent never has a move."""

    wins = staticmethod(lambda task: {f"m{k}" for k in range(8)})


class AcceptingWorld(MovesWorld):
    """A world that succeeds when the policy ends it."""

    wins = staticmethod(lambda task: {"done"})

    async def step(self, action):
        result = await super().step(action)
        return StepResult(result.observation, terminated=result.terminated or self.right)


class HeadStartWorld(CountingWorld):
    def verdict(self):
        return {"success": self.right == 5, "score": 0.3 + 0.7 * (self.right == 5)}


class GenerousWorld(CountingWorld):
    """A world that counts words, like a judge that reads them."""

    def __init__(self):
        super().__init__()
        self.printed = 0

    async def step(self, action):
        self.printed = max(self.printed, len(action.text))
        return await super().step(action)

    def verdict(self):
        return {"success": False, "score": self.printed / 100}


class NestedArgumentsWorld(CountingWorld):
    """A world with a tool whose arguments are parsed without a limit of depth."""

    async def reset(self, task, *, seed):
        observation = await super().reset(task, seed=seed)
        return Observation(observation.messages, (ToolSpec("look", "", {"type": "object", "properties": {}}),))

    async def step(self, action):
        for call in action.tool_calls:
            with contextlib.suppress(ValueError):
                json.loads(call.arguments)
        return await super().step(action)


class EndlessWorld(CountingWorld):
    async def step(self, action):
        if action.text == "nan":
            await asyncio.sleep(3600)
        return await super().step(action)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (LenientWorld, "idle wins 12 of 12"),
        (LenientWorld, "garbage wins 12 of 12"),
        (ForfeitingWorld, "early wins 12 of 12"),
        (AcceptingWorld, "stopper wins 5 of 12"),  # policies that send that word within five turns
        (GenerousWorld, "a score of 50.0, not from 0 to 1"),
        (NestedArgumentsWorld, "(step): RecursionError"),
    ],
)
def test_success_without_the_task_and_breaking_words_are_faults(environment, message):
    _, checks = failed_checks(environment, episodes=12)
    check = checks["nothing for nothing"]
    assert check.verdict is CheckStatus.FAIL
    assert message in check.said
    assert check.mend


def test_guessable_move_is_no_fault_and_an_initial_score_is_a_note():
    failed, checks = failed_checks(MovesWorld, GuessableTasks, episodes=12)
    assert "nothing for nothing" not in failed
    assert "which luck explains" in checks["nothing for nothing"].said
    failed, checks = failed_checks(HeadStartWorld, episodes=12)
    assert "nothing for nothing" not in failed
    assert checks["nothing for nothing"].verdict is CheckStatus.WARN
    assert "idle has a score of up to 0.3" in checks["nothing for nothing"].said


class GuessableTasks(NumberTasks):
    name = "guessing"

    def demonstrate(self, task, conversation, tools):
        return assistant(next(iter(MovesWorld.wins(task))))


def test_episode_that_hangs_on_words_is_a_fault():
    tried = TrivialPolicyCheck(EndlessWorld, NumberTasks(), verdict, tasks=3, longest=0.3)
    check = asyncio.run(tried.check())
    assert check.verdict is CheckStatus.FAIL
    assert "did not end within 0.3 s" in check.said


def test_absence_of_calls_is_valid_if_the_expert_makes_none():
    class IrrelevantWorld(NestedArgumentsWorld):
        async def step(self, action):
            self.count = 5
            self.called = bool(action.tool_calls)
            return StepResult(Observation(()), terminated=True)

        def verdict(self):
            return {"success": not self.called, "score": 1.0}

    check = asyncio.run(TrivialPolicyCheck(IrrelevantWorld, NumberTasks(), verdict, tasks=3).check())
    assert check.verdict is CheckStatus.WARN
    assert "win without a call, like the expert's" in check.said


def test_lucky_wins_are_tolerated_above_one_in_a_thousand():
    assert wins_tail_probability(1, [0.5, 0.5]) == pytest.approx(0.75)
    assert is_explained_by_luck(0, [])
    assert is_explained_by_luck(2, [1 / 37] * 60)  # Wordle, of 37 words
    assert is_explained_by_luck(12, [1 / 2] * 12) is False
    assert lucky_move_probability(assistant("A "), ["a", "b"]) == 0.5
    assert lucky_move_probability(assistant("", ToolCall("act", '{"command": "b"}', "")), ["a", "b"]) == 0.5
    assert lucky_move_probability(assistant("accept"), ["a", "b"]) == 0
    assert lucky_move_probability(assistant("accept"), []) is None
    looking = [ToolSpec("look", "", {})]
    assert lucky_move_probability(assistant("accept"), [], looking) == 0  # no action was taken
    assert lucky_move_probability(assistant("", ToolCall("look", "{}", "")), [], looking) is None
    assert (lucky_win_probability([None] * 30), lucky_win_probability([0.0, 0.5, 0.25]), lucky_win_probability([])) == (
        UNLISTED,
        0.75,
        0,
    )


def test_nonsense_policy_sends_malformed_messages_and_no_valid_move():
    player, messages = MalformedTexts(0), []
    for _ in range(len(ODD_TEXTS) * 2):
        messages.append(player([], (), ["SAVE"]).text)
    assert set(messages) == {*ODD_TEXTS, "", "zzqx"} - {"save"}
    act = ToolSpec("act", "", {"type": "object", "properties": {"command": {"type": "string"}}})
    player = MalformedTexts(0)
    calls = [call for _ in range(3000) for call in player([], (act,), ()).tool_calls]
    assert {json.dumps({"command": odd}) for odd in ODD_TEXTS} <= {call.arguments for call in calls}
    assert set(ODD_ARGUMENTS) <= {call.arguments for call in calls}


# ------------------------------------------------------------ global random state


class SeedingWorld(CountingWorld):
    """A world whose episodes depend on other samples from the global random state."""

    draw = staticmethod(random.random)
    begin = staticmethod(random.seed)

    async def reset(self, task, *, seed):
        self.begin(seed)
        return await super().reset(task, seed=seed)

    async def step(self, action):
        result = await super().step(action)
        return StepResult(Observation((user(f"{self.draw()}"),)), terminated=result.terminated)


class NumpySeedingWorld(SeedingWorld):
    draw, begin = staticmethod(numpy.random.random), staticmethod(numpy.random.seed)


class RandomLengthWorld(CountingWorld):
    """A world of random length, which can differ between two runs of an episode."""

    async def step(self, action):
        self.count += 1
        return StepResult(Observation((user("on"),)), terminated=random.random() < 0.3)


class ReseedingWorld(CountingWorld):
    async def step(self, action):
        random.random()
        return await super().step(action)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (RandomWorld, "depends on Python's global `random`,"),
        (SeedingWorld, "depends on Python's global `random`,"),
        (NumpySeedingWorld, "depends on `numpy.random`,"),
        (RandomLengthWorld, "depends on Python's global `random`,"),
    ],
)
def test_world_that_samples_from_global_random_state_is_reported(environment, named):
    failed, checks = failed_checks(environment)
    assert "same again" in failed
    assert named in checks["same again"].said


def test_world_that_changes_global_random_state_is_reported_and_the_state_is_restored():
    random.seed(3)
    wanted = random.random()
    random.seed(3)
    failed, checks = failed_checks(CountingWorld)
    assert random.random() == wanted
    failed, checks = failed_checks(ReseedingWorld)
    assert "same again" not in failed
    assert "changes Python's global `random`" in checks["same again"].said


# ------------------------------------------------------------ invalid sources


class NotASource:
    """A class without the methods of a source."""


class EmptySource:
    """A source with all methods and without tasks."""

    def task(self, index):
        return [][index % 0]

    def held_out(self, count):
        return []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("NotASource", "has no task; a task source has task, held_out"),
        ("CountingWorld", "has no task; a task source has task, held_out"),
        ("EmptySource", "(task): ZeroDivisionError: integer modulo by zero"),
    ],
)
def test_source_without_tasks_is_refused_in_one_line(source, message):
    with pytest.raises(RecipeError) as refused:
        create_contract(f"{__name__}:CountingWorld", {}, source=f"{__name__}:{source}")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
