# ruff: noqa: E501 - tables are lines
"""Import of conversations from traces: every format, every reason, damaged files; and episodes as spans."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.episodes import path as episode
from trace_writers import (
    CONVENTIONS,
    SHAPES,
    Example,
    write_csv_messages,
    write_hermes,
    write_langfuse_lines,
    write_lines,
    write_openai,
    write_otel,
    write_sharegpt,
)
from whetstone.chat import Image, Message, Text, ToolCall, ToolSpec, assistant, tool_result, user
from whetstone.data import read_conversation
from whetstone.data.row_readers import Row
from whetstone.data.traces.import_conversations import ConversationImporter, ImportOptions, conversation_row, load_tools
from whetstone.data.traces.otel_export import export_episode
from whetstone.data.traces.otel_spans import read_otel
from whetstone.data.traces.records import RefusalReason
from whetstone.data.traces.trace_formats import FORMATS, detect_format, find_format
from whetstone.errors import DataError
from whetstone.trajectory import EndReason, Tokens, Turn

PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
WRITERS = [pytest.param(name, writer, id=f"{shape}-{name}") for shape, each in SHAPES.items() for name, writer in each]


def call(item, id):
    return {"id": id, "type": "function", "function": {"name": "price", "arguments": json.dumps({"item": item})}}


def shop(item="tea", *, system="You are a shop.", text="", tools=(PRICE,)):
    """A conversation with two calls in one turn, their results, an answer, a question and its answer."""
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f'{item}, rice?\n"quoted", ümläut'},
        {"role": "assistant", "content": text, "tool_calls": [call(item, f"{item}-1"), call("rice", f"{item}-2")]},
        {"role": "tool", "tool_call_id": f"{item}-1", "content": "4"},
        {"role": "tool", "tool_call_id": f"{item}-2", "content": "7, now"},
        {"role": "assistant", "content": f"{item}: 4\nrice: 7"},
        {"role": "user", "content": "Thanks!"},
        {"role": "assistant", "content": "You are welcome."},
    ]
    return Example(f"id {item} {system}", messages if system else messages[1:], tools)


def expected(example):
    """The row of a conversation as the reader of data files understands it."""
    columns = {"messages": list(example.messages), "tools": list(example.tools)}
    return conversation_row(read_conversation(Row("x", columns)))


def imported(*paths, source="auto", columns=None, **options):
    importer = ConversationImporter(ImportOptions(**options))
    outcomes = list(importer.read([(path, find_format(path, source, columns)) for path in paths]))
    report = importer.report
    assert report.records == report.num_conversations + report.merged + report.other.total() or source == "csv"
    assert len(outcomes) == report.num_conversations
    return [json.loads(each.line) for each in outcomes if each.line is not None], report


def refused(path, **how):
    """The reasons of an import, each with its first place."""
    _, report = imported(path, **how)
    return {reason: report.places[reason][0] for reason in report.refused}


@pytest.mark.parametrize(("name", "writer"), WRITERS)
@pytest.mark.parametrize("text", ["", "I look it up."])
def test_each_format_is_detected_and_read_exactly(name, writer, text, tmp_path):
    examples = [shop(item, text=text, system=system) for item in ("tea", "salt", "milk") for system in ("Hi.", "")]
    writer(tmp_path / name, examples)
    rows, report = imported(tmp_path / name)
    assert sorted(map(json.dumps, rows)) == sorted(json.dumps(expected(each)) for each in examples)
    assert not report.refused


@pytest.mark.parametrize("place", range(len(CONVENTIONS)), ids=[each.__name__ for each in CONVENTIONS])
def test_each_convention_of_spans_is_read(place, tmp_path):
    write_otel(tmp_path / "spans.jsonl", [shop(str(number)) for number in range(place + 1)])
    rows, report = imported(tmp_path / "spans.jsonl")
    assert rows[place] == expected(shop(str(place)))
    assert report.merged == 2 * (place + 1)
    assert report.other == {"execute_tool span": 2 * (place + 1), "invoke_agent span": place + 1}


def test_log_records_of_a_span_are_one_call(tmp_path):
    messages = shop().messages
    names = [f"gen_ai.{message['role']}.message" for message in messages]
    bodies = [
        {"content": m.get("content"), "tool_calls": m.get("tool_calls"), "id": m.get("tool_call_id")} for m in messages
    ]
    logs = [
        {"traceId": "t", "spanId": "s", "eventName": name, "body": to_any({k: v for k, v in body.items() if v})}
        for name, body in zip(names, bodies, strict=True)
    ][:-1]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "You are welcome."}}
    logs.append({"traceId": "t", "spanId": "s", "eventName": "gen_ai.choice", "body": to_any(choice)})
    for log in logs:  # a line per record
        with open(tmp_path / "logs.jsonl", "a") as file:
            file.write(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}) + "\n")
    assert set(refused(tmp_path / "logs.jsonl")) == {RefusalReason.MISSING_SCHEMA}
    rows, _ = imported(tmp_path / "logs.jsonl", tools=[PRICE])
    assert rows == [expected(shop())]


def to_any(value):
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": to_any(each)} for key, each in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [to_any(each) for each in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def test_an_imported_file_is_read_again_unchanged(tmp_path):
    write_hermes(tmp_path / "hermes.jsonl", [shop("tea"), shop("salt", text="I look.")])
    rows, _ = imported(tmp_path / "hermes.jsonl")
    write_lines(tmp_path / "again.jsonl", rows)
    assert imported(tmp_path / "again.jsonl")[0] == rows
    assert detect_format(tmp_path / "hermes.jsonl") == "hermes"


def altered(change):
    """A conversation after a change of its messages."""
    messages = [json.loads(json.dumps(each)) for each in shop().messages]
    change(messages)
    return Example("x", messages, (PRICE,))


def _remove(messages):
    del messages[4]


def _orphan(messages):
    messages.insert(7, {"role": "tool", "tool_call_id": "x", "content": "5"})


def _undeclared(messages):
    messages[2]["tool_calls"][0]["function"]["name"] = "prices"


def _no_answer(messages):
    del messages[2:]


def _no_opening(messages):
    del messages[:2]


def _secret(messages):
    messages[1]["content"] = "key AKIA" + "IOSFODNN7EXAMPLE"


REASONS = {
    RefusalReason.MISSING_RESULT: _remove,
    RefusalReason.MISSING_CALL: _orphan,
    RefusalReason.UNDECLARED: _undeclared,
    RefusalReason.NO_ANSWER: _no_answer,
    RefusalReason.FIRST_ROLE: _no_opening,
    RefusalReason.SECRET: _secret,
}


@pytest.mark.parametrize("writer", [write_openai, write_sharegpt, write_langfuse_lines, write_csv_messages])
@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_is_reported_with_its_place(reason, writer, tmp_path):
    example = altered(REASONS[reason])
    if reason is RefusalReason.NO_ANSWER and writer is write_langfuse_lines:
        return  # an export of calls has no conversation without an output
    path = tmp_path / ("x.csv" if writer is write_csv_messages else "x.json" if writer is write_sharegpt else "x.jsonl")
    writer(path, [shop("good"), example])
    rows, report = imported(path)
    assert expected(shop("good")) in rows
    assert list(report.refused) == [reason]
    assert str(path) in report.places[reason][0]


@pytest.mark.parametrize(
    ("message", "reason", "detail"),
    [
        ({"role": "narrator", "content": "x"}, RefusalReason.UNKNOWN_ROLE, '"narrator"'),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, RefusalReason.UNSUPPORTED, "image_url"),
        ({"role": "user", "parts": [{"type": "blob", "modality": "audio"}]}, RefusalReason.UNSUPPORTED, "blob (audio)"),
        ({"role": "user", "content": "x", "images": ["a.png"]}, RefusalReason.UNSUPPORTED, "images"),
        ({"role": "user", "content": "abc… [truncated]"}, RefusalReason.TRUNCATED, "mark of truncation"),
        ({"role": "assistant", "content": "a", "finish_reason": "length"}, RefusalReason.TRUNCATED, "token limit"),
        ({"type": "ai", "content": "", "invalid_tool_calls": [{"name": "price"}]}, RefusalReason.ARGUMENTS, "price"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, RefusalReason.ARGUMENTS, "f: not JSON"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "name": "f", "input": "x"}]}, RefusalReason.UNSUPPORTED, "custom f"),
        ({"role": "assistant", "content": "<tool_call>\n{name: f}\n</tool_call>"}, RefusalReason.ARGUMENTS, "not JSON"),
        ({"role": "assistant", "content": '<tool_call>{"name": "f"'}, RefusalReason.TRUNCATED, "without </tool_call>"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_trained_is_refused_by_name(message, reason, detail, tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"messages": [{"role": "user", "content": "Hi"}, message]}])
    places = refused(tmp_path / "x.jsonl")
    assert list(places) == [reason]
    assert detail in places[reason]


def test_calls_in_separate_rows_without_results_are_not_one_turn(tmp_path):
    turn = {"from": "function_call", "value": json.dumps({"name": "price", "arguments": {}})}
    row = {"conversations": [{"from": "human", "value": "?"}, turn, turn], "tools": json.dumps([PRICE])}
    write_lines(tmp_path / "x.jsonl", [row])
    assert list(refused(tmp_path / "x.jsonl")) == [RefusalReason.MISSING_RESULT]
    result = {"from": "observation", "value": "4"}
    write_lines(tmp_path / "x.jsonl", [{**row, "conversations": [*row["conversations"], result, result]}])
    assert not refused(tmp_path / "x.jsonl")


def test_duplicates_are_refused_with_the_first_place(tmp_path):
    write_openai(tmp_path / "x.jsonl", [shop(), shop("salt"), shop()])
    places = refused(tmp_path / "x.jsonl")
    assert places == {RefusalReason.DUPLICATE: f"{tmp_path}/x.jsonl:3  of {tmp_path}/x.jsonl:1"}


def test_tools_without_schema_are_refused_or_taken_from_a_file(tmp_path):
    write_openai(tmp_path / "x.jsonl", [replace(shop(), tools=[{"type": "function", "function": {"name": "price"}}])])
    assert list(refused(tmp_path / "x.jsonl")) == [RefusalReason.MISSING_SCHEMA]
    write_openai(tmp_path / "y.jsonl", [replace(shop(), tools=())])
    assert list(refused(tmp_path / "y.jsonl")) == [RefusalReason.MISSING_SCHEMA]
    (tmp_path / "tools.json").write_text(json.dumps([PRICE["function"]]))
    assert imported(tmp_path / "y.jsonl", tools=load_tools(tmp_path / "tools.json"))[0] == [expected(shop())]


def test_secrets_are_refused_kept_or_redacted(tmp_path):
    write_openai(tmp_path / "x.jsonl", [altered(_secret)])
    assert imported(tmp_path / "x.jsonl")[0] == []
    (row,), report = imported(tmp_path / "x.jsonl", secrets="keep")
    assert "AKIA" in json.dumps(row)
    assert report.sensitive.total() == 1


# ------------------------------------------------------------ calls of one conversation


def test_a_branch_trains_only_its_own_turns(tmp_path):
    first = shop().messages
    other = [*first[:6], {"role": "user", "content": "And milk?"}, {"role": "assistant", "content": "None."}]
    rows = [
        {"id": str(k), "type": "GENERATION", "traceId": "t", "input": {"messages": each[:-1], "tools": [PRICE]}, "output": each[-1]}
        for k, each in enumerate((first, other))
    ]  # fmt: skip
    write_lines(tmp_path / "x.jsonl", rows)
    (one, two), report = imported(tmp_path / "x.jsonl")
    weights = [
        [message.get("weight", 1) for message in row["messages"] if message["role"] == "assistant"]
        for row in (one, two)
    ]
    assert weights == [[1, 1, 1], [0, 0, 1]]
    assert report.repeated_turns == 2


def test_reasoning_that_a_program_does_not_send_back_is_restored(tmp_path):
    messages = shop().messages
    rows = []
    for number, inputs, output in shop().calls():
        out = {**output, "reasoning_content": f"thought {number}"}
        both = {"messages": list(inputs), "tools": [PRICE]}
        rows.append({"id": str(number), "type": "GENERATION", "traceId": "t", "input": both, "output": out})
    write_lines(tmp_path / "x.jsonl", rows)
    (row,), _ = imported(tmp_path / "x.jsonl")
    texts = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    assert [f"thought {k}" in text for k, text in enumerate(texts)] == [True] * 3
    assert len(row["messages"]) == len(messages)


def test_a_trace_is_read_only_if_its_calls_are_not_in_the_file(tmp_path):
    write_langfuse_lines(tmp_path / "x.jsonl", [shop()])
    calls = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    trace = {
        "id": "trace-0",
        "timestamp": "…",
        "input": {"messages": shop().messages[:2]},
        "output": {"role": "assistant", "content": "4"},
    }
    write_lines(tmp_path / "x.jsonl", [trace, *calls])
    rows, report = imported(tmp_path / "x.jsonl")
    assert rows == [expected(shop())]
    assert report.other["summary of a trace"] == 1
    write_lines(tmp_path / "y.jsonl", [trace])
    assert [m["role"] for m in imported(tmp_path / "y.jsonl")[0][0]["messages"]] == ["system", "user", "assistant"]


def test_dropped_attributes_and_cut_off_json_are_truncated_content(tmp_path):
    write_otel(tmp_path / "x.jsonl", [shop("a"), shop("b")])
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    for span in lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span["droppedAttributesCount"] = 3
    write_lines(tmp_path / "dropped.jsonl", lines[:1])
    assert list(refused(tmp_path / "dropped.jsonl")) == [RefusalReason.TRUNCATED]
    for span in lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span["droppedAttributesCount"] = 0
        for pair in span["attributes"]:
            if pair["key"] == "gen_ai.input.messages":
                pair["value"]["stringValue"] = pair["value"]["stringValue"][:60]
    write_lines(tmp_path / "cut.jsonl", lines[:1])
    _, report = imported(tmp_path / "cut.jsonl")
    assert report.refused == {RefusalReason.TRUNCATED: 1}, "three calls of one trace are one conversation"
    assert report.merged == 2


# ------------------------------------------------------------ damaged files


@pytest.mark.parametrize(("name", "writer"), WRITERS)
def test_a_truncated_file_loses_only_its_end(name, writer, tmp_path):
    examples = [shop(str(number)) for number in range(6)]
    path = tmp_path / name
    writer(path, examples)
    undamaged = len(imported(path)[0])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 5])
    rows, report = imported(path)
    assert all(
        row in [expected(each) for each in examples]
        for row in rows
        if row["messages"][-1]["content"] == "You are welcome."
    )
    assert len(rows) <= undamaged
    assert report.refused[RefusalReason.UNREADABLE] or name == "messages.csv"


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
@pytest.mark.parametrize(
    "damage", ["{broken", '{"messages": [{"role": "user", "content": "\xff"}]}', '{"messages": ' + "[" * 100_000, "7"]
)
def test_one_broken_record_is_reported_and_the_others_are_read(name, damage, tmp_path):
    texts = [json.dumps({"messages": list(each.messages), "tools": [PRICE]}) for each in (shop("a"), shop("b"))]
    texts.insert(1, damage)
    joined = "\n".join(texts) if name == "x.jsonl" else "[\n" + ",\n".join(texts) + "\n]"
    (tmp_path / name).write_bytes(joined.encode("latin-1" if "\xff" in damage else "utf-8", errors="replace"))
    rows, report = imported(tmp_path / name)
    assert report.refused[RefusalReason.UNREADABLE] >= 1
    assert expected(replace(shop("a"), messages=shop("a").messages))["tools"] == rows[0]["tools"]
    assert len(rows) == (2 if damage != "7" or name == "x.jsonl" else len(rows))


def test_a_byte_order_mark_is_no_content(tmp_path):
    for name, writer in (("x.jsonl", write_openai), ("x.json", write_sharegpt)):
        writer(tmp_path / name, [shop()])
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
        assert imported(tmp_path / name)[0] == [expected(shop())]


def test_utf_16_and_other_files_are_rejected(tmp_path):
    (tmp_path / "x.jsonl").write_text("{}", encoding="utf-16")
    with pytest.raises(DataError, match="UTF-16"):
        find_format(tmp_path / "x.jsonl")
    (tmp_path / "y.jsonl").write_text("hello")
    with pytest.raises(DataError, match="not JSON"):
        find_format(tmp_path / "y.jsonl")
    write_lines(tmp_path / "z.jsonl", [{"a": 1}])
    with pytest.raises(DataError, match="unknown format, with the keys a; name the format with `--from`"):
        find_format(tmp_path / "z.jsonl")
    with pytest.raises(DataError, match="no such file"):
        find_format(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("source", [name for name in FORMATS if name != "csv"])
def test_the_wrong_format_refuses_every_record(source, tmp_path):
    write_sharegpt(tmp_path / "x.json", [shop()])
    write_otel(tmp_path / "y.jsonl", [shop()])
    path = tmp_path / ("y.jsonl" if source in ("openai", "sharegpt", "hermes") else "x.json")
    rows, report = imported(path, source=source)
    assert not rows
    assert report.num_conversations + report.other.total() == report.records


@pytest.mark.slow
@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda each: st.lists(each, max_size=4) | st.dictionaries(
    st.sampled_from(["role", "content", "parts", "type", "tool_calls", "function", "name", "arguments", "kwargs", "id", "data", "text", "messages"]), each, max_size=5), max_leaves=12))  # fmt: skip
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("shape", ["openai", "otel", "langfuse", "langsmith"])
def test_any_value_is_trained_or_refused(shape, value, tmp_path_factory):
    """`imported` asserts that each record is converted or counted with a reason."""
    rows = {
        "openai": {"messages": value, "tools": value},
        "otel": {"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "s", "attributes": [
            {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps(value)}}], "events": []}]}]}]},
        "langfuse": {"type": "GENERATION", "input": value, "output": value, "traceId": "t"},
        "langsmith": {"run_type": "llm", "inputs": {"messages": value}, "outputs": value},
    }  # fmt: skip
    path = tmp_path_factory.getbasetemp() / f"{shape}.jsonl"
    write_lines(path, [rows[shape]])
    imported(path, source=shape)


# ------------------------------------------------------------ CSV


def test_columns_of_a_table_are_named_by_the_user(tmp_path):
    (tmp_path / "x.csv").write_text(
        'ticket,author,body,note\n1,user,"Hi, ""you""\nthere",\n1,bot,Hello,n\n2,user,Lone,\n'
    )
    with pytest.raises(DataError, match="no column for the conversation: its usual names are conversation_id"):
        imported(tmp_path / "x.csv", source="csv")
    with pytest.raises(DataError, match='no column "tickets"; did you mean "ticket"'):
        imported(tmp_path / "x.csv", source="csv", columns={"conversation": "tickets"})
    rows, report = imported(tmp_path / "x.csv", source="csv", columns={"conversation": "ticket"})
    assert [message["content"] for message in rows[0]["messages"]] == ['Hi, "you"\nthere', "Hello"]
    assert report.refused == {RefusalReason.NO_ANSWER: 1}
    assert report.unread == {"note": 1}


# ------------------------------------------------------------ large files


@pytest.mark.slow
@pytest.mark.parametrize("is_list", [True, False])
def test_a_file_is_read_in_bounded_memory(is_list, tmp_path):
    """The largest number of bytes in use while records are read is a fraction of the file."""
    import tracemalloc

    line = json.dumps({"messages": [{"role": "user", "content": "x" * 20_000}, {"role": "assistant", "content": "y"}]})
    path = tmp_path / ("x.json" if is_list else "x.jsonl")
    path.write_text(("[" + ",".join([line] * 800) + "]") if is_list else "\n".join([line] * 800))
    tracemalloc.start()
    try:
        count = sum(1 for _ in FORMATS["openai"].read(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 800
    assert peak < path.stat().st_size / 2


# ------------------------------------------------------------ episodes as spans

TOOLS = (ToolSpec.from_openai(PRICE),)
WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
CALLS = st.dictionaries(st.sampled_from(["item", "n"]), st.none() | st.integers() | WORDS, max_size=2)


@st.composite
def episodes(draw):
    turns = []
    for number in range(draw(st.integers(1, 3))):
        calls = [ToolCall("price", draw(st.sampled_from([json.dumps, lambda v: json.dumps(v, separators=(",", ":"))]))(each), f"call_{number}_{k}")
                 for k, each in enumerate(draw(st.lists(CALLS, max_size=2)))]  # fmt: skip
        results = tuple(tool_result(draw(WORDS), call_id=each.id) for each in calls)
        following = results or (user(draw(WORDS)),)
        turns.append(
            Turn(Tokens.from_ids((1,), 0), Tokens.from_ids((2,), 0), assistant(draw(WORDS), *calls), following)
        )
    return episode("e 1", 0.5, turns, opening=draw(WORDS))


@given(episodes())
@settings(max_examples=15, deadline=None)
def test_exported_episodes_are_read_back_unchanged(tmp_path_factory, played):
    path = tmp_path_factory.getbasetemp() / "episodes.jsonl"
    write_lines(path, [export_episode(played, TOOLS)])
    records = [record for record in read_otel(path) if not record.other]
    own = [place for place, message in enumerate(played.messages) if message.role == "assistant"]
    assert len(records) == len(own)
    for record, place in zip(records, own, strict=True):
        assert record.problem is None
        assert [Message.from_openai(each) for each in record.messages] == [
            normal(each) for each in played.messages[: place + 1]
        ]
        assert [ToolSpec.from_openai(tool) for tool in record.tools] == list(TOOLS)


def normal(message):
    """A message with an empty text as one without content."""
    return message if message.text else replace(message, content=())


def test_spans_have_the_reward_and_one_id_per_span():
    (resource,) = export_episode(episode("e", 1.0), TOOLS, start_seconds=2)["resourceSpans"]
    spans = resource["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["invoke_agent", "chat policy"]
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert {len(span["spanId"]) for span in spans} == {16}
    assert {len(span["traceId"]) for span in spans} == {32}
    values = {pair["key"]: pair["value"] for pair in spans[0]["events"][0]["attributes"]}
    assert values["gen_ai.evaluation.score.value"] == {"doubleValue": 1.0}
    assert spans[1]["parentSpanId"] == spans[0]["spanId"]


def test_a_turn_that_ends_at_the_token_limit_and_an_image_are_refused_when_read_back(tmp_path):
    write_lines(tmp_path / "x.jsonl", [export_episode(episode("e", 1.0, ended=EndReason.MAX_TOKENS))])
    assert list(refused(tmp_path / "x.jsonl")) == [RefusalReason.TRUNCATED]
    seen = replace(episode("e", 1.0), opening=(Message("user", (Text("?"), Image("data:image/png;base64,AA"))),))
    write_lines(tmp_path / "y.jsonl", [export_episode(seen)])
    assert "uri (image)" in refused(tmp_path / "y.jsonl")[RefusalReason.UNSUPPORTED]


def test_the_binary_format_is_read_by_the_package_of_opentelemetry(tmp_path):
    trace = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2", reason="pip install opentelemetry-proto")
    from google.protobuf.json_format import ParseDict

    write_otel(tmp_path / "x.jsonl", [shop("a"), shop("b")])
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    messages = [ParseDict(line, trace.TracesData(), ignore_unknown_fields=True).SerializeToString() for line in lines]
    (tmp_path / "x.pb").write_bytes(messages[0])
    assert imported(tmp_path / "x.pb")[0] == [expected(shop("a"))]
    (tmp_path / "y.pb").write_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in messages))
    assert imported(tmp_path / "y.pb")[0] == [expected(shop("a")), expected(shop("b"))]
