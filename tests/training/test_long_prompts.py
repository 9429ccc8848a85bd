"""A prompt that is too long for a response does not end a run: it is skipped, counted, and predicted."""

import json

import pytest

from support.cli import whetstone

RECIPE = """
policy: {tiny: {vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, \
context_length: 96}}
chat: {format: compact}
tasks: {source: jsonl, path: tasks.jsonl, held_out_fraction: 0.5}
reward: exact_match
rollout: {group_size: 2, max_new_tokens: 3}
reinforcement: {steps: 3, tasks_per_step: 4, admit_ahead: 1, max_staleness: 1}
evaluation: {episodes: 100}
"""


@pytest.fixture
def project(tmp_path):
    prompts = [
        f"What do you get when you add {k} to {k * k}, then?" if k % 4 else "word " * 200 + str(k) for k in range(40)
    ]
    rows = [json.dumps({"prompt": prompt, "answer": "x"}) for prompt in prompts]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    (tmp_path / "tasks.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.parametrize("changes", [[], ["reinforcement.admit_ahead=0", "reinforcement.max_staleness=null"]])
def test_run_continues_and_reports_the_number_of_skipped_tasks(project, changes):
    done = whetstone("train", "tasks.yaml", *changes, cwd=project)
    assert done.returncode == 0, done.stderr
    run = project / "runs" / "tasks"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["cost_per_step/episodes"] for row in rows] == [8, 8, 8]  # other tasks replaced them
    assert rows[-1]["group/prompt_too_long"] > 0
    summary = json.loads((run / "summary.json").read_text())
    after = summary["evaluations"]["reinforcement"]
    held_out = after["tasks"] + after["too_long"]
    assert 0 < after["too_long"] < held_out <= 40
    message = f"{after['too_long']} tasks are left out: their prompts leave no room in the model's context"
    assert message in done.stdout
    assert "such tasks are left out and counted (group/prompt_too_long)" in done.stderr


def test_run_with_only_too_long_prompts_stops_before_it_starts(project):
    done = whetstone("train", "tasks.yaml", "policy.tiny.context_length=16", cwd=project)
    assert done.returncode == 2
    assert "its prompt has" in done.stderr or "no prompt leaves room" in done.stderr


@pytest.mark.slow
def test_doctor_reports_the_number_of_too_long_prompts(project):
    report = json.loads(whetstone("doctor", "tasks.yaml", "--json", cwd=project).stdout)
    (check,) = [check for check in report["checks"] if check["name"] == "prompts"]
    assert check["verdict"] == "warn"
    assert "10 of 40 leave no tokens for an answer and are skipped" in check["said"]
    short = whetstone("doctor", "tasks.yaml", "policy.tiny.context_length=16", "--json", cwd=project)
    (check,) = [check for check in json.loads(short.stdout)["checks"] if check["name"] == "prompts"]
    assert (short.returncode, check["verdict"]) == (1, "fail")
