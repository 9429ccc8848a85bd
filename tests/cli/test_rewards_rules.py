"""`whetstone rewards rules` and `rewards metrics` test their result on rows that were held out."""

import json

import pytest

from support.cli import whetstone
from whetstone.recipe.yaml_text import yaml_document
from whetstone.rewards import REWARDS, make_reward

JUDGE = ["--judge", "{name: scripted, answers: 'support.feedback_judges:answers'}"]


def run(folder, command, rows, *words):
    lines = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
    (folder / "rows.jsonl").write_text(lines)
    return whetstone("rewards", command, "rows.jsonl", *JUDGE, *words, cwd=folder)


def pair(number, better, worse):
    return {"prompt": f"Question {number}", "chosen": better, "rejected": worse}


def comment(work, text):
    return {"prompt": "Do it.", "completion": work, "comment": text}


PAIRS = [pair(k, f"{k} because it is so", "no idea at all") for k in range(8)]


def test_rules_are_extracted_and_tested_on_held_out_pairs(tmp_path):
    done = run(tmp_path, "rules", PAIRS, "--held-out", "0.5", "-o", "layer.yaml", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rules"] == ["contains because", "contains at"]
    assert (report["training_pairs"], report["pairs"], report["opposed"]) == (4, 4, 0)
    # the better side satisfies the first rule, the worse side the second: all are ties
    assert report["by_rule"] == {"contains because": [4, 0], "contains at": [0, 4]}
    assert (report["rate"], report["p_value"]) == (0.5, 1.0)
    layer = yaml_document((tmp_path / "layer.yaml").read_text(), "layer.yaml", plain=True)
    assert make_reward(layer["reward"], REWARDS).rules == report["rules"]


def test_rules_are_printed_with_the_pairs_that_they_decide(tmp_path):
    rows = [pair(k, f"{k} because", f"{k} no") for k in range(8)]
    lines = run(tmp_path, "rules", rows, "--held-out", "0.5", "--max-rules", "1").stdout.splitlines()
    assert lines[0] == "+4 −0  contains because"
    assert lines[1].startswith("agreement with 4 held-out pairs: 100.0% (4 agree, 0 disagree; chance: p = 0.0625)")
    assert lines[2].startswith("judge: ")


def test_held_out_rows_depend_on_the_seed_only(tmp_path):
    reports = [json.loads(run(tmp_path, "rules", PAIRS, "--json", "--seed", seed).stdout) for seed in (1, 1)]
    assert reports[0] == reports[1]


def test_metrics_are_induced_and_tested_on_held_out_comments(tmp_path):
    rows = [comment("checks cites", "good checks, bad slow")] * 3 + [comment("checks", "good checks")]
    done = run(tmp_path, "metrics", rows, "--held-out", "0.25", "-o", "layer.yaml", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [each["name"] for each in report["metrics"]] == ["checks", "slow"]
    assert report["redundancy"] == 0.0
    assert report["matched_aspects"] == 1
    assert report["coverage"] == 1 / report["aspects"]
    layer = yaml_document((tmp_path / "layer.yaml").read_text(), "layer.yaml", plain=True)
    assert make_reward(layer["reward"], REWARDS).rules[0] == "checks: whether the agent is checks"
    printed = run(tmp_path, "metrics", rows, "--held-out", "0.25").stdout.splitlines()
    assert printed[0] == "1 of 1 mentioned  checks: whether the agent is checks"
    assert printed[2].startswith("1 held-out comments: coverage ")


@pytest.mark.parametrize(
    ("command", "rows", "words", "message"),
    [
        ("rules", PAIRS[:1], [], "rows.jsonl: 1 rows; at least 2 are required"),
        ("rules", [{"prompt": "a", "completion": "b", "label": True}] * 2, [], "a rated single; a pair is required"),
        ("rules", "nonsense", [], "rows.jsonl:1  not JSON"),
        ("rules", PAIRS, ["-o", "rows.jsonl"], "rows.jsonl: exists; choose another name"),
        ("rules", PAIRS, ["--judge", "oracle"], '--judge: no judge named "oracle"'),
        ("rules", [pair(0, "a", "b"), pair(1, "a", "b")], [], "the judge names no rule for 1 pairs"),
        ("metrics", PAIRS, [], 'no text in the column "comment"'),
        ("metrics", [comment("work", "nothing to remark")] * 3, [], "the judge finds no metric in 2 comments"),
    ],
)
def test_mistakes_are_one_line(tmp_path, command, rows, words, message):
    done = run(tmp_path, command, rows, *words)
    assert (done.returncode, message in done.stderr.strip().splitlines()[-1]) == (2, True), done.stderr
