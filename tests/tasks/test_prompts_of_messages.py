"""A prompt can be a list of messages: in `Task(...)`, in rows of files, and in datasets of verl."""

import asyncio
import json

import pytest

from whetstone.chat import system, user
from whetstone.environments import ToolEnvironment
from whetstone.environments.remote.serialization import task_from_wire, task_to_wire
from whetstone.errors import TaskError
from whetstone.tasks import SOURCES
from whetstone.trajectory import Task
from whetstone.trajectory_json import decode_task, encode_task

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Compute 2 + 3"}]


def opened(task, **options):
    return asyncio.run(ToolEnvironment(**options).reset(task, seed=0)).messages


def test_task_with_messages_opens_the_episode_with_them():
    task = Task("a", MESSAGES, {"answer": "5"})
    assert (task.prompt, task.messages) == ("Compute 2 + 3", (system("Be short."), user("Compute 2 + 3")))
    assert opened(task) == task.messages
    assert opened(task, instruction="First.") == (system("First."), *task.messages)
    assert opened(Task("b", "Compute 2 + 3")) == (user("Compute 2 + 3"),)


@pytest.mark.parametrize("task", [Task("a", MESSAGES), Task("b", "text")])
def test_task_with_messages_survives_json_and_the_wire(task):
    assert decode_task(json.loads(json.dumps(encode_task(task)))) == task
    assert task_from_wire(json.loads(json.dumps(task_to_wire(task)))) == task


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "must end with a user message"),
        ([*MESSAGES, {"role": "assistant", "content": "5"}], "must end with a user message"),
        ([{"role": "robot", "content": "x"}], "a message must be an object with a role of"),
        (3, "the prompt of a task must be a text or a list of messages, got int"),
    ],
)
def test_prompt_that_is_neither_is_refused(prompt, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Task("a", prompt)


def source(folder, name, rows, **options):
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return SOURCES[name](path=str(path), **options)


def test_rows_of_jsonl_and_columns_take_messages(tmp_path):
    rows = [{"prompt": [MESSAGES[0], {"role": "user", "content": f"Compute {n} + 3"}], "answer": n} for n in range(6)]
    result = source(tmp_path, "jsonl", rows)
    assert opened(result.held_out(1)[0])[0] == system("Be short.")
    by_columns = source(tmp_path, "file", rows, columns={"prompt": "prompt", "answer": "answer"})
    assert opened(by_columns.task(0))[0] == system("Be short.")


def test_same_question_in_another_conversation_is_another_text(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": name}, *MESSAGES[1:]], "answer": name} for name in ("a", "b")]
    result = source(tmp_path, "jsonl", rows)
    assert {result.task(0).private["answer"], result.held_out(1)[0].private["answer"]} == {"a", "b"}


def test_bad_messages_are_reported_with_their_line(tmp_path):
    rows = [{"prompt": "text", "answer": 1}, {"prompt": [{"role": "robot", "content": "x"}], "answer": 1}]
    with pytest.raises(TaskError, match=r"rows\.jsonl:2  a message must be an object with a role of"):
        source(tmp_path, "jsonl", rows)


def verl_rows(count):
    """Rows in the layout that verl writes for GSM8K."""
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"Compute {n} + 1"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
            "extra_info": {"split": "train", "index": n, "question": f"Compute {n} + 1"},
        }
        for n in range(count)
    ]


def test_parquet_of_verl_is_read_as_tasks(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, first, last in (("train", 0, 6), ("test", 6, 9)):
        parquet.write_table(pyarrow.Table.from_pylist(verl_rows(9)[first:last]), tmp_path / f"{name}.parquet")
    result = SOURCES["file"](
        path=str(tmp_path / "train.parquet"), held_out=str(tmp_path / "test.parquet"), format="verl"
    )
    task = result.held_out(1)[0]
    assert opened(task) == (user("Compute 6 + 1"),)
    assert (task.private["answer"], task.private["data_source"]) == ("7", "openai/gsm8k")
    assert (task.private["extra_info"]["index"], task.tags) == (6, {"kind": "openai/gsm8k"})
    # the same file by its columns, one of which is inside another
    columns = {"prompt": "prompt", "answer": "reward_model.ground_truth", "private": ["extra_info.index"]}
    by_columns = SOURCES["file"](path=str(tmp_path / "train.parquet"), columns=columns, held_out_fraction=1.0)
    assert {task.private["answer"] for task in by_columns.held_out(9)} == {str(n) for n in range(1, 7)}


def test_row_of_verl_without_ground_truth_is_reported(tmp_path):
    rows = verl_rows(3)
    rows[1]["reward_model"] = {"style": "model"}
    with pytest.raises(TaskError, match=r"rows\.jsonl:2  `reward_model\.ground_truth` has no value"):
        source(tmp_path, "file", rows, format="verl")
