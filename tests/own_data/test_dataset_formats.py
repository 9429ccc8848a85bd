"""Properties of conversations, each over all dataset formats and containers."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.dataset_formats import CONTAINERS, FORMATS, TABLES, as_messages, as_sharegpt, read_back, write_dataset
from whetstone.data import get_text, load_rows, read_conversation, read_preference
from whetstone.data.conversations import LEARNED_FROM, DataUsage, all_assistant_turns
from whetstone.data.row_readers import Row
from whetstone.errors import DataError

everywhere = pytest.mark.parametrize(
    ("format", "container"), [(format, container) for format in FORMATS for container in CONTAINERS]
)
every_format = pytest.mark.parametrize("format", list(FORMATS))

USER = {"role": "user", "content": "q"}
DONE = {"role": "assistant", "content": "done"}
PRICE = {"type": "function", "function": {"name": "price", "arguments": '{"item": "tea"}'}}
STOCK = {"type": "function", "function": {"name": "stock", "arguments": '{"item": "tea"}'}}


def called(arguments, name="lookup"):
    """Return a question, a call with these arguments, its result and an answer."""
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "found"}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, result, DONE]


def arguments_of(conversation):
    return [json.loads(call.arguments) for message in conversation.messages for call in message.tool_calls]


def read_row(format, messages, **columns):
    make, read = FORMATS[format]
    return read(Row("chats.jsonl:7", make(messages, **columns)))


def trained_texts(conversation):
    return [conversation.messages[place].text for place in conversation.get_trained_turns(all_assistant_turns)]


# Nulls


@everywhere
def test_fields_that_other_rows_introduced_are_absent(tmp_path, format, container):
    values = [{"where": {"city": "Oslo"}}, {"where": {"year": 2020}}, {"deep": [{"a": {"b": "x"}}, {"a": {"c": "y"}}]}]
    read = read_back(tmp_path, format, container, [(called(value), {}) for value in values])
    assert [arguments_of(each) for each in read] == [[value] for value in values]


@everywhere
def test_nulls_in_the_text_of_arguments_are_kept(tmp_path, format, container):
    value = {"ticket": "7", "assignee": None, "deep": {"list": [None, {"a": None}]}}
    rows = [(called(json.dumps(value)), {}), (called('{"other": 1}'), {})]
    assert arguments_of(read_back(tmp_path, format, container, rows)[0]) == [value]


@pytest.mark.parametrize("container", ["jsonl", "json", "parquet_text"])
@every_format
def test_nulls_in_an_object_of_arguments_are_those_of_its_text(tmp_path, format, container):
    value = {"ticket": "7", "assignee": None, "deep": {"list": [None, {"a": None}]}}
    rows = [(called(value), {}), (called(json.dumps(value)), {})]
    read = read_back(tmp_path, format, container, rows)
    assert read[0].messages == read[1].messages
    assert arguments_of(read[0]) == [value]


def test_nulls_in_json_columns_of_a_dataset_are_kept(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install 'whetstone-rl[datasets]'")
    if not hasattr(datasets, "Json"):
        pytest.skip("datasets has no JSON columns: pip install 'datasets>=5'")
    values = [{"ticket": "7", "assignee": None}, {"other": {"deep": None}}]
    rows = [as_messages(called(value)) for value in values]
    datasets.Dataset.from_list(rows, on_mixed_types="use_json").save_to_disk(str(tmp_path / "saved"))
    features = datasets.Features({"messages": datasets.List(datasets.Json())})
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "json"))
    read = [read_conversation(row) for row in load_rows(tmp_path / "json")]
    assert [arguments_of(each) for each in read] == [[value] for value in values]
    assert len([read_conversation(row) for row in load_rows(tmp_path / "saved")]) == 2


def test_a_map_of_arrow_is_an_object_with_its_nulls(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'whetstone-rl[datasets]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    function = pyarrow.struct(
        [("name", pyarrow.string()), ("arguments", pyarrow.map_(pyarrow.string(), pyarrow.string()))]
    )
    fields = [("role", pyarrow.string()), ("content", pyarrow.string()), ("function_call", function)]
    call = {"name": "lookup", "arguments": [("ticket", "7"), ("assignee", None)]}
    rows = [[USER, {"role": "assistant", "function_call": call}]]
    table = pyarrow.table({"messages": pyarrow.array(rows, pyarrow.list_(pyarrow.struct(fields)))})
    parquet.write_table(table, tmp_path / "a.parquet")
    (read,) = [read_conversation(row) for row in load_rows(tmp_path / "a.parquet")]
    assert arguments_of(read) == [{"ticket": "7", "assignee": None}]


SCHEMAS = [
    {"type": "object", "properties": {"city": {"type": "string", "description": "where"}}, "required": ["city"]},
    {"type": "object", "properties": {"year": {"type": "integer", "enum": [1, 2]}, "deep": {
        "type": "object", "properties": {"a": {"type": "string"}}}}},
]  # fmt: skip


@everywhere
@pytest.mark.parametrize("as_text", [False, True])
def test_tools_have_no_parameters_of_other_tools(tmp_path, format, container, as_text):
    rows = []
    for schema in SCHEMAS:
        tools = [{"type": "function", "function": {"name": "lookup", "description": "Find", "parameters": schema}}]
        rows.append(([USER, DONE], {"tools": json.dumps(tools) if as_text else tools}))
    read = read_back(tmp_path, format, container, rows)
    assert [each.tools[0].parameters for each in read] == SCHEMAS


@every_format
def test_nulls_in_a_schema_are_values_or_absent(format):
    properties = {
        "year": None, "default": None, "size": {"type": ["integer", "null"], "default": None, "enum": [1, None]}
    }  # fmt: skip
    tools = [{"name": "lookup", "description": None, "parameters": {"type": "object", "properties": properties}}]
    (tool,) = read_row(format, [USER, DONE], tools=tools).tools
    assert tool.parameters["properties"] == {"size": properties["size"]}
    assert tool.description == ""


DEEP = st.fixed_dictionaries({}, optional={"a": st.text(max_size=2), "b": st.booleans()})
TAGS = st.lists(st.none() | st.text(max_size=2))
TREES = st.fixed_dictionaries(
    {}, optional={"city": st.text(max_size=3), "year": st.integers(0, 9), "tags": TAGS, "deep": DEEP}
)
FULL = {"city": "x", "year": 1, "tags": ["x"], "deep": {"a": "x", "b": True}}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(TREES, min_size=1, max_size=4))
@pytest.mark.parametrize("container", list(CONTAINERS))
def test_any_optional_fields_come_back(container, values):
    """The first row has every field, so that each of the others is padded."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [(called(value), {}) for value in [FULL, *values]]
        read = read_back(Path(folder), "messages", container, rows)
    assert [arguments_of(each) for each in read] == [[value] for value in [FULL, *values]]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@settings(max_examples=30, deadline=None)
@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
@every_format
def test_arguments_are_equal_as_an_object_and_as_text(format, value):
    as_object, as_text = (read_row(format, called(each)) for each in (value, json.dumps(value)))
    assert arguments_of(as_object) == arguments_of(as_text) == [value]


# Calls and results


def pair(calls, results):
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results, DONE]


def results_by_call(conversation):
    """Name of the call → text of its result."""
    names = {call.id: call.name for message in conversation.messages for call in message.tool_calls}
    return {names[m.tool_call_id]: m.text for m in conversation.messages if m.role == "tool"}


@everywhere
def test_results_without_ids_are_paired_by_name(tmp_path, format, container):
    results = [
        {"role": "tool", "name": "stock", "content": "9 left"},
        {"role": "tool", "name": "price", "content": "4"},
    ]
    (read,) = read_back(tmp_path, format, container, [(pair([PRICE, STOCK], results), {})])
    assert results_by_call(read) == {"stock": "9 left", "price": "4"}


@every_format
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_ids_come_before_names_and_names_before_positions(format, order):
    calls = [{**PRICE, "id": "a"}, STOCK, {"type": "function", "function": {"name": "ask", "arguments": "{}"}}]
    by = [{"tool_call_id": "a", "content": "4"}, {"name": "stock", "content": "9"}, {"content": "yes"}]
    read = read_row(format, pair(calls, [{"role": "tool", **by[k]} for k in order]))
    assert results_by_call(read) == {"price": "4", "stock": "9", "ask": "yes"}


@every_format
def test_results_of_one_name_are_paired_in_order(format):
    results = [{"role": "tool", "name": "price", "content": text} for text in ("first", "second")]
    read = read_row(format, pair([{**PRICE, "id": "x"}, {**PRICE, "id": "x"}], results))
    assert [m.tool_call_id for m in read.messages if m.role == "tool"] == ["call_0_0", "call_0_1"]


@every_format
@pytest.mark.parametrize(
    "result",
    [{"name": "refund"}, {"tool_call_id": "z"}, {"tool_call_id": "a", "name": "stock"}],
    ids=["name", "id", "id and name"],
)
def test_a_result_of_no_open_call_is_rejected(format, result):
    with pytest.raises(
        DataError, match=r"^chats.jsonl:7  \w+\[\d\]: the tool result \(.*\) matches no open call; open calls: price"
    ):
        read_row(format, pair([{**PRICE, "id": "a"}], [{"role": "tool", "content": "4", **result}]))


@every_format
def test_a_second_result_of_a_call_is_rejected(format):
    results = [{"role": "tool", "name": "price", "content": "4"}] * 2
    with pytest.raises(DataError, match="matches no open call"):
        read_row(format, pair([PRICE], results))


@everywhere
def test_legacy_function_calls_are_read(tmp_path, format, container):
    call = {"role": "assistant", "content": None, "function_call": {"name": "price", "arguments": '{"item": null}'}}
    messages = [USER, call, {"role": "function", "name": "price", "content": "4"}, DONE]
    (read,) = read_back(tmp_path, format, container, [(messages, {})])
    assert [(call.name, call.arguments) for call in read.messages[1].tool_calls] == [("price", '{"item": null}')]
    assert results_by_call(read) == {"price": "4"}
    assert read.unread == ()


CALL_TEXT = '{"name": "price", "arguments": {"item": "tea", "size": null}}'


@pytest.mark.parametrize("container", list(CONTAINERS))
@pytest.mark.parametrize(
    ("caller", "observer"),
    [("function_call", "observation"), ("tool_call", "tool_response"), ("tool_call", "tool"),
     ("function_call", "function_response"), ("Function_Call", "Observation")],
)  # fmt: skip
def test_roles_of_calls_are_read(tmp_path, container, caller, observer):
    rows = [{"from": "human", "value": "q"}, {"from": caller, "value": CALL_TEXT}, {"from": observer, "value": "4"},
            {"from": "gpt", "value": "done"}]  # fmt: skip
    path = CONTAINERS[container](tmp_path, [{"conversations": rows}])
    (read,) = [read_conversation(row) for row in load_rows(path)]
    assert arguments_of(read) == [{"item": "tea", "size": None}]
    assert [message.role for message in read.messages] == ["user", "assistant", "tool", "assistant"]
    by_role = [{"role": each["from"], "content": each["value"]} for each in rows]
    assert read_conversation(Row("a", {"messages": by_role})).messages == read.messages


@pytest.mark.parametrize("value", [f"[{CALL_TEXT}, {CALL_TEXT}]", None], ids=["list", "messages"])
def test_calls_of_one_turn_are_one_message(value):
    calls = [value] if value else [CALL_TEXT, CALL_TEXT]
    rows = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "let me see"},
            *({"from": "function_call", "value": each} for each in calls),
            *({"from": "observation", "value": each} for each in ("4", "5")),
            {"from": "gpt", "value": "done"}]  # fmt: skip
    read = read_conversation(Row("a", {"conversations": rows}))
    assert [(m.role, m.text, len(m.tool_calls)) for m in read.messages[1:4]] == [
        ("assistant", "let me see", 2), ("tool", "4", 0), ("tool", "5", 0)
    ]  # fmt: skip


def test_a_turn_whose_messages_have_different_marks_stays_separate():
    rows = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "BAD", "weight": 0},
            {"from": "function_call", "value": CALL_TEXT}]  # fmt: skip
    read = read_conversation(Row("a", {"conversations": rows}))
    assert read.get_trained_turns(all_assistant_turns) == (2,)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("price(tea)", "not JSON"),
        ('{"arguments": {}}', "a tool call must have a name"),
        ('{"name": "a", "arguments": [1]}', "object"),
    ],
)
def test_a_call_that_cannot_be_read_is_rejected(value, problem):
    rows = [{"from": "human", "value": "q"}, {"from": "function_call", "value": value}]
    with pytest.raises(DataError, match=rf"^a:1  conversations\[1\]\.value.*{problem}"):
        read_conversation(Row("a:1", {"conversations": rows}))


# Columns and keys


@everywhere
def test_a_key_that_nothing_reads_is_reported(tmp_path, format, container):
    rows = [([USER, {**DONE, "wieght": 0}], {"source": "web"}), ([USER, {**DONE, "mood": "good"}], {"source": "web"})]
    usage = DataUsage()
    for conversation in read_back(tmp_path, format, container, rows):
        usage.add(conversation)
    column = {"messages": "messages", "sharegpt": "conversations", "completion": "completion", "pair": "chosen"}[format]
    assert usage.unread == {"source": 2, f"{column}[].wieght": 1, f"{column}[].mood": 1}
    line = usage.describe(Path("a.jsonl"))[1]
    assert line.startswith("a.jsonl: keys without effect: source (2 rows), ")
    assert f'{column}[].wieght (1 row; did you mean "weight"?)' in line


def test_keys_of_tools_calls_and_parts_are_reported_too():
    tool = {"type": "function", "function": {"name": "price", "parameters": {}, "strict": True}, "cost": 3}
    call = {**PRICE, "function": {**PRICE["function"], "result": "4"}, "seconds": 2}
    parts = [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": parts, "name": "Ann"}, {"role": "assistant", "tool_calls": [call]}]
    assert set(read_conversation(Row("a", {"messages": messages, "tools": [tool]})).unread) == {
        "messages[].content[].cache_control", "messages[].name", "messages[].tool_calls[].seconds",
        "messages[].tool_calls[].function.result", "tools[].cost", "tools[].function.strict",
    }  # fmt: skip


@everywhere
def test_a_conversation_without_other_keys_reports_none(tmp_path, format, container):
    messages = [{"role": "system", "content": "s"}, *called({"a": 1})]
    tools = [{"type": "function", "function": {"name": "lookup", "description": "d", "parameters": SCHEMAS[0]}}]
    (read,) = read_back(tmp_path, format, container, [(messages, {"tools": tools})])
    assert read.unread == ()


@everywhere
def test_system_is_a_column_of_every_format(tmp_path, format, container):
    rows = [([USER, DONE], {"system": "be brief"}), ([{"role": "system", "content": "be brief"}, USER, DONE], {})]
    one, other = read_back(tmp_path, format, container, rows)
    assert one.messages == other.messages
    assert one.messages[0].text == "be brief"
    assert one.unread == ()
    with pytest.raises(DataError, match=r"system: differs from the system message \w+\[0\]"):
        read_row(format, [{"role": "system", "content": "be long"}, USER, DONE], system="be brief")


@everywhere
@pytest.mark.parametrize("column", ["tools", "functions"])
def test_tools_are_a_column_of_every_format(tmp_path, format, container, column):
    declared = {"name": "lookup", "description": "d", "parameters": SCHEMAS[0]}
    (read,) = read_back(tmp_path, format, container, [(called({"city": "Oslo"}), {column: [declared]})])
    assert [(tool.name, tool.parameters) for tool in read.tools] == [("lookup", SCHEMAS[0])]


@every_format
@pytest.mark.parametrize("key", ["parameters", "inputSchema", "input_schema"])
def test_schemas_of_other_apis_are_read(format, key):
    read = read_row(format, [USER, DONE], tools=[{"name": "lookup", "description": "d", key: SCHEMAS[0]}])
    assert read.tools[0].parameters == SCHEMAS[0]


@everywhere
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_read_in_every_format(tmp_path, format, container, key):
    (read,) = read_back(tmp_path, format, container, [([USER, {**DONE, key: "hm"}], {})])
    assert read.messages[1].text == "<think>\nhm\n</think>\n\ndone"


@every_format
def test_thoughts_stay_before_content_in_parts(format):
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "done"}]
    one = read_row(format, [USER, {"role": "assistant", "content": parts}])
    other = read_row(format, [USER, {"role": "assistant", "content": parts[1:], "reasoning_content": "hm"}])
    assert one.messages[1].text == other.messages[1].text == "<think>\nhm\n</think>\n\ndone"


@every_format
@pytest.mark.parametrize("where", ["row", "message"])
def test_images_outside_of_content_parts_are_refused(format, where):
    own = {"images": ["a.png"]} if where == "message" else {}
    more = {"images": ["a.png"]} if where == "row" else {}
    with pytest.raises(DataError, match=r"images: media are read from content parts"):
        read_row(format, [{**USER, **own}, DONE], **more)
    assert read_row(format, [USER, DONE], images=[]).unread == ()


def test_a_column_of_lists_is_a_list_of_messages():
    columns = {"from": ["human", "gpt"], "value": ["q", "done"]}
    read = read_conversation(Row("a", {"conversations": columns}))
    assert [(m.role, m.text) for m in read.messages] == [("user", "q"), ("assistant", "done")]


# Marks


MARKED = [("weight", 0), ("weight", 0.0), ("loss", False), ("loss_weight", 0.0), ("loss_mask", 0), ("train", False),
          ("trainable", False), ("training", False), ("train_on_turn", False), ("masked", True)]  # fmt: skip


def two_turns(**bad):
    return [USER, {"role": "assistant", "content": "BAD", **bad}, {"role": "user", "content": "r"},
            {"role": "assistant", "content": "GOOD"}]  # fmt: skip


@every_format
@pytest.mark.parametrize(("mark", "value"), MARKED)
def test_a_marked_message_is_not_trained(format, mark, value):
    read = read_row(format, two_turns(**{mark: value}))
    assert trained_texts(read) == ["GOOD"]
    assert read.count_exclusions(all_assistant_turns) == {f"{mark}: {json.dumps(value)}": 1}
    assert read.unread == ()


@everywhere
def test_marks_survive_every_container(tmp_path, format, container):
    rows = [(two_turns(train=False), {}), (two_turns(), {}), (two_turns(train=True), {})]
    read = read_back(tmp_path, format, container, rows)
    assert [trained_texts(each) for each in read] == [["GOOD"], ["BAD", "GOOD"], ["BAD", "GOOD"]]


@everywhere
@pytest.mark.parametrize(("mark", "value"), [("weight", 0), ("loss", False), ("train", False), ("trainable", False)])
def test_a_marked_row_is_not_trained(tmp_path, format, container, mark, value):
    rows = [(two_turns(), {mark: value}), (two_turns(), {mark: type(value)(1)})]
    read = read_back(tmp_path, format, container, rows)
    assert [trained_texts(each) for each in read] == [[], ["BAD", "GOOD"]]
    assert read[0].count_exclusions(all_assistant_turns) == {f"row {mark}: {json.dumps(value)}": 2}


@every_format
@pytest.mark.parametrize(
    ("marks", "row"),
    [({"weight": 0, "train": True}, {}), ({"loss": True, "masked": True}, {}), ({"train": True}, {"weight": 0}),
     ({}, {"weight": 0, "loss": True})],
)  # fmt: skip
def test_contradictory_marks_are_rejected(format, marks, row):
    with pytest.raises(DataError, match="contradict"):
        read_row(format, two_turns(**marks), **row)


@every_format
@pytest.mark.parametrize(
    ("mark", "value"),
    [("weight", 0.5), ("weight", "no"), ("loss", [0, 1]), ("mask", True), ("train_detail", [{"begin_offset": 0}]),
     ("assistant_masks", [0, 1])],
)  # fmt: skip
def test_a_mark_that_cannot_be_followed_is_rejected(format, mark, value):
    for messages, row in ((two_turns(**{mark: value}), {}), (two_turns(), {mark: value})):
        with pytest.raises(DataError, match=mark):
            read_row(format, messages, **row)


def test_a_mark_that_would_train_the_user_is_reported():
    messages = [{**USER, "train": True}, DONE]
    assert read_conversation(Row("a", {"messages": messages})).unread == ("messages[].train: true (user)",)
    assert read_conversation(Row("a", {"messages": [{**USER, "train": False}, DONE]})).unread == ()


@pytest.mark.parametrize("container", list(CONTAINERS))
def test_turns_of_a_prompt_are_context(tmp_path, container):
    row = {"prompt": two_turns()[:3], "completion": two_turns()[3:]}
    path = CONTAINERS[container](tmp_path, [row])
    (read,) = [read_conversation(row) for row in load_rows(path)]
    assert trained_texts(read) == ["GOOD"]
    assert read.count_exclusions(all_assistant_turns) == {"prompt": 1}


@pytest.mark.parametrize("column", ["prompt", "messages", "conversations"])
@pytest.mark.parametrize("as_list", [True, False])
def test_turns_of_a_prompt_of_a_pair_are_context(column, as_list):
    make = as_sharegpt if column == "conversations" else as_messages
    (prompt,) = make(two_turns()[:3]).values()
    sides = {side: {"role": "assistant", "content": side} for side in ("chosen", "rejected")}
    read = read_preference(Row("a", {column: prompt, **{k: [v] if as_list else v for k, v in sides.items()}}))
    assert [trained_texts(each) for each, _ in read.answers] == [["chosen"], ["rejected"]]
    assert read.is_trained


def test_a_pair_repeats_its_prompt_or_not():
    system = {"role": "system", "content": "s"}
    sides = [{"role": "assistant", "content": side} for side in ("a", "b")]
    rows = [
        {"prompt": "q", "chosen": [USER, sides[0]], "rejected": [USER, sides[1]], "system": "s"},
        {"prompt": "q", "chosen": [system, USER, sides[0]], "rejected": [system, USER, sides[1]]},
        {"prompt": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}], "chosen": "a", "rejected": "b"},
    ]
    read = [read_preference(Row("a", row)) for row in rows]
    assert all(each.shared == 2 for each in read)
    assert len({tuple(conversation.messages for conversation, _ in each.answers) for each in read}) == 1


@pytest.mark.parametrize("make", [as_messages, as_sharegpt])
def test_a_rated_conversation_compares_its_last_answer(make):
    read = read_preference(Row("a", make(two_turns(), label=True)))
    assert [(trained_texts(each), value) for each, value in read.answers] == [(["GOOD"], 1.0)]


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_with_an_excluded_answer_is_not_trained(side):
    sides = {name: [USER, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    sides[side][1]["loss"] = False
    assert not read_preference(Row("a", sides)).is_trained


def test_a_marked_text_is_not_trained():
    usage = DataUsage("texts")
    rows = [Row("a", {"text": "BAD", "weight": 0}), Row("a", {"text": "GOOD", "topic": "tea"})]
    assert [get_text(row) for row in rows if not usage.add_row(row, ("text",))] == ["GOOD"]
    assert usage.describe(Path("a.jsonl")) == [
        "a.jsonl: 1 of 2 texts are trained; excluded: row weight: 0 (1)", "a.jsonl: keys without effect: topic (1 row)"
    ]  # fmt: skip


def test_usage_counts_turns_by_reason():
    usage = DataUsage()
    for row in ({"messages": two_turns(weight=0)}, {"prompt": two_turns()[:3], "completion": ""}):
        usage.add(read_conversation(Row("a", row)), chosen=LEARNED_FROM["all"])
    usage.add(read_conversation(Row("a", {"messages": called({})})), chosen=LEARNED_FROM["answers"])
    reasons = "weight: 0 (1); prompt (1); empty answer (1); train_on (1)"
    assert usage.describe(Path("a.jsonl")) == [f"a.jsonl: 2 of 6 assistant turns are trained; excluded: {reasons}"]


# Refusals and empty answers


@everywhere
def test_a_refusal_is_the_answer(tmp_path, format, container):
    rows = [([USER, {"role": "assistant", "content": None, "refusal": "I cannot"}], {}), ([USER, DONE], {})]
    read = read_back(tmp_path, format, container, rows)
    assert trained_texts(read[0]) == ["I cannot"]
    assert read[0].unread == read[1].unread == ()


@everywhere
def test_a_part_with_a_refusal_is_the_answer(tmp_path, format, container):
    rows = [([{"role": "user", "content": [{"type": "text", "text": "q"}]},
              {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot"}]}], {})]  # fmt: skip
    assert trained_texts(read_back(tmp_path, format, container, rows)[0]) == ["I cannot"]


EMPTY = [{"content": None}, {}, {"content": ""}, {"content": []}, {"content": " \n"},
         {"content": None, "refusal": None}, {"content": None, "tool_calls": []},
         {"content": None, "reasoning_content": "hm"},
         {"content": "<think>\nhm\n</think>\n\n"}, {"content": [{"type": "text", "text": None}]}]  # fmt: skip


@every_format
@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_an_empty_answer_is_not_trained(format, empty):
    read = read_row(format, [USER, {"role": "assistant", **empty}, USER, DONE])
    assert trained_texts(read) == ["done"]
    assert read.count_exclusions(all_assistant_turns) == {"empty answer": 1}


@everywhere
def test_an_empty_answer_is_excluded_in_every_container(tmp_path, format, container):
    rows = [([USER, {"role": "assistant", "content": None}, USER, DONE], {}), ([USER, DONE], {})]
    read = read_back(tmp_path, format, container, rows)
    assert [trained_texts(each) for each in read] == [["done"], ["done"]]


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_completion_is_not_trained(empty):
    assert (
        read_conversation(Row("a", {"prompt": "q", "completion": empty})).get_trained_turns(all_assistant_turns) == ()
    )
    assert not read_preference(Row("a", {"prompt": "q", "chosen": "a", "rejected": empty})).is_trained
    assert not read_preference(Row("a", {"prompt": "q", "completion": empty, "label": True})).is_trained


@every_format
def test_a_call_without_text_is_trained(format):
    assert len(read_row(format, called({"a": 1})).get_trained_turns(all_assistant_turns)) == 2


def test_tables_are_those_with_structs():
    assert set(TABLES) < set(CONTAINERS)
    assert write_dataset in CONTAINERS.values()


# Any row


SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "user", "gpt", "tool", "[", "{}"])
KEYS = st.sampled_from(
    ["role", "from", "content", "value", "tool_calls", "function_call", "function", "name", "arguments", "type", "text",
     "id", "tool_call_id", "weight", "train", "mask", "refusal", "thinking", "image_url", "images", "parameters",
     "malformed", "properties", "default"]
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
LIKELY = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function_call"])},
    optional=dict.fromkeys(("content", "tool_calls", "function_call", "thinking", "name"), ANYTHING),
)
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        name: ANYTHING | st.lists(LIKELY, max_size=4)
        for name in (
            "messages",
            "conversations",
            "prompt",
            "completion",
            "chosen",
            "rejected",
            "label",
            "tools",
            "system",
        )
    },
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(columns=COLUMNS)
def test_any_row_is_read_or_rejected_with_its_place(columns):
    for read in (read_conversation, read_preference):
        try:
            read(Row("rows.jsonl:3", columns))
        except DataError as error:
            place = str(error)[: len("rows.jsonl:3  ")]
        else:
            continue
        assert place == "rows.jsonl:3  "


@every_format
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"item": ', "not JSON"),
        ('{"item": NaN}', "NaN is not a number of JSON"),
        ('{"item": 1e999}', "1e999 is out of range"),
        ('{"item": 1, "item": 2}', 'the key "item" occurs twice'),
        ("[1]", "the value must be a JSON object, got list"),
        ("null", "the value must be a JSON object, got NoneType"),
        ([1], "an object is expected, got list"),
        ({"item": float("nan")}, "Out of range"),
    ],
)
def test_arguments_that_are_no_object_of_json_are_reported_with_their_path(format, arguments, problem):
    with pytest.raises(
        DataError, match=rf"^chats\.jsonl:7  .*\[\d\]\.tool_calls\[0\]\.function\.arguments: .*{problem}"
    ):
        read_row(format, called(arguments))


@every_format
def test_ids_of_calls_may_be_numbers(format):
    calls = [{**PRICE, "id": 1}, {**STOCK, "id": 2}]
    results = [{"role": "tool", "tool_call_id": k, "content": str(k)} for k in (2, 1)]
    read = read_row(format, [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results, DONE])
    texts = {message.tool_call_id: message.text for message in read.messages if message.role == "tool"}
    assert texts == {"call_0_0": "1", "call_0_1": "2"}


def test_marks_and_labels_of_csv_are_texts(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion,weight\nq,a,0\nq,b,1\nq,c,\nq,d,False\nq,e,2\n")
    rows = load_rows(path)
    assert [trained_texts(read_conversation(row)) for row in rows[:4]] == [[], ["b"], ["c"], []]
    assert read_conversation(rows[0]).exclusions == ("", "row weight: 0")
    with pytest.raises(DataError, match=r"row 5  weight: a mark is true, false, 1 or 0, got '2'"):
        read_conversation(rows[4])
    path.write_text("prompt,completion,label\nq,a,true\nq,b,False\nq,c,1\nq,d,0\nq,e,good\n")
    rows = load_rows(path)
    assert [read_preference(row).answers[0][1] for row in rows[:4]] == [1.0, 0.0, 1.0, 0.0]
    with pytest.raises(DataError, match="row 5  label: true or false is expected, got 'good'"):
        read_preference(rows[4])
