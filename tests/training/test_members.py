"""Several members train in one run: each on its own trajectories, with its own optimizer, through kills and resumes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests_small import SMALL, TEACHING, StopAfter, Stopped
from whetstone.assembly import assemble
from whetstone.assembly.member_recipes import recipe_of_member
from whetstone.errors import RecipeError
from whetstone.policies import load_policy
from whetstone.recipe import load_recipe
from whetstone.record import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import train

TWO = "policies={buyer: {}, seller: {like: buyer, reinforcement: {learning_rate: 2.0e-3}}}"
SHORT = [*SMALL, TEACHING, "rollout.group_size=4", "supervised.steps=3", "reinforcement.steps=5"]
SHORT += ["reinforcement.checkpoint_interval_steps=1"]


AHEAD = ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1", "reinforcement.deterministic=true"]


def game(*changes):
    return load_recipe("bargaining", [*SHORT, TWO, *changes])


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


@pytest.mark.slow
def test_members_continue_in_the_next_stage_and_have_their_own_reference(tmp_path):
    """A killed second stage compares with the same reference: the weights with which the stage started."""
    stages = "stages=[{reinforcement: {steps: 2}}, {reinforcement: {steps: 3, reference_kl: 0.1}}]"
    resolved = game("supervised=null", "reinforcement=null", stages, "reward=tests_small:parity")
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
    """Without updates of the other seat, the first member is trained as if the other one were frozen."""
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


def test_a_member_has_the_keys_of_the_one_that_it_is_like():
    resolved = game("policy.dtype=float32", "policies.seller.freeze=[model.norm.weight]")
    seller = recipe_of_member(resolved, "seller").recipe
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
