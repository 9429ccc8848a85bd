"""Several learner processes compute the losses, gradients, weights and checkpoints of one."""

import copy
import json
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch.distributed as dist
from safetensors.torch import load_file

from support.learners import (
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
    segfaulting,
    together,
    weights_of,
)
from support.slow import mostly_slow
from support.small import SMALL, TEACHING
from whetstone.errors import LearnerError, RecipeError
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_index import index_groups
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import Position, load_checkpoint, save_checkpoint, verify_checkpoint
from whetstone.reporting import Progress
from whetstone.scaling.distributed_learner.messages import ADDRESS, KEY
from whetstone.scaling.distributed_learner.processes import LearnerProcesses
from whetstone.training import train


@pytest.fixture(scope="module")
def one_rank():
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
            patched.setenv(name, value)
        yield OneRank()
        dist.destroy_process_group()


def segments(**options):
    return [segment for indexed in index_groups(tuple(groups(**options))) for segment in indexed.segments]


@pytest.mark.parametrize("form", mostly_slow(FORMS, quick=["shared-prefix", "critic", "adapters"]))
def test_one_rank_computes_loss_and_gradient_of_one_process(one_rank, form):
    assert_same_update(form, one_rank)


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
def test_passes_of_several_rounds_have_the_same_result(two, form):
    assert_same_update(form, two, "reinforcement.micro_batch_tokens=128", "reinforcement.minibatches=2", count=4)


@pytest.mark.slow
def test_checkpoint_of_two_processes_is_resumed_by_one_and_four(two, four, tmp_path):
    batch = UpdateBatch(tuple(groups()), version=0)
    several = together(assembled(), two, staging=tmp_path / "checkpoints")
    several.update(batch)
    several.end_step()
    path = save_checkpoint(
        tmp_path, several.trainer.policy, several.state_dict(), Position("reinforcement", {"r": 1}, 1)
    )
    assert (path / "trainer" / "shards" / ".metadata").is_file()
    assert verify_checkpoint(path) is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no other file remains
    several.update(batch)
    expected = weights_of(several.trainer)
    for on in (None, four):
        policy, state, _ = load_checkpoint(path)
        restored = assembled(policy=policy)
        learner = alone(restored) if on is None else together(restored, on)
        learner.load_state_dict(state)
        assert learner.trainer.optimizers.done == 1
        learner.update(batch)
        assert_close(weights_of(learner.trainer), expected)


@pytest.mark.slow
def test_checkpoint_of_one_process_is_resumed_by_two(two):
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
def test_closure_as_a_loss_is_refused_in_one_line_and_the_processes_continue(two):
    several = together(assembled(), two).trainer
    with pytest.raises(LearnerError, match="top level of a module"):
        several.step(segments(), lambda outputs, micro: plain(outputs, micro))
    assert several.step(segments(), plain)["update/skipped_fraction"] == 0


def test_error_in_a_loss_is_raised_unchanged(one_rank):
    with pytest.raises(KeyError, match="no such column"):
        together(assembled(), one_rank).trainer.step(segments(), mistaken)


@pytest.fixture(scope="module")
def spare():
    """Start two processes that can be restarted and end with the test."""
    processes = LearnerProcesses(2)
    yield processes
    processes.close()


@pytest.mark.slow
def test_out_of_memory_of_one_process_is_handled_by_all(spare):
    cramped_for = ["reinforcement.micro_batch_tokens=160"]
    one, several = alone(assembled(*cramped_for)).trainer, together(assembled(*cramped_for), spare).trainer
    for loss, its in ((plain, plain), (cramped, plain), (plain, plain)):
        several.step(segments(size=6), loss)
        one.step(segments(size=6), its)
    assert (several.out_of_memory, several.token_budget, one.token_budget) == (1, 80, 160)
    assert_close(weights_of(several), weights_of(one))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "cause"),
    [(fatal, "signal 9"), (segfaulting, r"signal 11 \(Fatal Python error: Segmentation fault, File .*line")],
)
def test_dead_process_ends_the_update_and_the_message_has_the_remedy(loss, cause):
    several = together(assembled(), LearnerProcesses(2)).trainer
    with pytest.raises(LearnerError, match=rf"learner process 2 of 2 ended by {cause}.*--resume"):
        several.step(segments(), loss)
    with pytest.raises(LearnerError, match="--resume"):
        several.step(segments(), plain)


@pytest.mark.slow
def test_ranks_started_by_torchrun_join_and_end_with_the_run(monkeypatch):
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
        "whetstone.scaling.distributed_learner.rank",
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
def test_run_of_two_processes_trains_the_weights_of_one(tmp_path):
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
    for distributed in several:
        assert alone.keys() == distributed.keys()
        assert_close(list(distributed.values()), list(alone.values()))
    for one, *others in zip(*rows, strict=True):
        for other in others:
            assert other["loss/total"] == pytest.approx(one["loss/total"], abs=1e-5)


def test_indivisible_settings_are_refused_before_the_run():
    with pytest.raises(RecipeError, match="adamw_8bit"):
        assembled("reinforcement.optimizer=adamw_8bit", "scale.learner_processes=2").check()
