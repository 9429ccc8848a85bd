"""Small environments of benches: which policies succeed in them, and which cannot."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from again import Doors, TriedAgainAtTheEnd
from calculator import FAILED, ConfidentExpert, HastyExpert, consistent_turn
from choosing import LETTERS, POOL, SYLLABLES, Words
from cold_start import TURNS, Traces
from masked import MASK, Masked
from ranker import Library, Pages
from self_search import search
from support.episodes import path
from support.episodes import turn as turn_of
from text_game import House
from whetstone.chat import ToolCall, assistant, tool_result, user
from whetstone.environments import Observation, StepResult
from whetstone.errors import ToolError
from whetstone.rewards import exact_number
from whetstone.rewards.answers.confidence import stated_confidence
from whetstone.tools import Toolset
from whetstone.tools.arithmetic_tools import pocket_calculator
from whetstone.trajectory import Task

TOOLS = Toolset([pocket_calculator]).specs


class Once:
    """A world in which every answer ends the episode."""

    async def reset(self, task, *, seed):
        return Observation((user("?"),))

    async def step(self, action):
        return StepResult(Observation(()), terminated=True)

    async def close(self):
        pass


async def wrong(task, actions):
    return 0.0


def ended(task):
    async def played():
        world = TriedAgainAtTheEnd(attempts=2)(Once(), wrong)
        await world.reset(task, seed=0)
        return (await world.step(assistant("Q"))).terminated

    return asyncio.run(played())


def test_held_out_doors_allow_retries_and_training_doors_do_not():
    doors = Doors()
    assert ended(doors.task(0))
    assert not ended(doors.held_out(1)[0])


def test_one_letter_per_door_is_likely_and_none_is_certain():
    letters_by_door = {}
    for index in range(600):
        task = Doors().task(index)
        letters_by_door.setdefault(task.prompt, []).append(task.private["answer"])
    for letters in letters_by_door.values():
        most = max(letters.count(letter) for letter in set(letters)) / len(letters)
        assert 0.35 < most < 0.8  # 0.55 of some 60


def play_policies(*policies, fixed=None, number=0):
    """Play these policies in turn; return the success and the last observation."""

    async def played():
        library, task = Library(fixed=fixed), Pages().held_out(number + 1)[number]
        seen = await library.reset(task, seed=0)
        for each in policies:
            seen = (await library.step(assistant(each(seen.messages[-1].text, task)))).observation
        return library.verdict()["success"]

    return asyncio.run(played())


def asks(seen, task):
    return task.private["relation"]


def ranks(seen, task):
    pages = seen.split()[2:]
    return pages[pages.index(task.private["relation"]) - 1]


def reads(seen, task):
    return seen.split()[-1]


def test_correct_query_page_and_name_are_a_success():
    assert all(play_policies(asks, ranks, reads, number=number) for number in range(5))
    assert all(play_policies(asks, reads, fixed=1.0, number=number) for number in range(5))
    assert not all(play_policies(lambda seen, task: "nothing", reads, fixed=1.0, number=number) for number in range(20))


def test_number_of_relations_is_the_number_of_masked_names():
    for index in range(20):
        task = Masked().task(index)
        assert task.prompt.split().count(MASK) == len(task.private["order"]) == int(task.tags["kind"])
    assert MASK not in Masked().held_out(1)[0].prompt


def test_search_for_an_unknown_relation_finds_nothing():
    assert search("boss") == "nothing"
    assert search("boss of ann") == "nothing"
    assert search("boss ann") != "nothing"


def test_words_repeat_and_held_out_words_follow_the_rule():
    words = Words(seed=3)
    assert words.task(5) == words.task(5 + POOL)
    wrong_ones = sum(words.task(index).tags["kind"] == "wrong" for index in range(POOL))
    assert 0 < wrong_ones < POOL / 2
    for task in words.held_out(20):
        assert task.private["answer"] == LETTERS[SYLLABLES.index(task.prompt.split()[0]) % 4]


def walk(source, task):
    """Return the doors that the expert opens."""
    house, doors, messages = House(task.id), [], []
    room = house.start
    while room != house.coin and len(doors) < 2 * TURNS:
        messages.append(source.demonstrate(task, messages, ()))
        doors.append(json.loads(messages[-1].tool_calls[0].arguments)["direction"])
        room = house.doors(room)[doors[-1]]
    return doors


def test_experts_of_many_paths_detour_within_the_limit_and_experts_of_one_path_take_the_shortest():
    tasks = [Traces().task(index) for index in range(60)]
    one, many = ([walk(Traces(ways=ways), task) for task in tasks] for ways in ("one", "many"))
    shortest = [len(task_house.path(task_house.start)) for task_house in (House(task.id) for task in tasks)]
    assert list(map(len, one)) == shortest
    assert all(least <= len(way) <= TURNS for least, way in zip(shortest, many, strict=True))
    assert sum(len(way) > least for least, way in zip(shortest, many, strict=True)) > 10
    # equally short and different: the choices have another order
    assert any(len(a) == len(b) and a != b for a, b in zip(one, many, strict=True))


def call(expression):
    return assistant("", ToolCall("pocket_calculator", json.dumps({"expression": expression})))


def calculate(source, task):
    """Play the expert; return for each call whether it failed, and the answer."""
    messages = [user(task.prompt)]
    while len(messages) < 40:
        turn = source.demonstrate(task, messages, TOOLS)
        if not turn.tool_calls:
            break
        try:
            result = pocket_calculator(**json.loads(turn.tool_calls[0].arguments))
        except ToolError as error:
            result = f"{FAILED}: {error}"
        messages += [turn, tool_result(result)]
    return [m.text.startswith(FAILED) for m in messages if m.role == "tool"], turn.text


def test_hasty_calls_fail_once_before_a_right_call_and_cost_no_success():
    source = HastyExpert(hasty=0.4)
    plays = [(task, *calculate(source, task)) for task in map(source.task, range(300))]
    assert all(answer == task.private["answer"] for task, _, answer in plays)
    assert not any(first and second for _, failed, _ in plays for first, second in pairwise(failed))
    shares = [failed.count(True) / failed.count(False) for _, failed, _ in plays]
    assert 0.35 < sum(shares) / len(shares) < 0.45


@pytest.mark.parametrize(
    ("turn", "value"),
    [
        ("12+34", 1.0),
        ("12*34", 0.0),
        ("2+34", 0.0),
        ("12+34*56", 0.0),
    ],
)
def test_verifier_of_turns_knows_the_operations_of_the_task_but_not_its_answer(turn, value):
    task = Task("t", "Compute (12+34)*56", {}, {})
    first = path("p", turns=[replace(turn_of(""), message=call(turn))])
    assert asyncio.run(consistent_turn(first, task)).value == value


def test_verifier_of_turns_accepts_calls_on_results_and_the_last_result_as_answer():
    task = Task("t", "Compute (12+34)*56", {}, {})
    first = replace(turn_of(""), message=call("12+34"), observation=(tool_result("46"),))
    for message, value in ((call("46*56"), 1.0), (call("46-56"), 0.0), (assistant("46"), 1.0), (assistant("4"), 0.0)):
        played = path("p", turns=[first, replace(turn_of(""), message=message)])
        assert asyncio.run(consistent_turn(played, task)).value == value


def test_stated_confidence_is_read_and_is_not_taken_for_the_answer():
    source = ConfidentExpert()
    task = source.task(0)
    results = [tool_result(task.private["answer"])] * len(task.private["steps"])
    text = source.demonstrate(task, results, TOOLS).text
    played = path("p", turns=[turn_of(text)])
    assert 0.1 <= stated_confidence(played) <= 0.9
    assert asyncio.run(exact_number(played, task)).success
