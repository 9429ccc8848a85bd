"""Row formats of published benchmarks: columns of the prompt and columns for the verifier.

A recipe names a format (`tasks: {source: file, path: X.jsonl, format: humaneval}`) or the columns (`columns: {prompt:
question, answer: solution}`). Names in braces are columns; `a|b` is the first of them that a row has.

Note:
    Columns for the verifier (tests, patches, gold answers) never reach the model; only the format's prompt does.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whetstone.errors import did_you_mean
from whetstone.tasks.gsm8k import problem_parser
from whetstone.tasks.humaneval import function_task
from whetstone.trajectory import Task

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a benchmark's file: parser of a row and description."""

    columns: str
    """Columns of a row; those in parentheses are optional."""
    reward: str
    """Name of the reward that fits the tasks."""
    environment: str
    """Name of the environment that fits the tasks."""
    about: str
    """Description of a row in one sentence."""
    read: Callable[[Row, int], Task]
    """Parser of a row: (row, number) → task; raises ValueError or KeyError if the row is invalid."""


def _column(row: Row, names: str) -> Any:
    """Return the first existing column of `a|b` that has a value.

    Raises:
        KeyError: If no such column exists.
    """
    existing = [name for name in names.split("|") if row.get(name) is not None]
    if not existing:
        raise KeyError(names.split("|")[0])
    return row[existing[0]]


def _text(row: Row, names: str) -> str:
    """Return the first existing column of `a|b`, which must be a nonempty text.

    Raises:
        ValueError: If it is not a text.
    """
    value = _column(row, names)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{names.split('|')[0]}` must be a text, got {json.dumps(value, default=str)[:60]}")
    return value


def _prompt(row: Row, name: str) -> Any:
    """Return a prompt column: a text, or a list of messages."""
    value = _column(row, name)
    return value if isinstance(value, list) else _text(row, name)


def _at(row: Row, name: str) -> Any:
    """Return a column, or a field of a column: `reward_model.ground_truth`.

    Raises:
        KeyError: If it does not exist.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(name)
        value = value[part]
    return value


def _id(row: Row, names: str, number: int) -> str:
    """Return the id of a row: the first existing column of `a|b`, or else its number."""
    return str(next((row[name] for name in names.split("|") if row.get(name) is not None), number))


def _tags(row: Row, **named: str) -> dict[str, str]:
    """Return the tags of a row from the first existing column of each `a|b`."""
    return {
        tag: str(row[column])
        for tag, columns in named.items()
        for column in columns.split("|")
        if row.get(column) is not None
    }


def extract_boxed(solution: str) -> str:
    r"""Return the content of the last `\boxed{…}` of a solution.

    >>> extract_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'

    Raises:
        ValueError: If there is no `\boxed{…}`, or it is not closed.
    """
    start = solution.rfind("\\boxed{")
    depth, begin = 0, start + len("\\boxed{")
    for at in range(begin, len(solution)) if start >= 0 else ():
        if solution[at] == "}" and depth == 0:
            return solution[begin:at]
        depth += {"{": 1, "}": -1}.get(solution[at], 0)
    raise ValueError("there is no `answer`, and no \\boxed{…} in `solution`")


def _math(row: Row, number: int) -> Task:
    """Parse a row of MATH: problem, answer, subject and level."""
    answer = str(row["answer"]) if row.get("answer") is not None else extract_boxed(_text(row, "solution"))
    tags = _tags(row, kind="subject|type", difficulty="level")
    return Task(_id(row, "unique_id|id", number), _text(row, "problem|question|prompt"), {"answer": answer}, tags)


def _mbpp(row: Row, number: int) -> Task:
    """Parse a row of MBPP; the prompt shows the tests."""
    tests, code = _column(row, "test_list"), _text(row, "code")
    if not isinstance(tests, list) or not tests:
        raise ValueError("`test_list` must be a nonempty list of assertions")
    setup = "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]).strip()
    private = {
        "entry_point": _find_entry_point(tests[0], code),
        "test": "\n".join([setup, *tests]),
        "solution": code,
        "prelude": "",
    }
    test_text = "\n".join(tests)
    prompt = f"{_text(row, 'text|prompt')}\nAnswer with the function in one fenced block. It must pass:\n\n{test_text}"
    return Task(_id(row, "task_id", number), prompt, private, {"kind": "function"})


def _find_entry_point(test: str, code: str) -> str:
    """Return the name of the solution's function that the first assertion calls.

    Raises:
        ValueError: If there is no such function, or the code is not Python.
    """
    try:
        defined = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)}
        calls = [node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    except SyntaxError as error:
        raise ValueError(f"`code` or `test_list` is not Python: {error.msg}") from None
    names = [call.id for call in calls if isinstance(call, ast.Name) and call.id in defined]
    if not names:
        raise ValueError("the first assertion of `test_list` calls no function of `code`")
    return names[0]


def _livecodebench(row: Row, number: int) -> Task:
    """Parse a row of LiveCodeBench: a function or a program, with its tests."""
    tests = [*_tests(row, "public_test_cases"), *_tests(row, "private_test_cases")]
    if not tests:
        raise ValueError("`public_test_cases` has no test")
    kinds, tags = {str(test["testtype"]) for test in tests}, _tags(row, kind="platform", difficulty="difficulty")
    date = {"contest_date": row["contest_date"]} if row.get("contest_date") else {}
    if kinds == {"stdin"}:
        runs = {"runs": [[str(test["input"]), str(test["output"])] for test in tests]}
        ask = "Answer with a whole program in one fenced block. It reads standard input and prints to standard output."
        return Task(
            _id(row, "question_id", number), f"{_text(row, 'question_content')}\n\n{ask}", {**runs, **date}, tags
        )
    if kinds != {"functional"}:
        raise ValueError(
            f"`testtype` must be functional or stdin, the same for all tests; got {', '.join(sorted(kinds))}"
        )
    cases = [
        [[json.loads(line) for line in test["input"].split("\n") if line.strip()], json.loads(test["output"])]
        for test in tests
    ]
    metadata = row.get("metadata") or "{}"
    entry = (json.loads(metadata) if isinstance(metadata, str) else metadata)["func_name"]
    starter = row.get("starter_code") or ""
    # the model writes a method of `Solution`; the tests call a function
    prelude = f"def {entry}(*arguments):\n    return Solution().{entry}(*arguments)\n" if "Solution" in starter else ""
    private = {"entry_point": entry, "cases": cases, "prelude": prelude, **date}
    ask = "Answer with the whole code in one fenced block, beginning with:"
    prompt = f"{_text(row, 'question_content')}\n\n{ask}\n\n```python\n{starter}\n```"
    return Task(_id(row, "question_id", number), prompt, private, tags)


def _tests(row: Row, column: str) -> list[dict[str, Any]]:
    """Return the tests of a column of LiveCodeBench.

    Raises:
        ValueError: If the column is pickled or not a list.
    """
    value = row.get(column) or "[]"
    try:
        tests = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"`{column}` is pickled; convert it to JSON if you trust the file") from None
    if not isinstance(tests, list):
        raise ValueError(f"`{column}` must be a list of tests")
    return tests


def _swe(row: Row, number: int) -> Task:
    """Parse a row of SWE-bench: issue, repository, commit and tests."""
    named = ("repo", "base_commit", "patch", "test_patch", "version", "environment_setup_commit", "hints_text",
             "created_at")  # fmt: skip
    private = {name: row[name] for name in named if row.get(name) is not None}
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        tests = _column(row, name)
        private[name] = json.loads(tests) if isinstance(tests, str) else tests
    _column(row, "base_commit")
    return Task(_id(row, "instance_id", number), _text(row, "problem_statement"), private, _tags(row, kind="repo"))


def _gaia(row: Row, number: int) -> Task:
    """Parse a row of GAIA: question, answer, level and file."""
    private = {"answer": _text(row, "Final answer")} | {k: row[k] for k in ("file_name", "file_path") if row.get(k)}
    return Task(_id(row, "task_id", number), _text(row, "Question"), private, _tags(row, difficulty="Level"))


def _browsecomp(row: Row, number: int) -> Task:
    """Parse a row of BrowseComp; decrypt it if the row has a canary."""
    problem, answer, canary = _text(row, "problem"), _text(row, "answer"), row.get("canary")
    if canary:
        problem, answer = _decrypt(problem, str(canary)), _decrypt(answer, str(canary))
    return Task(_id(row, "id", number), problem, {"answer": answer}, _tags(row, kind="problem_topic|topic"))


def _decrypt(text: str, password: str) -> str:
    """Decrypt a text that was XORed with the repeated SHA-256 of a password.

    Benchmarks encrypt texts to hide them from crawlers.
    """
    key = hashlib.sha256(password.encode()).digest()
    try:
        hidden = base64.b64decode(text, validate=True)
        return bytes(byte ^ key[at % len(key)] for at, byte in enumerate(hidden)).decode()
    except ValueError:
        raise ValueError("problem or answer cannot be decrypted with the `canary` of the row") from None


def _webshop(row: Row, number: int) -> Task:
    """Parse a row of WebShop: instruction and the requested product."""
    private = {
        "asin": _text(row, "asin"),
        "attributes": _column({**row, "none": []}, "instruction_attributes|attributes|none"),
        "options": _column({**row, "none": []}, "instruction_options|goal_options|none"),
        "price_upper": row.get("price_upper"),
    }
    tags = _tags(row, kind="category")
    return Task(_id(row, "id", number), _text(row, "instruction|instruction_text"), private, tags)


def _alfworld(row: Row, number: int) -> Task:
    """Parse a row of ALFWorld: a game file and its goal."""
    file = _text(row, "game_file|gamefile")
    prompt = row.get("task_desc") or row.get("goal") or file
    return Task(_id(row, "task_id|id", number), str(prompt), {"file": file}, _tags(row, kind="task_type"))


def _verl(row: Row, number: int) -> Task:
    """Parse a row of a verl dataset: prompt and `reward_model.ground_truth`."""
    prompt, judged = _prompt(row, "prompt"), row.get("reward_model") or {}
    if not isinstance(judged, Mapping) or judged.get("ground_truth") is None:
        raise ValueError("`reward_model.ground_truth` has no value")
    others = {name: value for name, value in row.items() if name not in ("prompt", "reward_model")}
    private = {"answer": judged["ground_truth"], "ground_truth": judged["ground_truth"], **others}
    # values that JSON cannot hold (dates, bytes) become texts, so that a trajectory can be written
    return Task(str(number), prompt, json.loads(json.dumps(private, default=str)), _tags(row, kind="data_source"))


FORMATS: Mapping[str, Format] = {
    "alfworld": Format(
        "game_file, (task_desc), (task_type), (task_id)", "verdict", "textworld", "A household game by its file.",
        _alfworld,
    ),
    "browsecomp": Format(
        "problem, answer, (canary), (problem_topic)", "exact_match", "tools",
        "A question with an answer that is hard to find; decrypted if there is a canary.", _browsecomp,
    ),
    "gaia": Format(
        "Question, Final answer, (Level), (task_id), (file_name)", "exact_match", "tools",
        "A question for an assistant with tools.", _gaia,
    ),
    "gsm8k": Format(
        "question, answer", "exact_number", "tools", "A problem in words; the answer follows `####`.",
        problem_parser("file"),
    ),
    "humaneval": Format(
        "task_id, prompt, entry_point, test, canonical_solution", "unit_tests", "tools", "A function to complete.",
        function_task,
    ),
    "livecodebench": Format(
        "question_content, public_test_cases, (metadata), (private_test_cases), (starter_code), (question_id), "
        "(platform), (difficulty), (contest_date)", "unit_tests", "tools",
        "A problem of a contest: a function (`functional` tests; its name in metadata) or a program (`stdin`).",
        _livecodebench,
    ),
    "math": Format(
        "problem, answer or solution, (level), (subject or type), (unique_id)", "symbolic", "tools", "A problem of "
        "mathematics; the answer is that column, or the boxed text of the solution.", _math,
    ),
    "mbpp": Format(
        "text or prompt, code, test_list, (test_setup_code), (test_imports), (task_id)", "unit_tests", "tools",
        "A function to write; the tests are shown.", _mbpp,
    ),
    "swe": Format(
        "problem_statement, base_commit, FAIL_TO_PASS, PASS_TO_PASS, (repo), (patch), (test_patch), (instance_id), "
        "(created_at), …", "custom", "custom",
        "An issue of a repository; the environment and the reward need the repository.", _swe,
    ),
    "verl": Format(
        "prompt (a list of messages), reward_model.ground_truth, (data_source), (extra_info), …", "exact_match",
        "tools", "A row of a dataset of verl; a custom reward can have the signature of verl.", _verl,
    ),
    "webshop": Format(
        "instruction or instruction_text, asin, (instruction_attributes or attributes), (instruction_options or "
        "goal_options), (price_upper), (category)", "custom", "custom", "A request for a product.", _webshop,
    ),
}  # fmt: skip
"""Formats by their name in a recipe (`tasks.format`)."""


def row_parser(name: str, columns: Mapping[str, Any]) -> Callable[[Row, int], Task]:
    """Return the parser of rows, by a format's name or by columns.

    Args:
        name: Name of a format; empty: use `columns`.
        columns: Column names by role: `prompt`, and optional `answer`, `id`, `tags` (a list) and `private` (a list).

    Raises:
        ValueError: If there is no such format, both or neither are given, or `columns` has an unknown key.
    """
    if bool(name) == bool(columns):
        raise ValueError("set `format` or `columns`" + (", not both" if name else ""))
    if name:
        if name not in FORMATS:
            raise ValueError(f"no format named {name}{did_you_mean(name, FORMATS)}; formats are {', '.join(FORMATS)}")
        return FORMATS[name].read
    known = ("prompt", "answer", "id", "tags", "private")
    for key in columns:
        if key not in known:
            raise ValueError(
                f"columns.{key}: unknown role of a column; roles are {', '.join(known)}{did_you_mean(key, known)}"
            )
    if "prompt" not in columns:
        raise ValueError("columns: the column of the `prompt` is missing; set columns.prompt")
    return lambda row, number: _by_columns(columns, row, number)


def _by_columns(columns: Mapping[str, Any], row: Row, number: int) -> Task:
    """Parse a row by the column names of a recipe (`tasks.columns`)."""
    private = {str(name): _at(row, str(name)) for name in columns.get("private", ())}
    if "answer" in columns:
        private["answer"] = _at(row, str(columns["answer"]))
        if private["answer"] is None:
            raise ValueError(f"`{columns['answer']}` has no value")
    tags = {str(name): str(row[name]) for name in columns.get("tags", ())}
    id = str(row[columns["id"]]) if "id" in columns else str(number)
    return Task(id, _prompt(row, str(columns["prompt"])), private, tags)
