"""`whetstone why`: one advantage explained, from rewards to its weight in the loss."""

import asyncio
import json
import math

import pytest
from click.testing import CliRunner

from support.small import SMALL, TEACHING
from whetstone.analysis import Explainer
from whetstone.cli.main import cli
from whetstone.errors import RunDirectoryError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

CHANGES = [
    TEACHING,
    "reinforcement.steps=4",
    "rollout.group_size=4",
    "reinforcement.minibatches=2",
    "reinforcement.checkpoint_interval_steps=2",
    "importance_correction=truncated",
    "advantage_transforms=[entropy_modulated]",
    "credit_filters=[overlong_filter]",
    "advantage={name: group_relative, scale: false}",
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("why") / "run"
    train(load_recipe("demo", [*SMALL, "ablations=null", *CHANGES]), folder, progress=Progress(quiet=True))
    return folder


def explained(run_dir, id, **options):
    return asyncio.run(Explainer(run_dir).explain_trajectory(id, **options))


def trajectories_of_last_update(run_dir):
    return [id for id, *_ in Explainer(run_dir).list_trajectories(4)]


def test_advantage_is_derived_from_rewards(run_dir):
    explainer = Explainer(run_dir)
    for id, reward, _ in explainer.list_trajectories(4):
        result = asyncio.run(explainer.explain_trajectory(id, weights=False))
        chain = {link.what: link.value for link in result.chain}
        assert result.update == 4
        assert chain["return"] == chain["outcome"] == reward
        assert chain["advantage"] == pytest.approx(reward - chain["baseline"])
        # one per turn; the mean weight of the transform over the turns of a group is 1
        assert len(chain["modulated"]) == int(
            next(link for link in result.chain if link.what == "ended").said.split()[0]
        )
        assert result.from_weights == ""
        assert all(not token.passes for token in result.tokens)


@pytest.mark.slow
def test_push_is_the_derivative_of_the_loss(run_dir):
    """loss = Σ w · (−A ρ) / divisor, so the push is −w A ρ / divisor without clipping."""
    divisors = set()
    for id in trajectories_of_last_update(run_dir):
        result = explained(run_dir, id)
        assert result.from_weights == "update 4, from the weights before it"
        for token in result.tokens:
            for weight in token.passes:
                assert weight["policy/ratio"] > 0
                if token.advantage and not weight["policy/clip_fraction"]:
                    surrogate = -weight["importance/weight_mean"] * token.advantage * weight["policy/ratio"]
                    divisors.add(round(surrogate / weight["push"], 2))
    assert len(divisors) <= 2  # one per minibatch
    assert all(math.isclose(divisor, round(divisor), abs_tol=0.02) for divisor in divisors)


def test_command_prints_the_explanation(run_dir):
    output = CliRunner().invoke(cli, ["why", str(run_dir)])
    assert output.exit_code == 0
    assert "learned from" in output.output
    listed = CliRunner().invoke(cli, ["why", str(run_dir), "--step", "4"])
    id = trajectories_of_last_update(run_dir)[0]
    assert id in listed.output
    printed = CliRunner().invoke(cli, ["why", str(run_dir), id])
    assert "by group_relative, one per trajectory" in printed.output
    assert "push" in printed.output
    (token,) = json.loads(CliRunner().invoke(cli, ["why", str(run_dir), id, "--token", "0", "--json"]).stdout)["tokens"]
    assert token["turn"] == 0
    steps = json.loads(CliRunner().invoke(cli, ["why", str(run_dir), "--json"]).stdout)["steps"]
    assert [row["from"] for row in steps] == [1, 2, 3, 4]


def test_missing_runs_and_trajectories_are_one_line(run_dir, tmp_path):
    with pytest.raises(RunDirectoryError, match="no update used nothing; an id has the form"):
        explained(run_dir, "nothing")
    id = trajectories_of_last_update(run_dir)[0]
    with pytest.raises(RunDirectoryError, match=r"no trajectory .*; did you mean"):
        explained(run_dir, id[:-1] + "9")
    with pytest.raises(RunDirectoryError, match="no update 9 on record; recorded updates: 1 to 4"):
        Explainer(run_dir).list_trajectories(9)
    for arguments, message in (
        ([str(tmp_path)], "holds no run"),
        ([str(run_dir), "--step", "9"], "no step 9; steps are 1 to 4"),
        ([str(run_dir), id, "--token", "999"], "action tokens, 0 to"),
    ):
        failed = CliRunner().invoke(cli, ["why", *arguments])
        assert isinstance(failed.exception, RunDirectoryError)
        assert message in str(failed.exception)
