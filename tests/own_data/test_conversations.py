"""Conversations from a file: possible ones are read, impossible ones reported by line and reason."""

import json

import pytest

from support.conversations import call, computed, conversations, written
from whetstone.chat import ToolSpec
from whetstone.data import load_rows, read_conversation, read_preference
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.row_readers import Row
from whetstone.errors import DataError

SPEC = ToolSpec("pocket_calculator", "", {"type": "object", "properties": {"expression": {"type": "string"}}})


def of(*messages, **more):
    return read_conversation(Row("chats.jsonl:7", {"messages": list(messages), **more}))


def test_calls_and_results_are_paired_as_in_an_episode():
    read = of(*computed(12, 34))
    assert [message.role for message in read.messages] == ["user", "assistant", "tool", "assistant"]
    assert (read.messages[1].tool_calls[0].id, read.messages[2].tool_call_id) == ("call_0_0", "call_0_0")


def test_results_of_two_calls_are_matched_in_any_order():
    two = {"role": "assistant", "content": "", "tool_calls": [call("1+1", "a"), call("2+2", "b")]}
    answers = [
        {"role": "tool", "tool_call_id": "b", "content": "4"},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
    ]
    read = of({"role": "user", "content": "?"}, two, *answers, {"role": "assistant", "content": "ok"})
    assert [message.tool_call_id for message in read.messages[2:4]] == ["call_0_1", "call_0_0"]


def test_arguments_may_be_an_object_and_other_keys_may_be_null():
    function = {"name": "pocket_calculator", "arguments": {"expression": "1+1", "query": None}}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": function}], "name": None}
    read = of(computed(1, 1)[0], message, {"role": "tool", "tool_call_id": "x", "content": "2", "tool_calls": None},
              {"role": "assistant", "content": "2"})  # fmt: skip
    assert json.loads(read.messages[1].tool_calls[0].arguments) == {"expression": "1+1", "query": None}


@pytest.mark.parametrize(
    "columns",
    [
        {"conversations": [{"from": "human", "value": "Compute 1+1"}, {"from": "gpt", "value": "2"}]},
        {"prompt": "Compute 1+1", "completion": "2"},
        {"prompt": [{"role": "user", "content": "Compute 1+1"}], "completion": [{"role": "assistant", "content": "2"}]},
    ],
)
def test_other_shapes_are_the_same_conversation(columns):
    read = read_conversation(Row("a", columns))
    assert [(message.role, message.text) for message in read.messages] == [("user", "Compute 1+1"), ("assistant", "2")]


USER = {"role": "user", "content": "?"}
SAID = {"role": "assistant", "content": "ok"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [call("1+1")]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "2"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the conversation has no messages"),
        (
            [SAID, USER],
            r"messages\[0\]: the first message has the role assistant; it must have the role system or user",
        ),
        ([USER, USER], "the conversation has no message of the assistant"),
        ([USER, {"role": "oracle", "content": "ok"}], r"messages\[1\]: no role is named .oracle."),
        ([USER, CALLED, USER, SAID], r"messages\[2\]: 1 of the tool calls before this message have no result"),
        ([USER, SAID, RESULT, SAID], r"messages\[2\]: the tool result \(x\) matches no open call; open calls: none"),
        (
            [USER, CALLED, {**RESULT, "tool_call_id": "y"}, SAID],
            r"messages\[2\]: the tool result \(y\) matches no open call",
        ),
        ([USER, {"role": "assistant", "content": 7}], r"messages\[1\]: text is expected as content, got int"),
        ([USER, "ok"], r"messages\[1\]: an object is expected, got str"),
    ],
)
def test_impossible_conversation_is_reported_by_line_and_reason(messages, message):
    with pytest.raises(DataError, match=f"^chats.jsonl:7  .*{message}"):
        of(*messages)


def test_call_of_an_unknown_tool_is_reported():
    with pytest.raises(DataError, match='names "pocket_calculator", which is not a declared tool'):
        of(*computed(1, 2), tools=[{"name": "search", "description": "", "parameters": {}}])


def test_row_without_tools_has_those_of_the_recipe():
    row = Row("a", {"messages": computed(1, 2)})
    assert read_conversation(row, (SPEC,)).tools == (SPEC,)
    assert read_conversation(Row("a", {**row.columns, "messages": [USER, SAID], "tools": []}), (SPEC,)).tools == ()


@pytest.mark.parametrize(("name", "places"), [("all", (1, 3)), ("last", (3,)), ("calls", (1,)), ("answers", (3,))])
def test_turns_are_selected_by_name(name, places):
    assert of(*computed(3, 4)).get_trained_turns(LEARNED_FROM[name]) == places


def test_message_of_weight_0_is_context():
    question, call, result, answer = computed(3, 4)
    assert of(question, {**call, "weight": 0}, result, answer).get_trained_turns(LEARNED_FROM["all"]) == (3,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"messages": [\n', r":1  not JSON"),
        (b'{"messages": []', r":1  .*the last line; is the file cut off"),
        (b'{"a": "\xff"}\n', r":1  byte 8 is not UTF-8"),
        (b"[1]\n", r":1  a row must be a JSON object, got list"),
        (b'\n{"a": 1, "a": 2}\n', r':2  .*the key "a" occurs twice'),
    ],
)
def test_unreadable_line_is_reported_by_its_number(tmp_path, content, message):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"chats.jsonl{message}"):
        list(load_rows(path))


def test_all_file_formats_hold_the_same_rows(tmp_path):
    rows = conversations(3)
    written(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert (
        [r.columns for r in load_rows(tmp_path / "a.jsonl")]
        == [r.columns for r in load_rows(tmp_path / "a.json")]
        == rows
    )
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'whetstone-rl[datasets]'")
    import pyarrow

    pq.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    read = [read_conversation(row) for row in load_rows(tmp_path / "train.parquet")]
    assert [c.messages for c in read] == [read_conversation(row).messages for row in load_rows(tmp_path / "a.jsonl")]


def test_missing_file_is_reported_with_the_nearest(tmp_path):
    written(tmp_path / "chats.jsonl", [])
    with pytest.raises(DataError, match=r"no such file.*chats\.jsonl"):
        load_rows(tmp_path / "chat.jsonl")


def test_pair_shares_its_prefix():
    read = read_preference(Row("a", {"prompt": "Compute 1+1", "chosen": "2", "rejected": "3"}))
    assert (read.shared, [value for _, value in read.answers]) == (1, [1.0, 0.0])
    complete = {"chosen": computed(3, 4), "rejected": [*computed(3, 4)[:3], {"role": "assistant", "content": "13"}]}
    assert read_preference(Row("a", complete)).shared == 3


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are equal"),
        ({"prompt": "a", "chosen": "b"}, "no pair"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "label: true or false is expected, got 'good'"),
        ({"chosen": [USER, SAID], "rejected": [{**USER, "content": "!"}, SAID]}, "no messages in common"),
    ],
)
def test_invalid_pair_is_reported(columns, message):
    with pytest.raises(DataError, match=message):
        read_preference(Row("pairs.jsonl:3", columns))
