"""Tests of the environment, of the expert and of the held-out tasks."""

from starter_environment import Corridor, Corridors

from whetstone import Task

TASK = Task("corridor", "", {"start": 2, "door": 4})


def test_two_steps_lead_to_the_door() -> None:
    world = Corridor()
    assert world.begin(TASK, seed=0).text == "you 2 door 4"
    assert world.act("right").text == "you 3 door 4"
    assert world.act("right").terminated
    assert world.verdict() == {"success": True, "score": 1.0}


def test_who_says_nothing_of_use_stays_is_told_and_runs_out_of_steps() -> None:
    world = Corridor()
    world.begin(TASK, seed=0)
    seen = [world.act("hello") for _ in range(10)]
    assert seen[0].text == "say left or right; you 2 door 4"
    assert [each.truncated for each in seen] == [False] * 9 + [True]
    assert world.verdict()["score"] == 0.0


def test_the_expert_gets_there() -> None:
    tasks = Corridors()
    for task in [tasks.task(index) for index in range(20)]:
        world = Corridor()
        world.begin(task, seed=0)
        while not world.act(tasks.demonstrate(task, [], []).text).terminated:
            assert world.steps < 10


def test_no_held_out_task_is_trained() -> None:
    tasks = Corridors()
    held_out = {task.id for task in tasks.held_out(5)}
    assert len(held_out) == 5
    assert held_out.isdisjoint(tasks.task(index).id for index in range(200))
