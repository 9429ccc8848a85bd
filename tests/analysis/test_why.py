"""One number explained, from rewards to the push in the loss."""

import asyncio
import json
import math

import pytest
from click.testing import CliRunner

from tests_small import SMALL, TEACHING
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
    return asyncio.run(Explainer(run_dir).explain(id, **options))


def of_the_last_update(run_dir):
    return [id for id, *_ in Explainer(run_dir).trajectories(4)]


def test_the_chain_from_rewards_to_the_advantage(run_dir):
    explainer = Explainer(run_dir)
    for id, reward, _ in explainer.trajectories(4):
        found = asyncio.run(explainer.explain(id, weights=False))
        chain = {link.what: link.value for link in found.chain}
        assert found.update == 4
        assert chain["return"] == chain["outcome"] == reward
        assert chain["advantage"] == pytest.approx(reward - chain["baseline"])
        # one a turn; averaged over a group's turns the transform's weights are 1
        assert len(chain["modulated"]) == int(
            next(link for link in found.chain if link.what == "ended").said.split()[0]
        )
        assert found.from_weights == ""
        assert all(not token.passes for token in found.tokens)


@pytest.mark.slow
def test_the_push_is_the_derivative_of_the_loss(run_dir):
    """loss = Σ w · (−A ρ) / divisor, so the push is −w A ρ / divisor where nothing is clipped."""
    divisors = set()
    for id in of_the_last_update(run_dir):
        found = explained(run_dir, id)
        assert found.from_weights == "update 4, from the weights in front of it"
        for token in found.tokens:
            for said in token.passes:
                assert said["policy/ratio"] > 0
                if token.advantage and not said["policy/clip_fraction"]:
                    surrogate = -said["importance/weight_mean"] * token.advantage * said["policy/ratio"]
                    divisors.add(round(surrogate / said["push"], 2))
    assert len(divisors) <= 2  # one for each minibatch
    assert all(math.isclose(divisor, round(divisor), abs_tol=0.02) for divisor in divisors)


def test_the_command_tells_a_person(run_dir):
    shown = CliRunner().invoke(cli, ["why", str(run_dir)])
    assert shown.exit_code == 0
    assert "learned from" in shown.output
    listed = CliRunner().invoke(cli, ["why", str(run_dir), "--step", "4"])
    id = of_the_last_update(run_dir)[0]
    assert id in listed.output
    told = CliRunner().invoke(cli, ["why", str(run_dir), id])
    assert "by group_relative, one a trajectory" in told.output
    assert "push" in told.output
    (token,) = json.loads(CliRunner().invoke(cli, ["why", str(run_dir), id, "--token", "0", "--json"]).stdout)["tokens"]
    assert token["turn"] == 0
    steps = json.loads(CliRunner().invoke(cli, ["why", str(run_dir), "--json"]).stdout)["steps"]
    assert [row["from"] for row in steps] == [1, 2, 3, 4]


def test_what_is_not_there_is_said(run_dir, tmp_path):
    with pytest.raises(RunDirectoryError, match="no update took nothing; ids look like"):
        explained(run_dir, "nothing")
    id = of_the_last_update(run_dir)[0]
    with pytest.raises(RunDirectoryError, match=r"no trajectory .*; did you mean"):
        explained(run_dir, id[:-1] + "9")
    with pytest.raises(RunDirectoryError, match="no update 9 on record; there are 1 to 4"):
        Explainer(run_dir).trajectories(9)
    for arguments, said in (
        ([str(tmp_path)], "holds no run"),
        ([str(run_dir), "--step", "9"], "no step 9; there are 1 to 4"),
        ([str(run_dir), id, "--token", "999"], "action tokens, 0 to"),
    ):
        failed = CliRunner().invoke(cli, ["why", *arguments])
        assert isinstance(failed.exception, RunDirectoryError)
        assert said in str(failed.exception)
