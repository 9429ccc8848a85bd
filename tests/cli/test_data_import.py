"""`whetstone data import` converts exports of other tools; `whetstone data export --as otel` writes such an export."""

import json
import shutil
from pathlib import Path

import pytest

from support.cli import whetstone

STORED = Path(__file__).parents[1] / "data" / "run_9e27b57" / "run" / "stages" / "2-reinforcement"
TOOL = {"name": "price", "parameters": {"type": "object", "properties": {"item": {"type": "string"}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": '{"item": "tea"}'}}
CONVERSATION = [
    {"role": "user", "content": "What does tea cost?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
    {"role": "assistant", "content": "4 francs."},
]
CSV = 'ticket,speaker,body\n1,user,"Is it open?"\n1,bot,Yes.\n2,user,"No answer"\n'


@pytest.fixture
def folder(tmp_path):
    rows = [{"messages": CONVERSATION, "tools": [TOOL]}, {"messages": CONVERSATION[:1]}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "chats.csv").write_text(CSV)
    return tmp_path


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_conversations_are_written_and_the_refused_one_is_listed(folder):
    done = whetstone("data", "import", "chats.jsonl", "-o", "out.jsonl", "--report", "why.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "2 conversations: 1 can be trained, 1 cannot" in done.stdout
    assert "1 × no answer of the assistant" in done.stdout
    (row,) = read_rows(folder / "out.jsonl")
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [each.get("reason", each.get("row")) for each in read_rows(folder / "why.jsonl")] == [
        1, "no answer of the assistant",
    ]  # fmt: skip


def test_report_is_one_json_object(folder):
    report = json.loads(whetstone("data", "import", "chats.jsonl", "--json", cwd=folder).stdout)
    assert (report["records"], report["trainable"]) == (2, 1)
    assert report["formats"] == {"chats.jsonl": "openai"}
    assert report["refused"]["no answer of the assistant"]["count"] == 1


def test_existing_output_is_refused(folder):
    (folder / "out.jsonl").write_text("")
    done = whetstone("data", "import", "chats.jsonl", "-o", "out.jsonl", cwd=folder)
    assert (done.returncode, "out.jsonl: exists; choose another name" in done.stderr) == (2, True)


def test_columns_of_a_csv_file_are_named_by_the_option(folder):
    columns = [word for pair in ("conversation=ticket", "role=speaker", "content=body") for word in ("--column", pair)]
    done = whetstone("data", "import", "chats.csv", *columns, "-o", "out.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(folder / "out.jsonl")
    assert [message["content"] for message in row["messages"]] == ["Is it open?", "Yes."]


def test_roles_of_a_csv_file_are_named_by_the_option(folder):
    rows = "conversation_id,author,text\n1,customer,Is it open?\n1,agent,Yes.\n"
    (folder / "support.csv").write_text(rows)
    done = whetstone("data", "import", "support.csv", cwd=folder)
    assert done.returncode == 2
    assert "1 × unknown role; roles are system, user, assistant and tool; in a CSV file `--role customer" in done.stdout
    roles = ("--role", "customer=user", "--role", "agent=assistant")
    done = whetstone("data", "import", "support.csv", *roles, "-o", "out.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(folder / "out.jsonl")
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chats.jsonl", "--role", "a=user"], "chats.jsonl: --role has no effect on conversations of OpenAI"),
        (["chats.csv", "--role", "customer"], "--role customer: VALUE=ROLE is expected, such as customer=user"),
        (["chats.csv", "--role", "customer=usr"], '--role customer=usr: unknown role; did you mean "user"?'),
        (["chats.jsonl", "--column", "role=speaker"], "chats.jsonl: --column has no effect on conversations of OpenAI"),
        (["chats.csv", "--column", "role"], "--column role: MEANING=NAME is expected"),
        (["chats.csv", "--column", "rolle=speaker"], "unknown meaning 'rolle'; use one of conversation, role"),
        (["chats.csv", "--column", "role=speker"], 'no column "speker"; did you mean "speaker"'),
    ],
)
def test_column_without_effect_or_unknown_is_refused_in_one_line(folder, arguments, message):
    done = whetstone("data", "import", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_episodes_of_a_run_are_exported_as_spans_and_imported_again(tmp_path):
    run = shutil.copytree(STORED, tmp_path / "run")
    for file in [*run.rglob("*.json"), *run.rglob("*.yaml")]:
        text = file.read_text().replace("OLD_RUN_FOLDER", str(STORED.parents[2]))
        file.write_text(text.replace("tests_small:", "support.small:"))
    exported = whetstone("data", "export", "run", "--as", "otel", "-o", "spans.jsonl", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    traces = read_rows(tmp_path / "spans.jsonl")
    assert exported.stdout.strip() == f"spans.jsonl: {len(traces)} traces"
    spans = [each["scopeSpans"][0]["spans"] for trace in traces for each in trace["resourceSpans"]]
    assert all(first["name"] == "invoke_agent" for first, *_ in spans)
    report = json.loads(whetstone("data", "import", "spans.jsonl", "--json", cwd=tmp_path).stdout)
    assert report["formats"] == {"spans.jsonl": "otel"}
    assert report["records"] == sum(map(len, spans))
