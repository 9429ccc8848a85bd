"""Dataset formats and containers: one conversation as rows of each format, in files of each kind."""

import json

import pytest

from whetstone.data import load_rows, read_conversation, read_preference

_SPEAKERS = {"user": "human", "assistant": "gpt", "tool": "observation"}
_JSON_COLUMNS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected", "tools")


def as_messages(messages, **columns):
    """Convert to the format of OpenAI: `messages` with `role` and `content`."""
    return {"messages": messages, **columns}


def as_sharegpt(messages, **columns):
    """Convert to the format of ShareGPT: `conversations` with `from` and `value`."""
    renamed = {"role": "from", "content": "value"}
    rows = [{renamed.get(key, key): value for key, value in message.items()} for message in messages]
    for row in rows:
        row["from"] = _SPEAKERS.get(row["from"], row["from"])
    return {"conversations": rows, **columns}


def as_completion(messages, **columns):
    """Convert to the format of TRL: `prompt` with the messages before the first turn of the assistant, `completion`
    with the others."""
    start = next(k for k, message in enumerate(messages) if message["role"] == "assistant")
    return {"prompt": messages[:start], "completion": messages[start:], **columns}


def as_pair(messages, **columns):
    """Convert to a pair of complete conversations."""
    start = next(k for k, message in enumerate(messages) if message["role"] == "assistant")
    text = "something worse"
    content = [{"type": "text", "text": text}] if isinstance(messages[-1]["content"], list) else text
    worse = [*messages[:start], {"role": "assistant", "content": content}]
    return {"chosen": messages, "rejected": worse, **columns}


def read_chosen(row):
    """Return the better conversation of a pair."""
    return read_preference(row).answers[0][0]


FORMATS = {
    "messages": (as_messages, read_conversation),
    "sharegpt": (as_sharegpt, read_conversation),
    "completion": (as_completion, read_conversation),
    "pair": (as_pair, read_chosen),
}


def write_lines(folder, rows):
    """Write JSON lines."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_list(folder, rows):
    """Write one JSON list."""
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    return path


def write_parquet(folder, rows):
    """Write Parquet with nested columns."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'whetstone-rl[datasets]'")
    import pyarrow

    path = folder / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_parquet_text(folder, rows):
    """Write Parquet whose columns of messages and tools are JSON text."""
    return write_parquet(folder, [{name: _encode(name, value) for name, value in row.items()} for row in rows])


def _encode(name, value):
    return json.dumps(value) if name in _JSON_COLUMNS and not isinstance(value, str) else value


def write_dataset(folder, rows):
    """Save a dataset of Hugging Face to disk."""
    datasets = pytest.importorskip("datasets", reason="pip install 'whetstone-rl[datasets]'")
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    return folder / "saved"


CONTAINERS = {
    "jsonl": write_lines,
    "json": write_list,
    "parquet": write_parquet,
    "parquet_text": write_parquet_text,
    "save_to_disk": write_dataset,
}
TABLES = ("parquet", "save_to_disk")
"""Containers whose nested columns are Arrow structs, with nulls as padding."""


def read_back(folder, format, container, conversations):
    """Read the conversations of a file with these rows; each is (messages, other columns)."""
    make, read = FORMATS[format]
    path = CONTAINERS[container](folder, [make(messages, **columns) for messages, columns in conversations])
    return [read(row) for row in load_rows(path)]
