import json

import pytest

from whetstone.chat import ToolSpec, tool_result
from whetstone.errors import TaskError, ToolError
from whetstone.rewards import last_number
from whetstone.tasks import GSM8K
from whetstone.tools import calculator

TOOL = ToolSpec("calculator", "", {"type": "object", "properties": {"expression": {"type": "string"}}})
ROW = {"question": "How many?", "answer": "Half is 48/2 = <<48/2=24>>24.\nBoth: <<1,000 + 24=1024>>1,024.\n#### 1,024"}


def folder_with(tmp_path, train, test):
    for name, rows in (("train", train), ("test", test)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return str(tmp_path)


def test_calculator_marks_are_calls_and_the_last_line_is_the_answer(tmp_path):
    source = GSM8K(path=folder_with(tmp_path, [ROW], [ROW]))
    task = source.task(0)
    assert task.private == {"answer": "1024", "calls": ("48/2", "1000 + 24")}
    messages = []
    for result in ("24", "1024"):
        messages.append(source.demonstrate(task, [tool_result("x")] * len(messages), [TOOL]).tool_calls[0].arguments)
        assert calculator(json.loads(messages[-1])["expression"]) == result
    assert source.demonstrate(task, [tool_result("x")] * 2, [TOOL]).text == "1024"
    assert source.demonstrate(task, [], []).text == "1024"


def test_invalid_line_is_named_or_skipped_and_counted(tmp_path):
    folder = folder_with(tmp_path, [ROW, {"question": "?", "answer": "none"}], [ROW, "{"])
    with pytest.raises(TaskError, match=r"train\.jsonl:2  the solution does not end with"):
        GSM8K(path=folder)
    assert GSM8K(path=folder, on_bad_row="skip").skipped == 2


def test_missing_folder_names_the_expected_files(tmp_path):
    with pytest.raises(TaskError, match=r"no such folder; set path to a folder with train\.jsonl and test\.jsonl"):
        GSM8K(path=str(tmp_path / "none"))


def test_published_files_are_complete_and_nearly_all_marks_hold(gsm8k_folder):
    source = GSM8K(path=str(gsm8k_folder))
    tasks = [source.task(i) for i in range(7473)]
    assert len({task.id for task in tasks}) == 7473
    assert len(source.held_out(10_000)) == 1319
    ends_right = 0
    for task in tasks:
        try:
            results = [calculator(expression) for expression in task.private["calls"]]
        except ToolError:
            continue
        ends_right += bool(results) and last_number(results[-1]) == last_number(task.private["answer"])
    assert ends_right / len(tasks) > 0.9  # measured on the published file: 0.95
