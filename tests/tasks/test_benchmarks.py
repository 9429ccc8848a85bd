"""The field's benchmarks as tasks: HumanEval, and calls as the function-calling leaderboard writes them."""

import asyncio
import json
from pathlib import Path

import pytest

from tests_rewards import score
from whetstone import training
from whetstone.environments.function_calls import FunctionCalls as World
from whetstone.environments.function_calls import offered
from whetstone.errors import TaskError
from whetstone.evaluation.audit import Audit
from whetstone.evaluation.contract.playing import play
from whetstone.recipe import load_recipe
from whetstone.tasks import FunctionCalls, HumanEval

HUMANEVAL = Path(__file__).parents[3] / "shared" / "data" / "humaneval"
WEATHER = {
    "name": "weather.now",
    "description": "The weather.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "at": {"type": "tuple", "items": {"type": "float"}},
        },
        "required": ["city"],
    },
}


@pytest.fixture
def files(tmp_path):
    questions = [
        {"id": "simple_0", "question": [[{"role": "user", "content": "Paris?"}]], "function": [WEATHER]},
        {"id": "irrelevance_0", "question": [[{"role": "user", "content": "A poem."}]], "function": [WEATHER]},
    ]
    truths = [{"id": "simple_0", "ground_truth": [{"weather.now": {"city": ["Paris", "paris"], "days": [1, ""]}}]}]
    for name, rows in (("questions", questions), ("answers", truths)):
        (tmp_path / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(tmp_path / "questions.json"), "answers": str(tmp_path / "answers.json")}


def test_functions_are_offered_as_models_know_them():
    spec = offered(WEATHER)
    assert spec.name == "weather_now"
    assert spec.parameters["properties"]["at"] == {"type": "array", "items": {"type": "number"}}
    assert spec.parameters["type"] == "object"


def test_requests_are_asked_once_and_judged_by_what_was_called(files):
    source = FunctionCalls(**files)
    tasks = source.held_out(10)
    assert [task.tags["kind"] for task in tasks] == ["simple", "irrelevance"]
    for task in tasks:
        expert = lambda conversation, tools, admissible, task=task: source.demonstrate(task, conversation, tools)  # noqa: E731
        found = asyncio.run(play(World, task, expert, seed=1))
        assert len(found.trajectory.turns) == 1
        assert score("bfcl", found.trajectory, task).success
        other = source.demonstrate(tasks[1 - tasks.index(task)], (), ())
        wrong = asyncio.run(play(World, task, lambda *_, other=other: other, seed=1))
        assert not score("bfcl", wrong.trajectory, task).success


def test_a_recipe_with_them_is_sound(files):
    given = [
        f"tasks={{source: function_calls, path: {files['path']}, answers: {files['answers']}}}",
        "environment={name: function_calls}",
        "reward=bfcl",
        "supervised=null",
    ]
    source, make, reward = training.judged_parts(load_recipe("demo", [*given, "ablations=null"]))

    async def main():
        return {check.name: check.verdict.value async for check in Audit(make, source, reward, tasks=2).checks()}

    assert "bad" not in asyncio.run(main()).values()


def test_bad_files_are_named(tmp_path, files):
    with pytest.raises(TaskError, match="no such file of possible answers"):
        FunctionCalls(path=files["path"], answers=str(tmp_path / "none.json"))
    (tmp_path / "answers.json").write_text('{"id": "x"}\n')
    with pytest.raises(TaskError, match=r"answers.json:1  KeyError"):
        FunctionCalls(**files)
    with pytest.raises(TaskError, match="no such task file"):
        HumanEval(path=str(tmp_path / "x.jsonl"))
    (tmp_path / "h.jsonl").write_text('{"task_id": "a"}\n')
    with pytest.raises(TaskError, match=r"h.jsonl:1  the key 'entry_point' is missing"):
        HumanEval(path=str(tmp_path / "h.jsonl"))


@pytest.mark.skipif(not HUMANEVAL.is_dir(), reason="HumanEval is not beside the project (shared/data/humaneval)")
def test_humaneval():
    source = HumanEval(path=str(HUMANEVAL))
    tasks = source.held_out(1000)
    assert len(tasks) == 164
    assert "def has_close_elements" in tasks[0].prompt
    assert "check(" not in tasks[0].prompt
    smaller = HumanEval(path=str(HUMANEVAL), held_out_share=0.25)
    training_ids = {smaller.task(k).id for k in range(164)}
    assert not training_ids & {task.id for task in smaller.held_out(164)}
    given = [
        f"tasks={{source: humaneval, path: {HUMANEVAL}}}",
        "environment={tools: []}",
        "reward=unit_tests",
        "supervised=null",
        "ablations=null",
    ]
    source, make, reward = training.judged_parts(load_recipe("demo", given))

    async def main():
        return {
            check.name: check.said
            async for check in Audit(make, source, reward, tasks=3).checks()
            if check.verdict.value == "bad"
        }

    assert asyncio.run(main()) == {}
