"""Reports of `whetstone data` on a file, and the data files it exports from a run."""

import json

import pytest

from support.cli import whetstone
from support.conversations import computed, conversations, pairs, texts, written
from support.small import SMALL
from whetstone.data import load_rows, read_conversation, read_preference
from whetstone.data.decontamination import find_overlaps
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.trajectory import Task


def test_overlap_of_words_or_a_complete_short_prompt_is_found():
    long = " ".join(f"w{k}" for k in range(40))
    tasks = [Task("long", long), Task("short", "Compute 12*13"), Task("none", "Compute 12*14")]
    findings = [
        ("a", "w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19, and so on"),  # thirteen of them
        ("b", "w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 and so on"),
        ("c", "please: COMPUTE 12 * 13!"),
    ]
    assert list(find_overlaps(findings, tasks)) == [("a", "long"), ("c", "short")]


@pytest.mark.slow
def test_file_is_reported_row_by_row(tmp_path):
    resolved = load_recipe("demo")
    from whetstone.assembly import assemble

    held_out = assemble(resolved).source.held_out(1)[0].prompt
    rows = [*conversations(3), conversations(1)[0], {"messages": computed(1, 2)[:2]}]
    rows.append({"messages": [{"role": "user", "content": held_out}, {"role": "assistant", "content": "1"}]})
    path = written(tmp_path / "chats.jsonl", rows)
    result = whetstone("data", "check", path, "demo", "--json", cwd=tmp_path)
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert (report["rows"], report["learned"], report["twice"]) == (6, 5, [[f"{path}:4", f"{path}:1"]])
    (excluded,) = report["left_out"]  # as in training
    assert excluded.startswith(f"{path}:6  contains the evaluation task")
    assert excluded.endswith("is left out; supervised.data.keep_evaluation_tasks: true trains on it")
    changes = [f"supervised.data={{path: {path}, keep_evaluation_tasks: true}}"]
    result = whetstone("data", "check", path, "demo", *changes, "--json", cwd=tmp_path)
    assert (json.loads(result.stdout)["learned"], json.loads(result.stdout)["left_out"]) == (6, [])
    rows.append({"messages": [*computed(1, 2)[:2], *computed(3, 4)]})  # a call without a result
    wrong = whetstone("data", "check", written(path, rows), "demo", "--json", cwd=tmp_path)
    assert wrong.returncode == 2
    reason = "messages[2]: 1 of the tool calls before this message have no result"
    assert json.loads(wrong.stdout)["wrong"] == [f"{path}:7  {reason}"]
    assert [where for where, _ in report["evaluated"]] == [f"{path}:6"]


@pytest.mark.parametrize(
    ("lines", "line", "searched"),
    [
        ("no JSON\n{'a': 1}\n", "secrets and personal data: not checked, no row can be parsed", 0),
        ('no JSON\n{"messages": []}\n', "secrets and personal data: 0 in the 1 of 2 rows that can be parsed", 1),
    ],
)
def test_rows_that_cannot_be_parsed_are_not_reported_as_free_of_secrets(tmp_path, lines, line, searched):
    path = tmp_path / "chats.jsonl"
    path.write_text(lines)
    checked = whetstone("data", "check", path, "demo", cwd=tmp_path)
    assert checked.returncode == 2
    assert f"  {line}\n" in checked.stdout
    report = json.loads(whetstone("data", "check", path, "demo", "--json", cwd=tmp_path).stdout)
    assert (report["searched"], report["rows"]) == (searched, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "texts"])
def test_pairs_and_texts_are_reported(tmp_path, kind):
    path = tmp_path / ("a.jsonl" if kind == "pairs" else "a.txt")
    path.write_text(texts(5)) if kind == "texts" else written(path, pairs(5))
    report = json.loads(whetstone("data", "check", path, "demo", "--json", cwd=tmp_path).stdout)
    assert (report["kind"], report["rows"], report["learned"]) == (kind, 5, 5)


@pytest.mark.slow
def test_run_is_exported_as_conversations_pairs_and_episodes(tmp_path):
    small = [*SMALL, "ablations=null", "reward=support.small:parity", "rollout.group_size=4"]
    train(load_recipe("demo", small), tmp_path / "run", progress=Progress(quiet=True))
    for kind in ("conversations", "pairs", "trajectories"):
        result = whetstone("data", "export", "run", "-o", f"{kind}.jsonl", "--as", kind, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    read = [read_conversation(row) for row in load_rows(tmp_path / "conversations.jsonl")]
    assert len(read) == 2 * 2 * 4
    assert all(len(read_preference(row).answers) == 2 for row in load_rows(tmp_path / "pairs.jsonl"))
    second = whetstone("data", "export", "run", "-o", "pairs.jsonl", cwd=tmp_path)
    assert (second.returncode, "exists; choose another name" in second.stderr) == (2, True)
