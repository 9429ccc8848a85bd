import asyncio
import functools
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.slow import examples
from whetstone.chat import tool_result
from whetstone.errors import RecipeError
from whetstone.tasks import Arithmetic
from whetstone.tasks.arithmetic import KINDS
from whetstone.tools import Toolset, pocket_calculator


@functools.cache
def held_out_of_one_digit():
    return {task.id for task in Arithmetic(digits=1).held_out(300)}


@examples(20)
@given(st.integers(0, 2**31), st.integers(0, 10**6))
def test_no_training_task_is_held_out_whatever_the_seed(seed, index):
    assert Arithmetic(seed=seed, digits=1).task(index).id not in held_out_of_one_digit()


def test_same_index_is_the_same_task_and_another_seed_gives_others():
    assert Arithmetic(seed=1).task(5) == Arithmetic(seed=1).task(5)
    assert Arithmetic(seed=1).task(5) != Arithmetic(seed=2).task(5)


def test_held_out_tasks_are_distinct_and_cover_all_kinds():
    tasks = Arithmetic(seed=3).held_out(500)
    assert len({task.id for task in tasks}) == 500
    kinds = [task.tags["kind"] for task in tasks]
    assert all(abs(kinds.count(kind) - 500 / len(KINDS)) <= 1 for kind in KINDS)
    assert tasks == Arithmetic(seed=4).held_out(500)


@pytest.mark.parametrize("kind", KINDS)
def test_single_operations_compute_the_value_of_the_expression(kind):
    source = Arithmetic(kinds={kind: 1})
    toolset = Toolset([pocket_calculator])
    for index in range(20):
        task = source.task(index)
        conversation = []
        for _ in task.private["steps"]:
            message = source.demonstrate(task, conversation, toolset.specs)
            answer = asyncio.run(toolset.call(message.tool_calls[0]))
            conversation += [message, tool_result(answer.text)]
        assert source.demonstrate(task, conversation, toolset.specs).text == task.private["answer"]
        assert int(task.private["answer"]) == eval(task.prompt.removeprefix("Compute "))
        assert task.tags == {"kind": kind, "difficulty": str(len(task.private["steps"]))}


@pytest.mark.parametrize("recheck", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cautious_expert_repeats_calls_and_answers_with_the_last_result(kind, recheck):
    source, plain = Arithmetic(kinds={kind: 1}, recheck=recheck), Arithmetic(kinds={kind: 1})
    toolset = Toolset([pocket_calculator])
    repeated = 0
    for index in range(20):
        task, conversation, calls = source.task(index), [], []
        while (message := source.demonstrate(task, conversation, toolset.specs)).tool_calls:
            calls.append(message.tool_calls[0].arguments)
            conversation += [message, tool_result(asyncio.run(toolset.call(message.tool_calls[0])).text)]
        expected = [json.dumps(call["arguments"]) for call in plain.task(index).private["calls"]]
        assert [call for call, _ in itertools.groupby(calls)] == [call for call, _ in itertools.groupby(expected)]
        assert message.text == task.private["answer"]
        assert len(calls) + 1 == task.private["expert_turns"]
        repeated += len(calls) - len(expected)
    steps = 20 * len(expected)
    assert repeated == {0.0: 0, 1.0: steps}.get(recheck, repeated)
    assert recheck != 0.5 or 0 < repeated < steps


def test_an_expert_with_an_error_rate_is_right_as_often_as_all_of_its_turns_are():
    source, toolset = Arithmetic(digits=2, error_rate=0.25), Toolset([pocket_calculator])
    right: dict[int, list[bool]] = {}
    for index in range(900):
        task, conversation = source.task(index), []
        while (message := source.demonstrate(task, conversation, toolset.specs)).tool_calls:
            conversation += [message, tool_result(asyncio.run(toolset.call(message.tool_calls[0])).text)]
        right.setdefault(len(task.private["steps"]), []).append(message.text == task.private["answer"])
    for operations, solved in right.items():
        assert abs(sum(solved) / len(solved) - 0.75 ** (operations + 1)) < 0.08, operations


def test_every_kind_needs_a_product_of_all_digits():
    for kind in KINDS:
        assert all("*" in Arithmetic(kinds={kind: 1}).task(i).prompt for i in range(10))


def test_expert_answers_immediately_without_a_tool():
    source = Arithmetic()
    task = source.task(0)
    assert source.demonstrate(task, [], []).text == task.private["answer"]


def test_weights_are_the_frequencies_of_kinds():
    source = Arithmetic(kinds={"product": 1, "sum_of_products": 3})
    kinds = [source.task(index).tags["kind"] for index in range(800)]
    assert 0.19 < kinds.count("product") / 800 < 0.31
    assert set(kinds) == {"product", "sum_of_products"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": {"products": 1}}, 'no kind of arithmetic named "products"; did you mean "product"'),
        ({"kinds": {"product": -1}}, "zero or more"),
        ({"kinds": {"product": 0}}, "every weight is zero"),
        ({"digits": 9}, "1 to 6"),
        ({"recheck": 1.5}, "recheck: must be a probability from 0 to 1"),
        ({"error_rate": -0.1}, "error_rate: must be a probability from 0 to 1"),
    ],
)
def test_invalid_options_are_one_line(options, message):
    with pytest.raises(RecipeError, match=message):
        Arithmetic(**options)
