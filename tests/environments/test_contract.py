"""The contract checker finds what it is there to find: each fault planted, each named."""

import asyncio
import contextlib
import json
import random

import numpy
import pytest

from whetstone.chat import ToolCall, ToolSpec, assistant, user
from whetstone.cli.environments import contract_of
from whetstone.environments import Observation, StepResult
from whetstone.errors import RecipeError
from whetstone.evaluation.checks import CheckStatus
from whetstone.evaluation.contract import Contract, check_contract
from whetstone.evaluation.contract.impostors import ODD_ARGUMENTS, ODD_TEXTS, Nonsense
from whetstone.evaluation.contract.luck import UNLISTED, at_least, chance_of, explained, of_episode
from whetstone.evaluation.contract.nothing import Nothing
from whetstone.rewards import verdict
from whetstone.tasks import Generated
from whetstone.trajectory import Task


class Counting:
    """Say `on` five times; well behaved."""

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


def bad(environment, source=Numbers, episodes=6):
    contract = Contract(environment, source(), source, verdict, episodes=episodes, needs_process=False, concurrent=8)

    async def all_checks():
        return {check.name: check async for check in check_contract(contract)}

    checks = asyncio.run(all_checks())
    return {name for name, check in checks.items() if check.verdict is CheckStatus.FAIL}, checks


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
    assert checks["endings"].verdict is CheckStatus.WARN
    assert "behind the end" in checks["endings"].said


class Stillborn(Counting):
    async def reset(self, task, *, seed):
        raise RuntimeError("no power")


def test_where_no_episode_comes_about_that_is_what_is_said():
    _, checks = bad(Stillborn)
    assert "no power" in checks["random"].said
    assert "no episode came about" in checks["kept"].said


# ------------------------------------------------------------ nothing for nothing


class Lenient(Counting):
    """Over when somebody says so; nothing of it has to be right."""

    def verdict(self):
        return {"success": self.count >= 5, "score": 0.0}


class OfMoves(Counting):
    """One of eight moves ends it; which of them wins is another for each task."""

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


class Forfeiting(OfMoves):
    """Whatever the move, the other side has none."""

    wins = staticmethod(lambda task: {f"m{k}" for k in range(8)})


class Accepting(OfMoves):
    """Who ends it has won."""

    wins = staticmethod(lambda task: {"done"})

    async def step(self, action):
        result = await super().step(action)
        return StepResult(result.observation, terminated=result.terminated or self.right)


class HeadStart(Counting):
    def verdict(self):
        return {"success": self.right == 5, "score": 0.3 + 0.7 * (self.right == 5)}


class Generous(Counting):
    """Counts what is written, as a judge would that reads it."""

    def __init__(self):
        super().__init__()
        self.printed = 0

    async def step(self, action):
        self.printed = max(self.printed, len(action.text))
        return await super().step(action)

    def verdict(self):
        return {"success": False, "score": self.printed / 100}


class Deep(Counting):
    """Offers a tool, and reads its arguments without a thought of brackets."""

    async def reset(self, task, *, seed):
        found = await super().reset(task, seed=seed)
        return Observation(found.messages, (ToolSpec("look", "", {"type": "object", "properties": {}}),))

    async def step(self, action):
        for call in action.tool_calls:
            with contextlib.suppress(ValueError):
                json.loads(call.arguments)
        return await super().step(action)


class Endless(Counting):
    async def step(self, action):
        if action.text == "nan":
            await asyncio.sleep(3600)
        return await super().step(action)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (Lenient, "idle wins 12 of 12"),
        (Lenient, "garbage wins 12 of 12"),
        (Forfeiting, "early wins 12 of 12"),
        (Accepting, "stopper wins 5 of 12"),  # those who come to that word in five turns
        (Generous, "a score of 50.0, not from 0 to 1"),
        (Deep, "(step): RecursionError"),
    ],
)
def test_who_wins_without_the_task_and_what_words_break_are_faults(environment, said):
    _, checks = bad(environment, episodes=12)
    found = checks["nothing for nothing"]
    assert found.verdict is CheckStatus.FAIL
    assert said in found.said
    assert found.mend


def test_a_move_that_may_be_guessed_is_no_fault_and_a_score_from_the_start_is_a_note():
    found, checks = bad(OfMoves, Guessing, episodes=12)
    assert "nothing for nothing" not in found
    assert "which luck explains" in checks["nothing for nothing"].said
    found, checks = bad(HeadStart, episodes=12)
    assert "nothing for nothing" not in found
    assert checks["nothing for nothing"].verdict is CheckStatus.WARN
    assert "idle has a score of up to 0.3" in checks["nothing for nothing"].said


class Guessing(Numbers):
    name = "guessing"

    def demonstrate(self, task, conversation, tools):
        return assistant(next(iter(OfMoves.wins(task))))


def test_an_episode_that_words_bring_to_a_stop_is_a_fault():
    tried = Nothing(Endless, Numbers(), verdict, tasks=3, longest=0.3)
    found = asyncio.run(tried.check())
    assert found.verdict is CheckStatus.FAIL
    assert "did not end within 0.3 s" in found.said


def test_calling_nothing_where_nothing_is_to_be_called_is_right():
    class Irrelevant(Deep):
        async def step(self, action):
            self.count = 5
            self.called = bool(action.tool_calls)
            return StepResult(Observation(()), terminated=True)

        def verdict(self):
            return {"success": not self.called, "score": 1.0}

    found = asyncio.run(Nothing(Irrelevant, Numbers(), verdict, tasks=3).check())
    assert found.verdict is CheckStatus.WARN
    assert "win by calling nothing, as the expert does" in found.said


def test_luck_explains_what_comes_about_once_in_a_thousand_times():
    assert at_least(1, [0.5, 0.5]) == pytest.approx(0.75)
    assert explained(0, [])
    assert explained(2, [1 / 37] * 60)  # Wordle, of 37 words
    assert explained(12, [1 / 2] * 12) is False
    assert chance_of(assistant("A "), ["a", "b"]) == 0.5
    assert chance_of(assistant("", ToolCall("act", '{"command": "b"}', "")), ["a", "b"]) == 0.5
    assert chance_of(assistant("accept"), ["a", "b"]) == 0
    assert chance_of(assistant("accept"), []) is None
    looking = [ToolSpec("look", "", {})]
    assert chance_of(assistant("accept"), [], looking) == 0  # nothing was done in the world
    assert chance_of(assistant("", ToolCall("look", "{}", "")), [], looking) is None
    assert (of_episode([None] * 30), of_episode([0.0, 0.5, 0.25]), of_episode([])) == (UNLISTED, 0.75, 0)


def test_nonsense_says_all_that_is_odd_and_no_move_of_the_game():
    player, given = Nonsense(0), []
    for _ in range(len(ODD_TEXTS) * 2):
        given.append(player([], (), ["SAVE"]).text)
    assert set(given) == {*ODD_TEXTS, "", "zzqx"} - {"save"}
    act = ToolSpec("act", "", {"type": "object", "properties": {"command": {"type": "string"}}})
    player = Nonsense(0)
    calls = [call for _ in range(3000) for call in player([], (act,), ()).tool_calls]
    assert {json.dumps({"command": odd}) for odd in ODD_TEXTS} <= {call.arguments for call in calls}
    assert set(ODD_ARGUMENTS) <= {call.arguments for call in calls}


# ------------------------------------------------------------ chance that everybody shares


class Seeding(Counting):
    """The same alone, and another as soon as somebody draws in between."""

    draw = staticmethod(random.random)
    begin = staticmethod(random.seed)

    async def reset(self, task, *, seed):
        self.begin(seed)
        return await super().reset(task, seed=seed)

    async def step(self, action):
        result = await super().step(action)
        return StepResult(Observation((user(f"{self.draw()}"),)), terminated=result.terminated)


class OfNumpy(Seeding):
    draw, begin = staticmethod(numpy.random.random), staticmethod(numpy.random.seed)


class Lengthy(Counting):
    """Goes on as long as chance has it, which may be longer the second time."""

    async def step(self, action):
        self.count += 1
        return StepResult(Observation((user("on"),)), terminated=random.random() < 0.3)


class Moving(Counting):
    async def step(self, action):
        random.random()
        return await super().step(action)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (Wild, "draws from Python's global `random`,"),
        (Seeding, "draws from Python's global `random`,"),
        (OfNumpy, "draws from `numpy.random`,"),
        (Lengthy, "draws from Python's global `random`,"),
    ],
)
def test_a_world_that_draws_from_chance_everybody_shares_is_told_so(environment, named):
    found, checks = bad(environment)
    assert "same again" in found
    assert named in checks["same again"].said


def test_a_world_that_moves_chance_everybody_shares_is_told_so_and_ours_stays_where_it_was():
    random.seed(3)
    wanted = random.random()
    random.seed(3)
    found, checks = bad(Counting)
    assert random.random() == wanted
    found, checks = bad(Moving)
    assert "same again" not in found
    assert "moves Python's global `random`" in checks["same again"].said


# ------------------------------------------------------------ sources that are none


class NoTasks:
    """Neither tasks nor anything."""


class Empty:
    """Has all methods, and no task."""

    def task(self, index):
        return [][index % 0]

    def held_out(self, count):
        return []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("NoTasks", "has no task; a task source has task, held_out"),
        ("Counting", "has no task; a task source has task, held_out"),
        ("Empty", "(task): ZeroDivisionError: integer modulo by zero"),
    ],
)
def test_a_source_without_tasks_is_one_line(source, said):
    with pytest.raises(RecipeError) as refused:
        contract_of(f"{__name__}:Counting", {}, source=f"{__name__}:{source}")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
