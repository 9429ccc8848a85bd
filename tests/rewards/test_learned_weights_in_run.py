"""Learned weights of reward terms in a run: they change, are stored with scores, and a replay reproduces them."""

import json

import pytest

from support.cli import whetstone
from support.small import SMALL

REWARD = (
    "reward={name: composed, primary: odd, terms: {odd: 'support.small:parity', "
    "calls: {name: well_formed, weight: 0.5, learned: true}, even: {name: few_calls, weight: 0.2, learned: true}}}"
)


@pytest.mark.slow
def test_run_learns_weights_and_replays_to_the_same_rewards(tmp_path):
    small = [*SMALL, "ablations={}", "supervised=null", "reinforcement.steps=4", "rollout.group_size=4"]
    done = whetstone("train", "demo", *small, REWARD, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    factors = [row["reward/calls.factor"] for row in rows if "reward/calls.factor" in row]
    assert factors[0] == 1.0
    assert min(factors) < 1.0
    replayed = whetstone("replay", "run", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stdout
    assert "differ" not in replayed.stdout
