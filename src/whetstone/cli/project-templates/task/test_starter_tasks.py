"""Tests that tasks are correct, reproducible and held out."""

import json

from starter_tasks import Receipts

from whetstone.chat import tool_result, user
from whetstone.tools import calculator, tool_from_function

TASKS = Receipts()


def test_a_number_is_always_the_same_task() -> None:
    assert [TASKS.task(index) for index in range(20)] == [Receipts().task(index) for index in range(20)]


def test_no_held_out_task_is_trained() -> None:
    held_out = {task.id for task in TASKS.held_out(50)}
    assert len(held_out) == 50
    assert held_out.isdisjoint(TASKS.task(index).id for index in range(500))


def test_the_model_is_not_told_the_answer() -> None:
    assert not any(task.private["answer"] in task.prompt.split() for task in TASKS.held_out(20))


def test_what_the_expert_does_comes_to_the_answer() -> None:
    tool = tool_from_function(calculator)
    for task in TASKS.held_out(20):
        (call,) = TASKS.demonstrate(task, [user(task.prompt)], [tool.spec]).tool_calls
        result = calculator(**json.loads(call.arguments))
        answer = TASKS.demonstrate(task, [user(task.prompt), tool_result(result)], [tool.spec])
        assert answer.text == task.private["answer"]
