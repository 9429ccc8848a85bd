"""Several members train in one run: each on its own trajectories, with its own optimizer, through kills and resumes."""

import asyncio
import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from support.small import SMALL, TEACHING, StopAfter, Stopped
from whetstone.analysis import Explainer, RunReplay
from whetstone.assembly import assemble
from whetstone.assembly.member_recipes import member_recipe
from whetstone.cli.main import cli
from whetstone.errors import RecipeError
from whetstone.policies import load_policy
from whetstone.recipe import load_recipe
from whetstone.record import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import final_policy, train
from whetstone.training.agent_evaluation import evaluate

TWO = "policies={buyer: {}, seller: {like: buyer, reinforcement: {learning_rate: 2.0e-3}}}"
SHORT = [*SMALL, TEACHING, "rollout.group_size=4", "supervised.steps=3", "reinforcement.steps=5"]
SHORT += ["reinforcement.checkpoint_interval_steps=1"]


AHEAD = ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1", "reinforcement.deterministic=true"]


def game(*changes):
    return load_recipe("bargaining", [*SHORT, TWO, *changes])


def replay_everything(run):
    async def collect():
        return [check async for check in RunReplay(run).recompute_all(updates=True)]

    return asyncio.run(collect())


def weights(run, member=None):
    folder = latest_checkpoint(run)
    return load_file((folder if member is None else folder / "members" / member) / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [[], AHEAD])
def test_two_members_train_and_a_killed_run_has_the_same_weights(tmp_path, ahead):
    resolved = game(*ahead)
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    with pytest.raises(Stopped):  # in the warm-up, before the second member exists
        train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(1, of="supervised"))
    for steps in (2, 1):
        with pytest.raises(Stopped):
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=Progress(quiet=True))
    for member in (None, "seller"):
        resumed = weights(tmp_path / "killed", member)
        assert all(torch.equal(value, resumed[name]) for name, value in weights(tmp_path / "whole", member).items())
    buyer, seller = weights(tmp_path / "whole"), weights(tmp_path / "whole", "seller")
    begin = load_file(tmp_path / "whole" / "checkpoints" / "step-000003" / "model.safetensors")
    assert all(any(not torch.equal(begin[name], one[name]) for name in begin) for one in (buyer, seller))
    assert any(not torch.equal(buyer[name], seller[name]) for name in buyer)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "trajectories" / "step-000001.jsonl").open()]
    assert {(row["role"], row["member"]) for row in rows} == {("buyer", "buyer"), ("seller", "seller")}
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").open()]
    assert all("members/seller/update/learning_rate" in row for row in metrics if row["stage"] == "reinforcement")
    load_policy(latest_checkpoint(tmp_path / "whole") / "members" / "seller")
    replayed = replay_everything(tmp_path / "whole")
    assert {check.what: check.examples for check in replayed if check.changed} == {}
    assert {"updates 1 to 5", "rewards of training"} <= {check.what for check in replayed}


@pytest.mark.slow
def test_members_continue_in_the_next_stage_and_have_their_own_reference(tmp_path):
    """Kill the second stage; its reference stays the weights with which the stage started."""
    stages = "stages=[{reinforcement: {steps: 2}}, {reinforcement: {steps: 3, reference_kl: 0.1}}]"
    resolved = game("supervised=null", "reinforcement=null", stages, "reward=support.small:parity")
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    for steps in (3, 1):
        with pytest.raises(Stopped):
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
    train(resolved, tmp_path / "killed", resume=True, progress=Progress(quiet=True))
    first, second = sorted((tmp_path / "whole" / "stages").iterdir())
    resumed = weights(tmp_path / "killed" / "stages" / second.name, "seller")
    assert all(torch.equal(value, resumed[name]) for name, value in weights(second, "seller").items())
    begin = weights(first, "seller")
    assert any(not torch.equal(value, resumed[name]) for name, value in begin.items())
    row = json.loads((second / "metrics.jsonl").read_text().splitlines()[0])
    assert row["members/seller/policy/reference_kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_a_member_with_the_settings_of_the_first_starts_with_its_weights(tmp_path):
    """Compare with a frozen other member: without its updates, the first member is trained equally."""
    still = ["policies={buyer: {}, seller: {like: buyer, trained: false}}", "reinforcement.steps=1"]
    train(game(*still), tmp_path / "frozen", progress=Progress(quiet=True))
    train(game("reinforcement.steps=1"), tmp_path / "both", progress=Progress(quiet=True))
    one, two = weights(tmp_path / "frozen"), weights(tmp_path / "both")
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    begin = load_file(tmp_path / "frozen" / "checkpoints" / "step-000003" / "model.safetensors")
    frozen = weights(tmp_path / "frozen", "seller")
    assert all(torch.equal(value, frozen[name]) for name, value in begin.items())
    rows = [json.loads(line) for line in (tmp_path / "frozen" / "trajectories" / "step-000001.jsonl").open()]
    authors = {row["role"]: {run[0] for turn in row["turns"] for run in turn["action"]["authors"]} for row in rows}
    assert authors == {"buyer": {"policy"}, "seller": {"partner"}}


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """A run of one update with two trained members, evaluated after the update."""
    run = tmp_path_factory.mktemp("members") / "run"
    settings = ["reinforcement.steps=1", "evaluation={episodes: 4, interval_steps: 1, interval_episodes: 2}"]
    train(game(*settings), run, progress=Progress(quiet=True))
    return run


@pytest.mark.slow
def test_evaluation_has_a_result_of_each_member_in_its_seat(short_run):
    results = {path.stem: json.loads(path.read_text()) for path in (short_run / "evaluations").iterdir()}
    assert set(results) == {"untrained", "supervised", "reinforcement-000001", "reinforcement"}
    for result in results.values():
        assert {name: each["seat"] for name, each in result["members"].items()} == {
            "buyer": "buyer",
            "seller": "seller",
        }
    last = results["reinforcement"]
    assert all(last["members"]["buyer"][key] == last[key] for key in ("success", "interval", "episodes", "reward"))
    folder = short_run / "trajectories"
    for name, member in (("evaluation-reinforcement", "buyer"), ("evaluation-seller-reinforcement", "seller")):
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").open()]
        assert {(row["member"], row["role"]) for row in rows} == {(member, member)}
        rewards = [row["score"]["value"] for row in rows]
        assert last["members"][member]["reward"] == pytest.approx(sum(rewards) / len(rewards))
    repeated = evaluate(short_run, progress=Progress(quiet=True)).to_json()
    assert repeated["members"] == last["members"]
    assert all(check.changed == 0 for check in replay_everything(short_run))
    output = CliRunner().invoke(cli, ["show", str(short_run)]).output
    assert "; buyer in seat buyer " in output
    assert "; seller in seat seller " in output
    assert "<h2>By member</h2>" in (short_run / "report.html").read_text()


@pytest.mark.slow
def test_commands_that_use_one_model_require_its_name(short_run, tmp_path):
    for command in (["chat", str(short_run)], ["export", str(short_run), "--output-dir", str(tmp_path / "model")]):
        refused = CliRunner().invoke(cli, command).exception
        assert str(refused) == f"{short_run}: has several models; choose one with --member buyer or --member seller"
        unknown = CliRunner().invoke(cli, [*command, "--member", "broker"]).exception
        assert str(unknown) == f"{short_run}: has no member broker; there are: buyer, seller"
    command = ["export", str(short_run), "--output-dir", str(tmp_path / "model"), "--member", "seller"]
    assert CliRunner().invoke(cli, [*command, "--dtype", "float32"]).exit_code == 0
    exported = load_policy(tmp_path / "model").model.state_dict()
    assert all(torch.equal(value, exported[name]) for name, value in weights(short_run, "seller").items())
    first, second = (final_policy(short_run, member=name).model.state_dict() for name in ("buyer", "seller"))
    assert any(not torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.slow
def test_tokens_of_a_member_are_explained_with_its_own_weights(short_run):
    row = json.loads((short_run / "trajectories" / "step-000001.jsonl").read_text().splitlines()[1])
    assert row["member"] == "seller"
    explained = asyncio.run(Explainer(short_run).explain_trajectory(row["id"]))
    ratios = [token.passes[0]["logprob"] - token.sampler_logprob for token in explained.tokens]
    assert ratios == pytest.approx([0.0] * len(ratios), abs=1e-4)


def test_a_member_has_the_keys_of_the_one_that_it_is_like():
    resolved = game("policy.dtype=float32", "policies.seller.freeze=[model.norm.weight]")
    seller = member_recipe(resolved, "seller").recipe
    assert seller.policy.tiny == resolved.recipe.policy.tiny
    assert seller.policy.dtype == "float32"
    assert seller.policy.freeze == ["model.norm.weight"]
    assert not resolved.recipe.policy.freeze
    assert seller.reinforcement.learning_rate == 2.0e-3 != resolved.recipe.reinforcement.learning_rate


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["rollout.strategy.members={seller: lender}"],
            'strategy.members.seller: no member is named "lender"; .*seller',
        ),
        (["policies.clerk={like: buyer}"], "policies.clerk: has no effect: it plays no seat"),
        (["policies.seller.like=lender"], 'policies.seller.like: no other member is named "lender"; others: buyer'),
        (["policies.seller.reinforcement={learning_rat: 1}"], "reinforcement.learning_rat"),
        (["policies.buyer.trained=false"], "policies.buyer.trained: the first member is trained"),
        (["scale=local-ray"], "scale.backend: buyer and seller are trained, which requires one process"),
        (["scale.learner_processes=2"], "learner_processes: buyer and seller are trained, each by one process"),
        (
            ["engine={name: vllm, address: 'http://localhost:1'}"],
            "engine.address: buyer and seller are trained, and the server at http://localhost:1 loads .* of one model",
        ),
        (
            ["models={seller: {function: 'tests_clerks:clerk'}}", "rollout.strategy.frozen={buyer: seller}"],
            'policies.seller: two members are named "seller"',
        ),
    ],
)
def test_members_that_cannot_train_together_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        assemble(game(*changes)).check()
