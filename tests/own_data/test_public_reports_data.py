"""Faults that users of other projects reported for data files; see `public_reports.md`."""

import codecs
import json

import pytest

from support.chat_templates import real_templates, real_tokenizer
from whetstone.chat import FORMATS, Chat, detect_tool_call_format
from whetstone.data import load_rows, read_conversation, read_preference, tokenize_conversation
from whetstone.data.row_readers import Row
from whetstone.errors import DataError, TaskError
from whetstone.tasks import File

TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "GOOD"}]
REAL = real_templates()
GEMMA = "google-gemma-2-2b-it"


@pytest.fixture(scope="module")
def chat_of():
    built = {}

    def get(name):
        if name not in built:
            tokenizer = real_tokenizer(name, REAL[name])
            built[name] = Chat(tokenizer, FORMATS[detect_tool_call_format(tokenizer)]())
        return built[name]

    return get


def trained_ids(trajectory):
    return [
        token
        for segment in trajectory.segments()
        for token, is_trained in zip(segment.tokens.ids, segment.action_mask, strict=True)
        if is_trained
    ]


def write(path, text, *, mark=False):
    path.write_bytes((codecs.BOM_UTF8 if mark else b"") + text.encode())
    return path


def answers_of(path):
    source = File(path=str(path), columns={"prompt": "question", "answer": "answer"}, held_out_fraction=1.0)
    return sorted((task.prompt, task.private["answer"]) for task in source.held_out(99))


# byte-order marks and line ends


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_byte_order_mark_changes_no_row(tmp_path, suffix):
    """Check report 20: rows with different keys, of which Arrow would make nulls."""
    calls = [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}
        for arguments in ({"a": 1}, {"b": None})
    ]
    rows = [
        {"messages": [TALK[0], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "r"}, TALK[1]]}
        for call in calls
    ]  # fmt: skip
    text = json.dumps(rows) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
    read = [
        [read_conversation(row).messages for row in load_rows(write(tmp_path / f"{mark}{suffix}", text, mark=mark))]
        for mark in (False, True)
    ]
    assert read[0] == read[1]
    arguments = [message.tool_calls[0].arguments for messages in read[0] for message in messages if message.tool_calls]
    assert list(map(json.loads, arguments)) == [{"a": 1}, {"b": None}]


def test_a_byte_order_mark_hides_no_column_of_a_table(tmp_path):
    """Check report 21: through both entry points."""
    talk = json.dumps(TALK).replace('"', '""')
    text = f'question,answer,messages\r\nName a tea,4,"{talk}"\r\n'
    plain, marked = (write(tmp_path / f"{mark}.csv", text, mark=mark) for mark in (False, True))
    assert answers_of(plain) == answers_of(marked) == [("Name a tea", "4")]
    (row,), (other,) = load_rows(plain), load_rows(marked)
    assert row.columns == other.columns
    assert read_conversation(other).messages == read_conversation(row).messages


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n\n"])
def test_the_last_row_needs_no_line_break(tmp_path, end):
    """Check report 30."""
    lines = [json.dumps({"question": f"q{n}", "answer": str(n)}) for n in range(3)]
    assert answers_of(write(tmp_path / "tasks.jsonl", "\n".join(lines) + end)) == [(f"q{n}", str(n)) for n in range(3)]
    assert len(load_rows(write(tmp_path / "rows.jsonl", "\n".join(lines) + end))) == 3
    table = write(tmp_path / "tasks.csv", "question,answer\n" + "\n".join(f"q{n},{n}" for n in range(3)) + end)
    assert answers_of(table) == [(f"q{n}", str(n)) for n in range(3)]


# values


VALUES = ["N/A", "NA", "None", "null", "nan", "007", "1e5", "True", "-", "3.10"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_answers_keep_their_text(tmp_path, suffix):
    """Check report 23."""
    rows = [{"question": f"q{n}", "answer": value} for n, value in enumerate(VALUES)]
    path = tmp_path / f"tasks{suffix}"
    if suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'whetstone-rl[datasets]'")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix in (".csv", ".tsv"):
        between = "," if suffix == ".csv" else "\t"
        write(path, "".join(between.join(row) + "\n" for row in [["question", "answer"], *(r.values() for r in rows)]))
    else:
        write(path, json.dumps(rows) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    assert answers_of(path) == sorted((f"q{n}", value) for n, value in enumerate(VALUES))


def test_a_nan_in_a_table_is_a_missing_value(tmp_path):
    """Check report 24: a column that is empty, or numbers and empty cells."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'whetstone-rl[datasets]'")
    import pyarrow

    nan = float("nan")
    rows = [{"messages": TALK, "tools": nan, "system": nan, "weight": weight} for weight in (1.0, nan)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    for row in load_rows(path):
        conversation = read_conversation(row)
        assert [message.text for message in conversation.messages] == ["q", "GOOD"]
        assert (conversation.tools, conversation.exclusions) == ((), ("", ""))
    tasks = tmp_path / "tasks.parquet"
    parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": [1.5, nan]}), tasks)
    with pytest.raises(TaskError, match="row 2  `answer` has no value"):
        answers_of(tasks)


# shapes


def test_text_and_call_that_follow_each_other_are_one_turn():
    """Check report 25."""
    turns = [
        ("human", "How warm is it in Oslo and Rome?"), ("gpt", "Let me look."),
        ("function_call", '{"name": "weather", "arguments": {"city": "Oslo"}}'),
        ("function_call", '{"name": "weather", "arguments": {"city": "Rome"}}'),
        ("observation", "4"), ("observation", "20"), ("gpt", "4 and 20."),
    ]  # fmt: skip
    row = Row("rows.jsonl:1", {"conversations": [{"from": speaker, "value": value} for speaker, value in turns]})
    messages = read_conversation(row).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1].text == "Let me look."
    assert [json.loads(call.arguments)["city"] for call in messages[1].tool_calls] == ["Oslo", "Rome"]
    assert [message.tool_call_id for message in messages[2:4]] == [call.id for call in messages[1].tool_calls]


def test_a_file_without_a_usable_row_names_its_rows(tmp_path):
    """Check report 26."""
    rows = [{"messages": []}, {"messages": [{"role": "user", "content": "q"}]}, {"text": 3}]
    path = write(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for place, row in enumerate(load_rows(path), start=1):
        with pytest.raises(DataError, match=rf"rows\.jsonl:{place}"):
            read_conversation(row)


TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize("other", ["tool_defs", "functions", "available_tools"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_null_in_one_column_of_tools_hides_no_other(other, as_text):
    """Check report 28: the other column is read, or reported as unread; it is never dropped silently."""
    value = [TOOL["function"]] if other == "functions" else [TOOL]
    columns = {"messages": TALK, "tools": None, other: json.dumps(value) if as_text else value}
    conversation = read_conversation(Row("rows.jsonl:1", columns))
    assert [tool.name for tool in conversation.tools] == ["f"] or other in conversation.unread


# tokens


@pytest.mark.parametrize(
    "name", [GEMMA, "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b", "GLM-4.6"]
)
def test_a_pair_ends_with_one_end_of_turn_and_the_end_is_trained(chat_of, name):
    """Check reports 27 and 29."""
    chat = chat_of(name)
    pair = Row("r:1", {"chosen": TALK, "rejected": [TALK[0], {"role": "assistant", "content": "BAD"}]})
    for conversation, _ in read_preference(pair).answers:
        ids = trained_ids(tokenize_conversation(conversation, chat))
        assert [token in chat.stop_ids for token in ids].count(True) == 1
        assert ids[-1] in chat.stop_ids
        end = chat.tokenizer.decode(ids[-1:], skip_special_tokens=False)
        rendered = chat.tokenizer.apply_chat_template([*TALK], tokenize=False).partition("GOOD")[2]
        assert not rendered.strip() or rendered.lstrip().startswith(end)


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "GLM-4.6", "openai-gpt-oss-120b"])
def test_a_demonstration_is_what_the_template_renders_at_once(chat_of, name):
    """Check report 8: also with thoughts, which some templates drop from earlier turns."""
    chat = chat_of(name)
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "one", "reasoning_content": "because"},
        {"role": "user", "content": "r"},
        {"role": "assistant", "content": "two", "reasoning_content": "hence"},
    ]
    trajectory = tokenize_conversation(read_conversation(Row("r:1", {"messages": talk})), chat)
    assert not trajectory.error, trajectory.error
    last = trajectory.segments()[-1]
    assert last.tokens.ids[-1] in chat.stop_ids
    view, end = (
        chat.tokenizer.decode(ids, skip_special_tokens=False) for ids in (last.tokens.ids[:-1], last.tokens.ids[-1:])
    )
    rendered = chat.tokenizer.apply_chat_template(talk, tokenize=False).strip()
    assert rendered in (view, view + end)  # GLM ends a turn with the token of the next speaker


def test_an_answer_beyond_the_context_is_left_out_with_its_place(chat_of):
    """Check report 22: nothing is truncated, so no sequence without a trained token reaches the learner."""
    talk = [{"role": "user", "content": "q" * 300}, TALK[1]]
    trajectory = tokenize_conversation(
        read_conversation(Row("rows.jsonl:7", {"messages": talk})), chat_of(GEMMA), context_length=64
    )
    assert not trajectory.segments()
    assert trajectory.score is None
    assert "rows.jsonl:7" in trajectory.error
    assert "the context length is 64" in trajectory.error
