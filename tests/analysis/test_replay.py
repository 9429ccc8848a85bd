"""A recorded run is a golden test: everything in it can be computed again, and comes out to the last bit."""

import asyncio
import hashlib
import json

import pytest
from click.testing import CliRunner

from tests_slow import mostly_slow
from tests_small import TEACHING
from whetstone.analysis import Replay
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
    """A run of each variant, made once."""
    made = {}

    def run(name, small_demo):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("replay") / "run"
            overrides = [TEACHING, "reinforcement.steps=4", "rollout.group_size=4", *VARIANTS[name]]
            train(small_demo(*overrides), made[name], progress=Progress(quiet=True))
        return made[name]

    return run


def replayed(run_dir, *changes, updates=False):
    async def main():
        return {each.what: each async for each in Replay(run_dir, changes).everything(updates=updates)}

    return asyncio.run(main())


def content(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(VARIANTS, quick=["synchronous", "imitation", "critics"]))
def test_everything_comes_out_as_it_is_on_record_and_nothing_is_written(runs, small_demo, name):
    run_dir = runs(name, small_demo)
    before = content(run_dir)
    found = replayed(run_dir, updates=True)
    by_models = name in ("process model", "critics")  # their credit comes out again with the updates
    assert set(found) == {
        "rewards of training",
        *([] if by_models else ["credit"]),
        "evaluation (reinforcement)",
        "evaluation (supervised)",
        "evaluation (untrained)",
        "updates 1 to 4",
    }
    assert {each.changed for each in found.values()} == {0}
    assert {each.count for what, each in found.items() if what in ("rewards of training", "credit")} == {4 * 2 * 4}
    assert found["updates 1 to 4"].count > 40
    assert content(run_dir) == before


def test_no_tool_is_called_and_nothing_is_sampled(runs, small_demo, monkeypatch):
    run_dir = runs("synchronous", small_demo)

    def never(*args, **kwargs):
        raise AssertionError("replay called a tool or an engine")

    monkeypatch.setattr("whetstone.tools.toolset.Toolset.call", never)
    monkeypatch.setattr("whetstone.inference.local.LocalEngine.generate", never)
    assert not any(each.changed for each in replayed(run_dir, updates=True).values())


@pytest.mark.slow
def test_another_reward_is_shown_as_a_difference_in_rewards_credit_and_updates(runs, small_demo):
    found = replayed(runs("synchronous", small_demo), "reward=tests_small:generous", updates=True)
    rewards, credit = found["rewards of training"], found["credit"]
    assert rewards.changed > 0
    assert rewards.examples[0].startswith("group-")
    assert rewards.examples[0].endswith(("0 → 1", "1 → 1"))
    assert 0 < rewards.mean_change < 1
    assert credit.changed > 0
    assert credit.examples[0].endswith("→ 0")  # all are equal now
    assert found["updates 1 to 4"].changed > 0


def test_another_credit_is_shown_by_itself(runs, small_demo):
    found = replayed(runs("synchronous", small_demo), "advantage={name: group_relative, scale: false}")
    assert found["rewards of training"].changed == 0
    assert found["credit"].changed > 0


@pytest.mark.slow
def test_another_objective_changes_the_updates_alone(runs, small_demo):
    found = replayed(runs("epochs", small_demo), "objective={name: clipped, clip_high: 0.0001}", updates=True)
    assert found["rewards of training"].changed == found["credit"].changed == 0
    assert found["updates 1 to 4"].changed > 0


def test_the_command_tells_and_its_exit_code_says_whether_all_is_as_it_was(runs, small_demo, tmp_path):
    run_dir = runs("synchronous", small_demo)
    shown = CliRunner().invoke(cli, ["replay", str(run_dir)])
    assert shown.exit_code == 0
    assert "rewards of training" in shown.output
    assert "all as on record" in shown.output
    changed = CliRunner().invoke(cli, ["replay", str(run_dir), "reward=tests_small:generous", "--json"])
    assert changed.exit_code == 0
    assert json.loads(changed.output)[0]["changed"] > 0
    # a record that somebody has changed
    path = run_dir / "evaluations" / "untrained.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"success": 0.75}))
    try:
        tampered = CliRunner().invoke(cli, ["replay", str(run_dir)])
    finally:
        path.write_text(json.dumps(told))
    assert tampered.exit_code == 1
    assert "success: 0.75 → " in tampered.output


def test_what_cannot_be_replayed_is_said_in_a_line(runs, small_demo, tmp_path):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        Replay(tmp_path)
    with pytest.raises(RecipeError, match="did you mean"):
        Replay(runs("synchronous", small_demo), ["rewart=exact_number"])
