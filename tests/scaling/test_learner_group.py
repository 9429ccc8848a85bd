"""Several processes learn what one learns: the same losses, gradients, weights and checkpoints."""

import copy
import json
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch.distributed as dist
from safetensors.torch import load_file

from tests_learners import (
    FORMS,
    OneRank,
    alone,
    assembled,
    assert_close,
    assert_same_update,
    cramped,
    fatal,
    groups,
    mistaken,
    plain,
    together,
    weights_of,
)
from tests_slow import mostly_slow
from tests_small import SMALL, TEACHING
from whetstone.errors import LearnerError, RecipeError
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_index import index_groups
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import Position, damage, load_checkpoint, save_checkpoint
from whetstone.reporting import Progress
from whetstone.scaling.learners.messages import ADDRESS, KEY
from whetstone.scaling.learners.processes import LearnerProcesses
from whetstone.training import train


@pytest.fixture(scope="module")
def here():
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
            patched.setenv(name, value)
        yield OneRank()
        dist.destroy_process_group()


def segments(**options):
    return [segment for held in index_groups(tuple(groups(**options))) for segment in held.segments]


@pytest.mark.parametrize("form", mostly_slow(FORMS, quick=["shared-prefix", "critic", "adapters"]))
def test_what_a_rank_is_asked_comes_to_the_loss_and_gradient_of_one_process(here, form):
    assert_same_update(form, here)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_processes_have_the_loss_and_gradient_of_one(two, form):
    assert_same_update(form, two)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_four_processes_have_the_loss_and_gradient_of_one(four, form):
    assert_same_update(form, four)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["shared-prefix", "critic"])
def test_passes_of_many_rounds_come_to_the_same(two, form):
    assert_same_update(form, two, "reinforcement.micro_batch_tokens=128", "reinforcement.minibatches=2", count=4)


@pytest.mark.slow
def test_what_two_saved_one_and_four_go_on_from(two, four, tmp_path):
    batch = UpdateBatch(tuple(groups()), version=0)
    several = together(assembled(), two, staging=tmp_path / "checkpoints")
    several.update(batch)
    several.end_step()
    path = save_checkpoint(
        tmp_path, several.trainer.policy, several.state_dict(), Position("reinforcement", {"r": 1}, 1)
    )
    assert (path / "trainer" / "shards" / ".metadata").is_file()
    assert damage(path) is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing is left beside it
    several.update(batch)
    expected = weights_of(several.trainer)
    for on in (None, four):
        policy, state, _ = load_checkpoint(path)
        again = assembled(policy=policy)
        learner = alone(again) if on is None else together(again, on)
        learner.load_state_dict(state)
        assert learner.trainer.optimizers.done == 1
        learner.update(batch)
        assert_close(weights_of(learner.trainer), expected)


@pytest.mark.slow
def test_what_one_saved_two_go_on_from(two):
    batch = UpdateBatch(tuple(groups()), version=0)
    one = alone(assembled())
    one.update(batch)
    several = together(
        assembled(policy=replace(one.trainer.policy, model=copy.deepcopy(one.trainer.policy.model))), two
    )
    several.load_state_dict(one.state_dict())
    one.update(batch)
    several.update(batch)
    assert_close(weights_of(several.trainer), weights_of(one.trainer))


@pytest.mark.slow
def test_a_loss_of_the_middle_of_a_function_is_refused_in_a_line_and_nothing_ends(two):
    several = together(assembled(), two).trainer
    with pytest.raises(LearnerError, match="top of a module"):
        several.step(segments(), lambda outputs, micro: plain(outputs, micro))
    assert several.step(segments(), plain)["update/skipped_fraction"] == 0


def test_a_mistake_in_a_loss_is_what_is_said(here):
    with pytest.raises(KeyError, match="no such column"):
        together(assembled(), here).trainer.step(segments(), mistaken)


@pytest.fixture(scope="module")
def spare():
    """Two processes that may begin anew, and may not outlive it."""
    processes = LearnerProcesses(2)
    yield processes
    processes.close()


@pytest.mark.slow
def test_memory_of_one_process_is_the_decision_of_all(spare):
    cramped_for = ["reinforcement.micro_batch_tokens=160"]
    one, several = alone(assembled(*cramped_for)).trainer, together(assembled(*cramped_for), spare).trainer
    for loss, its in ((plain, plain), (cramped, plain), (plain, plain)):
        several.step(segments(size=6), loss)
        one.step(segments(size=6), its)
    assert (several.out_of_memory, several.token_budget, one.token_budget) == (1, 80, 160)
    assert_close(weights_of(several), weights_of(one))


@pytest.mark.slow
def test_a_process_that_dies_ends_the_update_and_says_how_to_go_on(spare):
    several = together(assembled(), spare).trainer
    with pytest.raises(LearnerError, match=r"learner process 2 of 2 ended by signal 9.*--resume"):
        several.step(segments(), fatal)
    with pytest.raises(LearnerError, match="--resume"):
        several.step(segments(), plain)


@pytest.mark.slow
def test_ranks_that_torchrun_starts_join_and_leave_with_the_run(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv(ADDRESS, address)
    monkeypatch.setenv(KEY, "5" * 64)
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "whetstone.scaling.learners.rank",
    ]
    with subprocess.Popen([sys.executable, "-m", *command]) as started:
        try:
            processes = LearnerProcesses(2, address=address)
            assert_same_update("shared-prefix", processes)
            processes.close()
            assert started.wait(60) == 0
        finally:
            started.terminate()


def test_an_address_without_a_secret_is_refused(monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(LearnerError, match=rf"{KEY}: .*openssl rand -hex 32"):
        LearnerProcesses(2, address="127.0.0.1:0")


@pytest.mark.slow
def test_a_run_of_two_processes_trains_the_weights_of_one(tmp_path):
    weights, rows = [], []
    for scale in ((), ("learner_processes=2",), ("learner_processes=2", "learner_tensor_parallel=2")):
        changes = [*SMALL, TEACHING, "ablations=null", "supervised.optimizer=adamw", "reinforcement.optimizer=adamw"]
        run = tmp_path / f"of-{len(scale)}"
        recipe = load_recipe("demo", [*changes, *(f"scale.{key}" for key in scale)])
        train(recipe, run, progress=Progress(quiet=True))
        last = sorted((run / "checkpoints").glob("step-*"))[-1]
        weights.append(load_file(last / "model.safetensors"))
        rows.append([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    alone, *several = weights
    for found in several:
        assert alone.keys() == found.keys()
        assert_close(list(found.values()), list(alone.values()))
    for one, *others in zip(*rows, strict=True):
        for other in others:
            assert other["loss/total"] == pytest.approx(one["loss/total"], abs=1e-5)


def test_what_cannot_be_divided_is_refused_before_anything_is_trained():
    with pytest.raises(RecipeError, match="adamw_8bit"):
        assembled("reinforcement.optimizer=adamw_8bit", "scale.learner_processes=2").check()
