"""Conversations from a file: what can have happened is read, what cannot is told by line and reason."""

import json

import pytest

from tests_conversations import call, computed, conversations, written
from whetstone.chat import ToolSpec
from whetstone.data import conversation_of, preference_of, rows_of
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.rows import Row
from whetstone.errors import DataError

SPEC = ToolSpec("pocket_calculator", "", {"type": "object", "properties": {"expression": {"type": "string"}}})


def of(*messages, **more):
    return conversation_of(Row("chats.jsonl:7", {"messages": list(messages), **more}))


def test_calls_and_results_are_paired_as_in_an_episode():
    read = of(*computed(12, 34))
    assert [message.role for message in read.messages] == ["user", "assistant", "tool", "assistant"]
    assert (read.messages[1].tool_calls[0].id, read.messages[2].tool_call_id) == ("call_0_0", "call_0_0")


def test_results_of_two_calls_find_theirs_in_any_order():
    two = {"role": "assistant", "content": "", "tool_calls": [call("1+1", "a"), call("2+2", "b")]}
    answers = [
        {"role": "tool", "tool_call_id": "b", "content": "4"},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
    ]
    read = of({"role": "user", "content": "?"}, two, *answers, {"role": "assistant", "content": "ok"})
    assert [message.tool_call_id for message in read.messages[2:4]] == ["call_0_1", "call_0_0"]


def test_arguments_may_be_an_object_and_other_keys_may_be_null():
    function = {"name": "pocket_calculator", "arguments": {"expression": "1+1", "query": None}}
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": function}], "name": None}
    read = of(computed(1, 1)[0], said, {"role": "tool", "tool_call_id": "x", "content": "2", "tool_calls": None},
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
    read = conversation_of(Row("a", columns))
    assert [(message.role, message.text) for message in read.messages] == [("user", "Compute 1+1"), ("assistant", "2")]


USER = {"role": "user", "content": "?"}
SAID = {"role": "assistant", "content": "ok"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [call("1+1")]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "2"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "without messages"),
        ([SAID, USER], r"messages\[0\]: the first message is of the assistant; system or user is expected"),
        ([USER, USER], "without a message of the assistant"),
        ([USER, {"role": "oracle", "content": "ok"}], r"messages\[1\]: no role is named .oracle."),
        ([USER, CALLED, USER, SAID], r"messages\[2\]: 1 of the calls before it have no result"),
        ([USER, SAID, RESULT, SAID], r"messages\[2\]: a result of no open call \(x\); open calls: none"),
        ([USER, CALLED, {**RESULT, "tool_call_id": "y"}, SAID], r"messages\[2\]: a result of no open call \(y\)"),
        ([USER, {"role": "assistant", "content": 7}], r"messages\[1\]: text is expected as content, got int"),
        ([USER, "ok"], r"messages\[1\]: an object is expected, got str"),
    ],
)
def test_what_cannot_have_happened_is_told_by_line_and_reason(messages, said):
    with pytest.raises(DataError, match=f"^chats.jsonl:7  .*{said}"):
        of(*messages)


def test_a_call_of_a_tool_that_was_not_there_is_told():
    with pytest.raises(DataError, match='names "pocket_calculator", which is not among its tools'):
        of(*computed(1, 2), tools=[{"name": "search", "description": "", "parameters": {}}])


def test_a_row_that_says_nothing_of_tools_has_those_on_offer():
    row = Row("a", {"messages": computed(1, 2)})
    assert conversation_of(row, (SPEC,)).tools == (SPEC,)
    assert conversation_of(Row("a", {**row.columns, "messages": [USER, SAID], "tools": []}), (SPEC,)).tools == ()


@pytest.mark.parametrize(("name", "places"), [("all", (1, 3)), ("last", (3,)), ("calls", (1,)), ("answers", (3,))])
def test_turns_are_chosen_by_name(name, places):
    assert of(*computed(3, 4)).learned(LEARNED_FROM[name]) == places


def test_a_message_of_weight_0_is_read_and_not_learned():
    question, asked, result, answer = computed(3, 4)
    assert of(question, {**asked, "weight": 0}, result, answer).learned(LEARNED_FROM["all"]) == (3,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"messages": [\n', r":1  not JSON"),
        (b'{"messages": []', r":1  .*the last line; is the file cut off"),
        (b'{"a": "\xff"}\n', r":1  byte 8 is not UTF-8"),
        (b"[1]\n", r":1  a row is a JSON object, got list"),
        (b'\n{"a": 1, "a": 2}\n', r':2  .*the key "a" is there twice'),
    ],
)
def test_a_line_that_cannot_be_read_is_told_by_its_number(tmp_path, content, said):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"chats.jsonl{said}"):
        list(rows_of(path))


def test_kinds_of_files_hold_the_same_rows(tmp_path):
    rows = conversations(3)
    written(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert (
        [r.columns for r in rows_of(tmp_path / "a.jsonl")] == [r.columns for r in rows_of(tmp_path / "a.json")] == rows
    )
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'whetstone-rl[datasets]'")
    import pyarrow

    pq.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    read = [conversation_of(row) for row in rows_of(tmp_path / "train.parquet")]
    assert [c.messages for c in read] == [conversation_of(row).messages for row in rows_of(tmp_path / "a.jsonl")]


def test_a_file_that_is_not_there_has_a_near_one(tmp_path):
    written(tmp_path / "chats.jsonl", [])
    with pytest.raises(DataError, match=r"no such file.*chats\.jsonl"):
        rows_of(tmp_path / "chat.jsonl")


def test_a_pair_shares_what_both_begin_with():
    read = preference_of(Row("a", {"prompt": "Compute 1+1", "chosen": "2", "rejected": "3"}))
    assert (read.shared, [worth for _, worth in read.answers]) == (1, [1.0, 0.0])
    whole = {"chosen": computed(3, 4), "rejected": [*computed(3, 4)[:3], {"role": "assistant", "content": "13"}]}
    assert preference_of(Row("a", whole)).shared == 3


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are equal"),
        ({"prompt": "a", "chosen": "b"}, "no pair"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "label: true or false is expected, got 'good'"),
        ({"chosen": [USER, SAID], "rejected": [{**USER, "content": "!"}, SAID]}, "no messages in common"),
    ],
)
def test_a_pair_that_is_none_is_told(columns, said):
    with pytest.raises(DataError, match=said):
        preference_of(Row("pairs.jsonl:3", columns))
