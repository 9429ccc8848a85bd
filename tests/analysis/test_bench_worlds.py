"""The small worlds of benches are what their claims need: what can be right there, and what cannot."""

import asyncio
import json
from dataclasses import replace

from again import Doors, TriedAgainAtTheEnd
from choosing import LETTERS, POOL, SYLLABLES, Words
from cold_start import TURNS, Traces
from dense import nearer
from masked import MASK, Masked
from ranker import Library, Pages
from self_search import search
from tests_episodes import path, turn
from text_game import House
from whetstone.chat import ToolCall, assistant, user
from whetstone.environments import Observation, StepResult
from whetstone.trajectory import EndReason, Task


class Once:
    """A world that any answer ends."""

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


def test_held_out_doors_are_tried_again_and_those_of_training_are_not():
    doors = Doors()
    assert ended(doors.task(0))
    assert not ended(doors.held_out(1)[0])


def test_one_letter_behind_a_door_is_likely_and_none_is_certain():
    behind = {}
    for index in range(600):
        task = Doors().task(index)
        behind.setdefault(task.prompt, []).append(task.private["answer"])
    for letters in behind.values():
        most = max(letters.count(letter) for letter in set(letters)) / len(letters)
        assert 0.35 < most < 0.8  # 0.55 of some 60


def walked(*said, fixed=None, number=0):
    """Whether who said this in turn was right, and what was read last."""

    async def played():
        library, task = Library(fixed=fixed), Pages().held_out(number + 1)[number]
        seen = await library.reset(task, seed=0)
        for each in said:
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


def test_a_right_query_a_right_page_and_its_name_are_a_success():
    assert all(walked(asks, ranks, reads, number=number) for number in range(5))
    assert all(walked(asks, reads, fixed=1.0, number=number) for number in range(5))
    assert not all(walked(lambda seen, task: "nothing", reads, fixed=1.0, number=number) for number in range(20))


def test_masked_spans_ask_for_as_many_relations_as_names_are_masked():
    for index in range(20):
        task = Masked().task(index)
        assert task.prompt.split().count(MASK) == len(task.private["order"]) == int(task.tags["kind"])
    assert MASK not in Masked().held_out(1)[0].prompt


def test_a_search_that_is_no_relation_finds_nothing():
    assert search("boss") == "nothing"
    assert search("boss of ann") == "nothing"
    assert search("boss ann") != "nothing"


def test_words_come_again_and_those_held_out_follow_the_rule():
    words = Words(seed=3)
    assert words.task(5) == words.task(5 + POOL)
    wrong_ones = sum(words.task(index).tags["kind"] == "wrong" for index in range(POOL))
    assert 0 < wrong_ones < POOL / 2
    for task in words.held_out(20):
        assert task.private["answer"] == LETTERS[SYLLABLES.index(task.prompt.split()[0]) % 4]


def test_a_door_nearer_to_the_coin_pays_a_tenth_and_one_farther_off_costs_it():
    house = House("house/10")
    there = house.path(house.start)[0]
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[there]
    calls = [assistant("", ToolCall("go", json.dumps({"direction": way}))) for way in (there, back, there)]
    trajectory = path("p", turns=[replace(turn(), message=call) for call in calls], ended=EndReason.MAX_TURNS)
    score = asyncio.run(nearer(trajectory, Task("house/10", "", {}, {})))
    assert [round(each, 3) for each in score.turns] == [0.1, -0.1, 0.1]
    assert round(score.value, 3) == 0.1


def walk(source, task):
    """The doors its expert goes through."""
    house, doors, said = House(task.id), [], []
    room = house.start
    while room != house.coin and len(doors) < 2 * TURNS:
        said.append(source.demonstrate(task, said, ()))
        doors.append(json.loads(said[-1].tool_calls[0].arguments)["direction"])
        room = house.doors(room)[doors[-1]]
    return doors


def test_experts_of_many_ways_stray_and_come_to_the_coin_in_time_and_those_of_one_take_the_shortest():
    tasks = [Traces().task(index) for index in range(60)]
    one, many = ([walk(Traces(ways=ways), task) for task in tasks] for ways in ("one", "many"))
    shortest = [len(task_house.path(task_house.start)) for task_house in (House(task.id) for task in tasks)]
    assert list(map(len, one)) == shortest
    assert all(least <= len(way) <= TURNS for least, way in zip(shortest, many, strict=True))
    assert sum(len(way) > least for least, way in zip(shortest, many, strict=True)) > 10
    # as short and another one: a choice made in another order
    assert any(len(a) == len(b) and a != b for a, b in zip(one, many, strict=True))
