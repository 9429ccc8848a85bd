"""The memory of an agent is available in evaluations of a run and of the command line."""

import json

import pytest
from click.testing import CliRunner

from whetstone.cli.main import cli
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import final_agent, train


@pytest.mark.slow
def test_lesson_library_is_read_in_evaluations(tmp_path, small_demo):
    changes = [
        "rollout.context_transforms=[{name: lessons, max_lessons: 2}]",
        "policy.tiny.context_length=512",
        "rollout.group_size=4",
    ]
    train(small_demo("reward=support.small:odd", *changes), tmp_path / "run", progress=Progress(quiet=True))
    _, memory = final_agent(tmp_path / "run")
    (lesson, *_) = memory["context_transforms.lessons"]["library"]
    after = read_trajectories(tmp_path / "run" / "trajectories" / "evaluation-reinforcement.jsonl")
    assert all(lesson in t.opening[0].text for t in after)
    before = read_trajectories(tmp_path / "run" / "trajectories" / "evaluation-untrained.jsonl")
    assert not any("Lessons from before" in t.opening[0].text for t in before)
    output = CliRunner().invoke(cli, ["rollout", str(tmp_path / "run"), "-n", "1", "--json"])
    assert output.exit_code == 0, output.output
    assert lesson in json.loads(output.output)["messages"][0]["content"]
    evaluated = CliRunner().invoke(cli, ["evaluate", str(tmp_path / "run"), "--json"])
    assert evaluated.exit_code == 0, evaluated.output
