"""Published benchmarks as tasks: HumanEval, and calls in the format of the Berkeley Function-Calling Leaderboard."""

import asyncio
import json
from pathlib import Path

import pytest

from support.rewards import episode, score
from support.sandbox import needs_isolation
from whetstone.assembly import build_scoring_components
from whetstone.chat import ToolCall, assistant
from whetstone.environments.function_calls import FunctionCallEnvironment, function_spec
from whetstone.errors import TaskError
from whetstone.evaluation.audit import Audit
from whetstone.evaluation.environment_checks.play_episode import play_with_policy
from whetstone.recipe import load_recipe
from whetstone.tasks import FunctionCalls, HumanEval

BFCL = Path(__file__).parents[3] / "shared" / "data" / "bfcl"
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


def written(folder, more=(), answers=()):
    questions = [
        {"id": "simple_0", "question": [[{"role": "user", "content": "Paris?"}]], "function": [WEATHER]},
        {"id": "irrelevance_0", "question": [[{"role": "user", "content": "A poem."}]], "function": [WEATHER]},
        *more,
    ]
    truths = [
        {"id": "simple_0", "ground_truth": [{"weather.now": {"city": ["Paris", "paris"], "days": [1, ""]}}]},
        *answers,
    ]
    for name, rows in (("questions", questions), ("answers", truths)):
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(folder / "questions.json"), "answers": str(folder / "answers.json")}


@pytest.fixture
def files(tmp_path):
    return written(tmp_path)


def test_function_names_are_valid_for_models():
    spec = function_spec(WEATHER)
    assert spec.name == "weather_now"
    assert spec.parameters["properties"]["at"] == {"type": "array", "items": {"type": "number"}}
    assert spec.parameters["type"] == "object"


def test_requests_are_sent_once_and_scored_by_their_calls(files):
    source = FunctionCalls(**files)
    tasks = source.held_out(10)
    assert [task.tags["kind"] for task in tasks] == ["simple", "irrelevance"]
    for task in tasks:
        expert = lambda conversation, tools, admissible, task=task: source.demonstrate(task, conversation, tools)  # noqa: E731
        played = asyncio.run(play_with_policy(FunctionCallEnvironment, task, expert, seed=1))
        assert len(played.trajectory.turns) == 1
        assert score("bfcl", played.trajectory, task).success
        other = source.demonstrate(tasks[1 - tasks.index(task)], (), ())
        wrong = asyncio.run(play_with_policy(FunctionCallEnvironment, task, lambda *_, other=other: other, seed=1))
        assert not score("bfcl", wrong.trajectory, task).success


def row(id, function, *messages):
    conversation = [{"role": role, "content": content} for role, content in messages or [("user", "?")]]
    return {"id": id, "question": [conversation], "function": [function]}


SPEAKERS = [("system", "You are brief."), ("user", "Hello"), ("user", "you"), ("assistant", "Yes?"), ("user", "Rome?")]


def test_earlier_messages_keep_their_roles(tmp_path):
    answers = [{"id": "live_simple_1", "ground_truth": [{"weather.now": {"city": ["Rome"]}}]}]
    task = FunctionCalls(**written(tmp_path, [row("live_simple_1", WEATHER, *SPEAKERS)], answers)).held_out(3)[2]
    opening = asyncio.run(
        play_with_policy(FunctionCallEnvironment, task, lambda *_: assistant("no"), seed=1)
    ).trajectory.opening
    assert [(message.role, message.text) for message in opening] == [
        ("system", "You are brief."),
        ("user", "Hello\nyou"),
        ("assistant", "Yes?"),
        ("user", "Rome?"),
    ]


def test_questions_without_an_answer_are_scored_by_their_category(tmp_path):
    relevant = row("live_relevance_3-3-0", WEATHER)
    source = FunctionCalls(**written(tmp_path, [relevant]))
    task = source.held_out(3)[2]
    calls = {name: assistant("", ToolCall(name, '{"city": "Bonn"}')) for name in ("weather_now", "wether")}
    for message, fine in ((assistant("No."), False), (calls["weather_now"], True), (calls["wether"], False)):
        played = asyncio.run(
            play_with_policy(FunctionCallEnvironment, task, lambda *_, message=message: message, seed=1)
        ).trajectory
        assert score("bfcl", played, task).success is fine
    with pytest.raises(TaskError, match="there is no expert answer"):
        source.demonstrate(task, (), ())
    with pytest.raises(TaskError, match=r"questions.json:3  simple_7: the file of possible answers has no line for it"):
        FunctionCalls(**written(tmp_path, [row("simple_7", WEATHER)]))
    with pytest.raises(TaskError, match="the role of a message must be system, user or assistant, got tool"):
        FunctionCalls(**written(tmp_path, [row("irrelevance_7", WEATHER, ("tool", "x"))]))


ORDER = {
    "name": "order",
    "parameters": {
        "type": "dict",
        "properties": {
            "items": {"type": "array", "items": {"type": "dict"}},
            "place": {"type": "dict"},
            "port": {"type": "integer"},
            "from": {"type": "string"},
            "since": {"type": "string"},
            "meta": {"type": "HashMap"},
            "sort": {"type": "string"},
        },
        "required": ["items", "port", "from"],
    },
}
ACCEPTED = {
    "items": [[{"item": ["tea"], "count": [2]}, {"item": ["rice"], "count": [1, ""]}]],
    "place": [{"position": [{"x": 10.5, "y": 50}], "angle": [30]}],
    "port": ["", 5432],
    "from": [""],
    "since": [None],
    "meta": [{"format": ["epoch"]}],
    "sort": ["", "up"],
}


def test_expert_writes_accepted_arguments_of_any_shape(tmp_path):
    answers = [{"id": "live_simple_1", "ground_truth": [{"order": ACCEPTED}]}]
    source = FunctionCalls(**written(tmp_path, [row("live_simple_1", ORDER)], answers))
    task = source.held_out(3)[2]
    demonstration = source.demonstrate(task, (), ())
    assert json.loads(demonstration.tool_calls[0].arguments) == {
        "items": [{"item": "tea", "count": 2}, {"item": "rice"}],
        "place": {"position": {"x": 10.5, "y": 50}, "angle": 30},
        "port": 5432,
        "from": "",
        "since": None,
        "meta": {"format": "epoch"},
    }
    assert score(
        "bfcl",
        asyncio.run(play_with_policy(FunctionCallEnvironment, task, lambda *_: demonstration, seed=1)).trajectory,
        task,
    ).success


def test_types_that_json_schema_lacks_are_translated():
    kinds = {"HashMap": "object", "ArrayList": "array", "long": "integer", "char": "string", "Boolean": "boolean"}
    properties = {name: {"type": name} for name in (*kinds, "", "Widget")}
    schemas = function_spec({"name": "f", "parameters": {"type": "dict", "properties": properties}}).parameters[
        "properties"
    ]
    assert {name: schemas[name].get("type") for name in kinds} == kinds
    assert schemas[""] == schemas["Widget"] == {}


@pytest.mark.parametrize(
    ("arguments", "outcome"), [("{}", "ok"), ("[[[", "invalid_arguments"), ("", "invalid_arguments")]
)
def test_malformed_call_is_recorded(files, arguments, outcome):
    task = FunctionCalls(**files).held_out(1)[0]
    message = assistant("", ToolCall("weather_now", arguments))
    played = asyncio.run(play_with_policy(FunctionCallEnvironment, task, lambda *_: message, seed=1)).trajectory
    assert played.turns[0].calls[0].outcome == outcome


@pytest.mark.skipif(
    not BFCL.is_dir(),
    reason=f"the leaderboard's files are missing: put BFCL_v4_*.json and possible_answer/ into {BFCL}",
)
def test_expert_solves_all_solvable_tasks_of_the_leaderboard():
    unsolved = []
    for path in sorted(BFCL.glob("BFCL_v4_*.json")):
        answers = BFCL / "possible_answer" / path.name
        source = FunctionCalls(path=str(path), answers=str(answers) if answers.is_file() else None)
        for task in source.held_out(10_000):
            if task.private["possible_answer"] is None:
                continue
            demonstration = source.demonstrate(task, (), ())
            played = asyncio.run(
                play_with_policy(
                    FunctionCallEnvironment, task, lambda *_, demonstration=demonstration: demonstration, seed=1
                )
            ).trajectory
            if not score("bfcl", played, task).success:
                unsolved.append(task.id)
    contradictory = {
        "live_multiple_862-181-3",
        "live_multiple_964-207-0",
        "live_simple_106-63-0",
        "live_simple_112-68-0",
    }
    assert set(unsolved) <= contradictory


def test_recipe_with_them_passes_the_checks(tmp_path):
    answers = [{"id": "live_simple_1", "ground_truth": [{"weather.now": {"city": ["Rome"]}}]}]
    files = written(tmp_path, [row("live_simple_1", WEATHER, *SPEAKERS)], answers)
    overrides = [
        f"tasks={{source: function_calls, path: {files['path']}, answers: {files['answers']}}}",
        "environment={name: function_calls}",
        "reward=bfcl",
        "supervised=null",
    ]
    source, make, reward = build_scoring_components(load_recipe("demo", [*overrides, "ablations=null"]))

    async def main():
        return [check async for check in Audit(make, source, reward, tasks=3).run_checks()]

    assert [check for check in asyncio.run(main()) if check.verdict.value == "fail"] == []


def test_invalid_files_are_named(tmp_path, files):
    with pytest.raises(TaskError, match="no such file; set answers to the file of possible answers"):
        FunctionCalls(path=files["path"], answers=str(tmp_path / "none.json"))
    (tmp_path / "answers.json").write_text('{"id": "x"}\n')
    with pytest.raises(TaskError, match=r"answers.json:1  KeyError"):
        FunctionCalls(**files)
    with pytest.raises(TaskError, match="no such task file"):
        HumanEval(path=str(tmp_path / "x.jsonl"))
    (tmp_path / "h.jsonl").write_text('{"task_id": "a"}\n')
    with pytest.raises(TaskError, match=r"h.jsonl:1  the key 'entry_point' is missing"):
        HumanEval(path=str(tmp_path / "h.jsonl"))


def test_humaneval_asks_for_tests_and_its_expert_answers_with_the_published_ones(tmp_path):
    row = {
        "task_id": "a",
        "entry_point": "double",
        "prompt": "def double(x):\n",
        "canonical_solution": "    return x * 2\n",
        "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(0) == 0\n",
    }
    (tmp_path / "h.jsonl").write_text(json.dumps(row))
    source = HumanEval(path=str(tmp_path / "h.jsonl"), ask_for="tests")
    (task,) = source.held_out(1)
    assert "calls `double` and does not define it" in task.prompt
    answer = source.demonstrate(task, [], []).text
    assert "def test_double():\n    candidate = double\n    assert candidate(3) == 6" in answer


@needs_isolation
@pytest.mark.slow
@pytest.mark.skipif(not HUMANEVAL.is_dir(), reason=f"HumanEval is missing: put HumanEval.jsonl into {HUMANEVAL}")
def test_published_tests_of_humaneval_earn_the_whole_reward():
    source = HumanEval(path=str(HUMANEVAL), ask_for="tests")
    tasks = source.held_out(1000)[:40]
    scores = [
        score("written_tests", episode(source.demonstrate(task, [], []).text), task, max_mutants=3) for task in tasks
    ]
    assert [task.id for task, each in zip(tasks, scores, strict=True) if not each.success] == []


@needs_isolation
@pytest.mark.slow
@pytest.mark.skipif(not HUMANEVAL.is_dir(), reason=f"HumanEval is missing: put HumanEval.jsonl into {HUMANEVAL}")
def test_humaneval():
    source = HumanEval(path=str(HUMANEVAL))
    tasks = source.held_out(1000)
    assert len(tasks) == 164
    assert "def has_close_elements" in tasks[0].prompt
    assert "check(" not in tasks[0].prompt
    smaller = HumanEval(path=str(HUMANEVAL), held_out_fraction=0.25)
    training_ids = {smaller.task(k).id for k in range(164)}
    assert not training_ids & {task.id for task in smaller.held_out(164)}
    overrides = [
        f"tasks={{source: humaneval, path: {HUMANEVAL}}}",
        "environment={tools: []}",
        "reward=unit_tests",
        "supervised=null",
        "ablations=null",
    ]
    source, make, reward = build_scoring_components(load_recipe("demo", overrides))

    async def main():
        return {
            check.name: check.said
            async for check in Audit(make, source, reward, tasks=3).run_checks()
            if check.verdict.value == "fail"
        }

    assert asyncio.run(main()) == {}
