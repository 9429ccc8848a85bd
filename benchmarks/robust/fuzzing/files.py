"""Files of tasks and data: any content yields rows or a documented error with the file name, within a second."""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.choices import Choices, require
from fuzzing.trying import scratch
from whetstone.data import conversation_rows, parse_log_row, read_conversation, read_preference
from whetstone.data.row_readers import Row, read_all
from whetstone.data.sensitive import find_sensitive, mask_sensitive
from whetstone.errors import WhetstoneError
from whetstone.tasks import FORMATS, GSM8K, File, FunctionCalls, HumanEval, Jsonl, readers
from whetstone.tasks.literals import LANGUAGES

SEPARATORS = ("\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r", "\n", "\r\n", "\t", ",", ";", '"', '""', "\ufeff", "\x00")
KEYS = (
    "prompt", "answer", "question", "completion", "messages", "conversations", "chosen", "rejected", "label", "text",
    "role", "content", "from", "value", "weight", "tool_calls", "function", "name", "arguments", "tools", "id", "tags",
    "private", "reward", "score", "step", "advantage", "request", "response", "choices", "message", "traces", "nodes",
    "parent", "sampled", "token_ids", "mask", "logprobs", "rewards", "task", "prompt_ids", "completion_ids", "env_mask",
    "ground_truth", "test_list", "code", "solution", "public_test_cases", "metadata", "canary", "problem",
)  # fmt: skip
WORDS = (
    *KEYS, *SEPARATORS, "user", "assistant", "tool", "system", "human", "gpt", "#### 4", "\\boxed{", "}", "def f(a):",
    "assert f(1) == 2", "$ref", "-0.5", "0.7", "-inf", "sk-", "a@b.example", "+41 44 123 45 67", "-----" "BEGIN",
    base64.b64encode(b"abc").decode(),
)  # fmt: skip
SHAPES: tuple[dict[str, Any], ...] = (
    {"prompt": "a", "answer": 1, "id": "x", "tags": {"k": 1}, "private": {}},
    {"question": "1+1?", "answer": "<<1+1=2>> #### 2"},
    {"id": "simple_0", "question": [[{"role": "user", "content": "?"}]], "function": [{"name": "f"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": []},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
            {"role": "tool", "tool_call_id": "c", "content": "4"},
            {"role": "assistant", "content": "4", "weight": 0},
        ],
        "reward": 0.5,
    },
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    {"prompt": "a", "completion": "b", "label": True},
    {"prompt": "a", "chosen": "b", "rejected": "c"},
    {"request": {"messages": [{"role": "user", "content": "a"}]},
     "response": {"choices": [{"message": {"role": "assistant", "content": "b"}}]}},
    {"step": 1, "advantage": 0.5, "prompt": "a", "completion": "b", "right": 1.0},
    {"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-0.5, 0.0], "env_mask": [1, 0], "reward": 1},
    {"task": {"key": "t"}, "traces": [{"nodes": [
        {"parent": None, "message": {"role": "user", "content": "a"}, "token_ids": [1]},
        {"parent": 0, "message": {"role": "assistant", "content": "b"}, "sampled": True, "token_ids": [2, 3],
         "mask": [False, True], "logprobs": [-1.0]},
    ], "rewards": {"r": {"score": 1.0, "weight": 2.0}}}]},
    {"text": "tel: 030 1234567"},
    {"text": "Add.", "code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"]},
    {"question_content": "Add.", "metadata": '{"func_name": "f"}', "starter_code": "",
     "public_test_cases": '[{"input": "1", "output": "2", "testtype": "functional"}]'},
    {"problem": "a", "solution": "\\boxed{1}", "level": "1"},
)  # fmt: skip
SECONDS = 1.0


def content_of(choices: Choices, suffix: str) -> bytes:
    """Return the content of a file, often damaged."""
    rows = [choices.mutated(choices.one(SHAPES), WORDS) for _ in range(1 + choices.below(4))]
    if suffix in (".csv", ".tsv") and not choices.often(60):
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, delimiter="," if suffix == ".csv" else "\t", quoting=choices.one((0, 1)))
        header = choices.one((("prompt", "answer"), ("prompt", "completion"), ("text",), ("q", "q"), ()))
        writer.writerow(header)
        writer.writerows([[choices.text(WORDS, 4) for _ in range(choices.below(4))] for _ in rows])
        text = stream.getvalue()
    elif suffix == ".txt":
        text = "\n\n".join(choices.text(WORDS, 6) for _ in rows)
    else:
        lines = [choices.json(row, WORDS) for row in rows]
        text = f"[{choices.one((', ', ',', ' ', ''))}".join(lines) if choices.often(30) else "\n".join(lines)
        text = f"[{','.join(lines)}]" if suffix == ".json" and choices.often(200) else text
    if choices.often(60):
        place = choices.below(len(text) + 1)
        text = text[:place] + choices.text(WORDS, 3) + text[place + choices.below(8) :]
    encoding = choices.one(("utf-8", "utf-8", "utf-8", "utf-8-sig", "cp1252", "utf-16"))
    content = text.encode(encoding, errors="surrogatepass" if encoding.startswith("utf") else "replace")
    return content[: choices.below(len(content) + 1)] if choices.often(24) else content


def _tasks(choices: Choices, path: Path) -> None:
    skip: readers.OnBadRow = "skip" if choices.often(128) else "stop"
    kind = choices.below(6)
    if kind == 0:
        Jsonl(path=str(path), on_bad_row=skip)
    elif kind == 1:
        path.rename(path.with_name("train.jsonl"))
        path.with_name("test.jsonl").write_bytes(content_of(choices, ".jsonl"))
        GSM8K(path=str(path.parent), on_bad_row=skip)
    elif kind == 2:
        path.with_name("answers.json").write_bytes(content_of(choices, ".jsonl"))
        FunctionCalls(path=str(path), answers=str(path.with_name("answers.json")), on_bad_row=skip)
    elif kind == 3:
        HumanEval(path=str(path), on_bad_row=skip)
    elif kind == 4:
        File(path=str(path), format=choices.one(sorted(FORMATS)), held_out_fraction=1.0, on_bad_row=skip)
    else:
        columns = {"prompt": choices.one(KEYS), "answer": choices.one(KEYS)}
        File(path=str(path), columns=columns, held_out_fraction=1.0, on_bad_row=skip)


def _rows(choices: Choices, path: Path) -> None:
    rows = list(readers.read_rows(path))
    items, skipped = read_all(path, lambda row: [row], on_bad_row="skip")
    require(len(items) + skipped == len(rows), "rows are lost", (len(rows), len(items), skipped))
    for row in items:
        json.dumps(row.columns, ensure_ascii=False).encode()


def _conversations(choices: Choices, path: Path) -> None:
    read_all(path, lambda row: [read_conversation(each) for each in conversation_rows(row)])


def _preferences(choices: Choices, path: Path) -> None:
    read_all(path, lambda row: [read_preference(row)])


def _logs(choices: Choices, path: Path) -> None:
    def parse(row: Row) -> list[Any]:
        return list(parse_log_row(row, choices.one((None, "reward", ["reward", "score"]))))

    for episode in read_all(path, parse, on_bad_row="skip")[0]:
        for piece in episode.pieces:
            require(not piece.logprobs or len(piece.logprobs) == len(piece.ids), "log-probs without tokens", piece)
            require(all(not value > 1e-6 for value in piece.logprobs), "a probability above 1", piece)
            require(all(type(id) is int and id >= 0 for id in piece.ids), "a token that is no id", piece)


def _sensitive(choices: Choices, path: Path) -> None:
    text = path.read_bytes().decode("utf-8", errors="replace") * (1 + choices.below(4))
    kinds = {span.kind for span in find_sensitive(mask_sensitive(text))}
    require(kinds <= {"phone number"}, "a masked text with values", kinds)  # numbers without a space between them


def _values(choices: Choices, path: Path) -> None:
    words = (*WORDS, "new int[]{", "new HashMap<>() {{ put(", "new ArrayList<>(Arrays.asList(", "{a: ", "[[", "]]", " ")
    read = LANGUAGES[choices.one(sorted(LANGUAGES))]
    kind = choices.one(("Array", "ArrayList", "HashMap", "array", "dict", "String", "long", "float", "integer"))
    read(choices.note("value", choices.text(words, 12) * (1 + choices.below(200))), kind, choices.one(("", "char")))


READERS: dict[str, tuple[Callable[[Choices, Path], None], tuple[str, ...]]] = {
    "tasks": (_tasks, (".jsonl", ".json", ".csv", ".tsv")),
    "jsonl": (_rows, (".jsonl",)),
    "json": (_rows, (".json",)),
    "csv": (_rows, (".csv",)),
    "tsv": (_rows, (".tsv",)),
    "txt": (_rows, (".txt",)),
    "conversations": (_conversations, (".jsonl", ".json", ".csv")),
    "preferences": (_preferences, (".jsonl", ".json", ".csv")),
    "logs": (_logs, (".jsonl", ".json", ".csv")),
    "sensitive": (_sensitive, (".jsonl", ".txt")),
    "source_values": (_values, (".txt",)),
}
"""Reader → what tries a file, and the suffixes of files that it reads."""
_folder: list[Path] = []


def one(choices: Choices, name: str = "") -> None:
    """Try one file."""
    if not _folder:
        _folder.append(scratch("files"))
    for old in _folder[0].iterdir():
        old.unlink()
    attempt, suffixes = READERS[choices.note("reader", name or choices.one(sorted(READERS)))]
    suffix = choices.one(suffixes)
    path = _folder[0] / f"input{suffix}"
    path.write_bytes(choices.note("content", content_of(choices, suffix)))
    began = time.process_time()
    try:
        attempt(choices, path)
    except WhetstoneError as error:
        message = str(error)
        require("\n" not in message and len(message) <= 2000, "an error of several lines", message)
        require(str(_folder[0]) in message or "renamed" in message, "an error without its file", message)
    require(time.process_time() - began < SECONDS, "more than a second", suffix)


def plant() -> None:
    """Plant a reader that stops at a file separator."""
    original = readers._check_fields

    def careless(fields: Any, header: Any) -> str:
        if any("\x1c" in field for field in fields):
            raise KeyError("planted")
        return original(fields, header)

    vars(readers)["_check_fields"] = careless
