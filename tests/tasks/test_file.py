"""Task files: every published format, columns by their content, and reports of invalid rows."""

import asyncio
import base64
import csv
import hashlib
import json

import pytest

from support.rewards import episode, score
from support.sandbox import needs_isolation
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.rewards import make_reward
from whetstone.rewards.built_in import REWARDS
from whetstone.tasks import FORMATS, File

CANARY = "guid"


def encrypt(text):
    key = hashlib.sha256(CANARY.encode()).digest()
    return base64.b64encode(bytes(b ^ key[i % 32] for i, b in enumerate(text.encode()))).decode()


ADD = "def add(a, b):\n    return a + b\n"
ROWS = {
    "gsm8k": {"question": "1+1?", "answer": "It is <<1+1=2>>2\n#### 2"},
    "math": {"problem": "Half?", "solution": r"So \boxed{\frac{1}{2}}.", "level": "Level 5", "type": "Algebra"},
    "humaneval": {
        "task_id": "X/1", "prompt": 'def add(a, b):\n    """Add."""\n', "entry_point": "add",
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    },
    "mbpp": {"task_id": 2, "text": "Add.", "code": ADD, "test_list": ["assert add(1, 2) == 3"]},
    "livecodebench": {
        "question_content": "Add.", "metadata": '{"func_name": "add"}', "question_id": "q", "difficulty": "easy",
        "starter_code": "class Solution:\n    def add(self, a, b):",
        "public_test_cases": '[{"input": "1\\n2", "output": "3", "testtype": "functional"}]',
    },
    "swe": {
        "instance_id": "a__b-1", "repo": "a/b", "base_commit": "c0", "problem_statement": "It breaks.", "patch": "+x",
        "FAIL_TO_PASS": '["t1"]', "PASS_TO_PASS": "[]",
    },
    "gaia": {"task_id": "g", "Question": "Who?", "Final answer": "Ada", "Level": 2, "file_name": ""},
    "browsecomp": {"problem": encrypt("Which?"), "answer": encrypt("That"), "canary": CANARY, "problem_topic": "art"},
    "verl": {"prompt": [{"role": "user", "content": "2 + 3?"}], "reward_model": {"ground_truth": "5"}},
    "webshop": {"instruction": "A red lamp", "asin": "B1", "instruction_attributes": ["red"], "price_upper": 30.0},
    "alfworld": {"game_file": "x/game.tw-pddl", "task_desc": "Put an apple.", "task_type": "pick"},
}  # fmt: skip
READ = {
    "gsm8k": ("1+1?", {"answer": "2"}),
    "math": ("Half?", {"answer": r"\frac{1}{2}"}),
    "mbpp": ("Add.", {"entry_point": "add"}),
    "livecodebench": ("Add.", {"cases": [[[1, 2], 3]]}),
    "swe": ("It breaks.", {"FAIL_TO_PASS": ["t1"], "patch": "+x"}),
    "gaia": ("Who?", {"answer": "Ada"}),
    "browsecomp": ("Which?", {"answer": "That"}),
    "verl": ("2 + 3?", {"answer": "5"}),
    "webshop": ("A red lamp", {"asin": "B1", "attributes": ["red"]}),
    "alfworld": ("Put an apple.", {"file": "x/game.tw-pddl"}),
}


def source(tmp_path, rows, **options):
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return File(path=str(file), held_out_fraction=1.0, **options)


@pytest.mark.parametrize("name", READ)
def test_published_row_becomes_a_task_with_the_data_of_its_verifier(tmp_path, name):
    (task,) = source(tmp_path, [ROWS[name]], format=name).held_out(9)
    prompt, private = READ[name]
    assert task.prompt.startswith(prompt)
    assert {key: task.private[key] for key in private} == private


def test_every_format_has_a_row_and_an_existing_reward():
    assert ROWS.keys() == FORMATS.keys()
    assert {one.reward for one in FORMATS.values()} - {"custom"} <= REWARDS.keys()


@pytest.mark.slow
@needs_isolation
@pytest.mark.parametrize("name", ["humaneval", "mbpp", "livecodebench"])
def test_code_of_a_format_is_run_against_its_tests(tmp_path, name):
    (task,) = source(tmp_path, [ROWS[name]], format=name).held_out(9)
    method = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    for code, right in ((method if name == "livecodebench" else ADD, True), (ADD.replace("+", "-"), False)):
        trajectory = episode(f"```python\n{code}\n```")
        assert asyncio.run(make_reward("unit_tests", REWARDS)(trajectory, task)).success is right


CONTEST = {
    "question_content": "Print the sum.", "question_id": "s",
    "public_test_cases": [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}],
    "private_test_cases": [{"input": "1 0.5\n", "output": "1.5", "testtype": "stdin"}],
}  # fmt: skip


def test_problem_over_standard_input_requests_a_program(tmp_path):
    (task,) = source(tmp_path, [CONTEST], format="livecodebench").held_out(9)
    assert task.private == {"runs": [["1 2\n", "3\n"], ["1 0.5\n", "1.5"]]}
    assert "reads standard input" in task.prompt
    mixed = {**CONTEST, "private_test_cases": [{"input": "1", "output": "1", "testtype": "functional"}]}
    with pytest.raises(TaskError, match="the same for all tests; got functional, stdin"):
        source(tmp_path, [mixed], format="livecodebench")


def test_columns_are_recognized_in_lines_lists_and_tables(tmp_path):
    rows = [{"q": f"What is {k}?", "a": str(k), "topic": "sums", "n": f"id{k}"} for k in range(3)]
    columns = {"prompt": "q", "answer": "a", "id": "n", "tags": ["topic"]}
    lines = source(tmp_path, rows, columns=columns).held_out(9)
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    with open(tmp_path / "tasks.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    for name in ("tasks.json", "tasks.csv"):
        assert File(path=str(tmp_path / name), columns=columns, held_out_fraction=1.0).held_out(9) == lines
    assert (lines[1].id, lines[1].tags, lines[1].private) == ("id1", {"topic": "sums"}, {"answer": "1"})
    assert score("exact_match", episode("1"), lines[1]).success


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gsm8k", {"answer": "2"}, "does not end with `#### answer`"),
        ("math", {"solution": "half"}, "no `answer`, and no"),
        ("mbpp", {"test_list": ["assert True"]}, "calls no function of `code`"),
        (
            "livecodebench",
            {"public_test_cases": '[{"input": "", "output": "", "testtype": "file"}]'},
            "functional or stdin",
        ),
        ("livecodebench", {"private_test_cases": "eJxrYJk"}, "is pickled"),
        ("browsecomp", {"problem": "plain"}, "cannot be decrypted"),
        ("gaia", {"Question": None}, "'Question' is missing"),
    ],
)
def test_invalid_row_is_named_or_skipped(tmp_path, name, change, message):
    bad = {**ROWS[name], **change}
    with pytest.raises(TaskError, match=r"tasks\.jsonl:2 .*" + message):
        source(tmp_path, [ROWS[name], bad], format=name)
    assert source(tmp_path, [ROWS[name], bad], format=name, on_bad_row="skip").skipped == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set `format` or `columns`"),
        ({"format": "math", "columns": {"prompt": "q"}}, "not both"),
        ({"format": "humanval"}, "no format named humanval.*humaneval"),
        ({"columns": {"promt": "q"}}, "columns.promt: unknown role of a column"),
        ({"columns": {"answer": "q"}}, "the column of the `prompt` is missing"),
    ],
)
def test_reading_of_a_file_is_reported_once(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        source(tmp_path, [{"q": "?"}], **options)
