"""`whetstone replay` recomputes a recorded run and finds the same bits."""

import asyncio
import hashlib
import json

import pytest
from click.testing import CliRunner

from support.slow import mostly_slow
from support.small import TEACHING
from whetstone.analysis import RunReplay
from whetstone.cli.main import cli
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.reporting import Progress
from whetstone.training import train

VARIANTS = {
    "synchronous": [],
    "ahead": [
        "reinforcement.admit_ahead=2",
        "reinforcement.max_staleness=3",
        "importance_correction={name: truncated, high: 1.5}",
    ],
    "imitation": ["reinforcement.imitation={weight: 0.5, batch_size: 3}"],
    "reference": ["reinforcement.reference_kl=0.1", "reinforcement.checkpoint_interval_steps=2"],
    "process model": ["advantage=oprl", "implicit_prm={learning_rate: 0.01}"],
    "critics": ["advantage=archer", "critic={}", "objective=policy_gradient"],
    "epochs": ["reinforcement.epochs=2", "reinforcement.minibatches=2"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function that trains each variant once."""
    trained = {}

    def run(name, small_demo):
        if name not in trained:
            trained[name] = tmp_path_factory.mktemp("replay") / "run"
            overrides = [TEACHING, "reinforcement.steps=4", "rollout.group_size=4", *VARIANTS[name]]
            train(small_demo(*overrides), trained[name], progress=Progress(quiet=True))
        return trained[name]

    return run


def replayed(run_dir, *changes, updates=False):
    async def main():
        return {each.what: each async for each in RunReplay(run_dir, changes).recompute_all(updates=updates)}

    return asyncio.run(main())


def content(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(VARIANTS, quick=["synchronous", "imitation", "critics"]))
def test_replay_reproduces_the_record_and_writes_nothing(runs, small_demo, name):
    run_dir = runs(name, small_demo)
    before = content(run_dir)
    sections = replayed(run_dir, updates=True)
    by_models = name in ("process model", "critics")  # advantages are recomputed with the updates
    assert set(sections) == {
        "rewards of training",
        *([] if by_models else ["credit"]),
        "evaluation (reinforcement)",
        "evaluation (supervised)",
        "evaluation (untrained)",
        "updates 1 to 4",
    }
    assert {each.changed for each in sections.values()} == {0}
    assert {each.count for what, each in sections.items() if what in ("rewards of training", "credit")} == {4 * 2 * 4}
    assert sections["updates 1 to 4"].count > 40
    assert content(run_dir) == before


def test_replay_calls_no_tool_and_samples_nothing(runs, small_demo, monkeypatch):
    run_dir = runs("synchronous", small_demo)

    def never(*args, **kwargs):
        raise AssertionError("replay called a tool or an engine")

    monkeypatch.setattr("whetstone.tools.toolset.Toolset.call", never)
    monkeypatch.setattr("whetstone.inference.local_engine.LocalEngine.generate", never)
    assert not any(each.changed for each in replayed(run_dir, updates=True).values())


@pytest.mark.slow
def test_another_reward_changes_rewards_credit_and_updates(runs, small_demo):
    sections = replayed(runs("synchronous", small_demo), "reward=support.small:generous", updates=True)
    rewards, credit = sections["rewards of training"], sections["credit"]
    assert rewards.changed > 0
    assert rewards.examples[0].startswith("group-")
    assert rewards.examples[0].endswith(("0 → 1", "1 → 1"))
    assert 0 < rewards.mean_change < 1
    assert credit.changed > 0
    assert credit.examples[0].endswith("→ 0")  # all are equal now
    assert sections["updates 1 to 4"].changed > 0


def test_another_estimator_changes_only_credit_and_updates(runs, small_demo):
    sections = replayed(runs("synchronous", small_demo), "advantage={name: group_relative, scale: false}")
    assert sections["rewards of training"].changed == 0
    assert sections["credit"].changed > 0


@pytest.mark.slow
def test_another_objective_changes_only_updates(runs, small_demo):
    sections = replayed(runs("epochs", small_demo), "objective={name: clipped, clip_high: 0.0001}", updates=True)
    assert sections["rewards of training"].changed == sections["credit"].changed == 0
    assert sections["updates 1 to 4"].changed > 0


def test_exit_code_reports_whether_the_replay_is_identical(runs, small_demo, tmp_path):
    run_dir = runs("synchronous", small_demo)
    output = CliRunner().invoke(cli, ["replay", str(run_dir)])
    assert output.exit_code == 0
    assert "rewards of training" in output.output
    assert "all equal" in output.output
    changed = CliRunner().invoke(cli, ["replay", str(run_dir), "reward=support.small:generous", "--json"])
    assert changed.exit_code == 0
    assert json.loads(changed.output)[0]["changed"] > 0
    # a modified record
    path = run_dir / "evaluations" / "untrained.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"success": 0.75}))
    try:
        tampered = CliRunner().invoke(cli, ["replay", str(run_dir)])
    finally:
        path.write_text(json.dumps(stored))
    assert tampered.exit_code == 1
    assert "success: 0.75 → " in tampered.output


def test_missing_and_invalid_runs_are_refused_in_one_line(runs, small_demo, tmp_path):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        RunReplay(tmp_path)
    with pytest.raises(RecipeError, match="did you mean"):
        RunReplay(runs("synchronous", small_demo), ["rewart=exact_number"])
