"""Faults that users of other projects reported for records, checkpoints and viewers; see `public_reports.md`."""

import asyncio
import json
import math
import shutil
from dataclasses import replace

import httpx2
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from support.cli import whetstone
from support.conversations import conversations, written
from support.small import StopAfter, Stopped
from support.viewed_runs import made_run, row
from whetstone.chat import assistant, tool_result
from whetstone.errors import PolicyError, summarize_exception
from whetstone.policies import add_adapters, build_tiny, load_policy, save_policy
from whetstone.recipe import load_recipe
from whetstone.record import RunStore
from whetstone.record.checkpoint import Position, checkpoint_path, latest_checkpoint, prune_checkpoints, save_checkpoint
from whetstone.reporting import Journal, Progress, read_trajectories
from whetstone.training import final_policy, train
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer, view_application

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
PLAIN = [
    TINY,
    "ablations=null",
    "evaluation.episodes=4",
    *(f"{key}=null" for key in ("reinforcement", "rollout", "advantage", "objective")),
]
IDS = torch.arange(12).unsqueeze(0)


@pytest.fixture(scope="module")
def policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)


def get(folder, path):
    runs = open_runs([folder], cache=folder.parent / "cache")
    for each in runs:
        each.refresh()
    app = view_application(Viewer(runs))

    async def ask():
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(ask())


# checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_run_stopped_at_the_end_of_an_epoch_resumes_to_the_same_weights(tmp_path, steps):
    """Check report 41: eight conversations in batches of four, so an epoch is two steps."""
    written(tmp_path / "chats.jsonl", conversations(8))
    supervised = {"data": str(tmp_path / "chats.jsonl"), "steps": 5, "batch_size": 4, "checkpoint_interval_steps": 1}
    resolved = load_recipe("demo", PLAIN, supervised=supervised)
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "stopped", progress=StopAfter(steps))
    train(resolved, tmp_path / "stopped", resume=True, progress=Progress(quiet=True))
    assert [row["step"] for row in Journal(tmp_path / "stopped").read()] == [1, 2, 3, 4, 5]
    one, other = (final_policy(tmp_path / name).model.state_dict() for name in ("whole", "stopped"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def save(folder, policy, *steps):
    for count in steps:
        save_checkpoint(folder, policy, {}, Position("supervised", {"supervised": count}, count))


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize("damage", ["truncated", "empty", "no directory entries", "partial", "no checksums"])
def test_checkpoint_truncated_during_writing_is_not_the_latest(tmp_path, policy, damage):
    """Check report 42."""
    save(tmp_path, policy, 1, 2)
    newest = checkpoint_path(tmp_path, 2)
    if damage == "truncated":
        file = next(newest.glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "empty":
        (newest / "trainer" / "optimizer.pt").write_bytes(b"")
    elif damage == "partial":
        newest.rename(newest.with_name(f".{newest.name}.partial"))
    elif damage == "no checksums":
        (newest / "trainer" / "checksums.json").unlink()
    else:
        shutil.rmtree(newest)
        newest.mkdir()
    lines = []
    assert latest_checkpoint(tmp_path, log=lines.append, set_aside=True) == checkpoint_path(tmp_path, 1)
    assert len(lines) == (damage != "partial")
    save(tmp_path, policy, 2)  # the place is free again
    assert latest_checkpoint(tmp_path) == newest


def test_checkpoints_are_ordered_by_number(tmp_path, policy):
    """Check report 43: across a change of the number of digits."""
    save(tmp_path, policy, 999_999, 1_000_000, 9_000_000, 10_000_000)
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 10_000_000)
    prune_checkpoints(tmp_path, keep=set(), last=2)
    assert names(tmp_path) == ["step-10000000", "step-9000000"]


def test_retention_keeps_the_checkpoint_that_was_just_saved(tmp_path, policy):
    """Check report 44: a damaged checkpoint of a higher number is set aside before training continues."""
    save(tmp_path, policy, 1, 2, 400)
    (checkpoint_path(tmp_path, 400) / "config.json").write_text("{}")
    assert latest_checkpoint(tmp_path, set_aside=True) == checkpoint_path(tmp_path, 2)
    save(tmp_path, policy, 3)
    prune_checkpoints(tmp_path, keep=set(), last=1)
    assert checkpoint_path(tmp_path, 3).is_dir()
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 3)


# texts and numbers


HALF = "half of a pair: \ud835, \udc00 and \ud800\ud800"


def test_unpaired_surrogate_does_not_end_a_run(tmp_path):
    """Check report 45: in a response, written to the store, read again, shown in the viewer and the report."""
    run = made_run(tmp_path / "run", says=HALF)
    store = RunStore(run, groups_per_file=2)
    store.close()
    read = [each for path in sorted((run / "trajectories").glob("*.jsonl")) for each in read_trajectories(path)]
    assert len(read) == 12
    texts = {each.turns[-1].message.text for each in read}
    assert all(text.startswith("half of a pair: ") for text in texts)
    assert all(text.encode() for text in texts)
    answer = get(run, "/api/runs/0/trajectory?id=group-1/sums/1%231")
    assert answer.status_code == 200, answer.text
    assert "half of a pair" in answer.text


def test_unpaired_surrogate_in_an_error_can_be_printed():
    """Check report 45."""
    assert summarize_exception(ValueError(HALF)).encode().startswith(b"ValueError: half of a pair: ")


def test_unpaired_surrogate_in_an_unfinished_turn_is_recorded(tmp_path):
    """Check report 45: a turn of an unfinished episode, and the reason of a fault."""
    run = made_run(tmp_path / "run", steps=1)
    (trajectory, *_) = read_trajectories(next((run / "trajectories").glob("step-*.jsonl")))
    turn = replace(trajectory.turns[0], message=assistant(HALF), observation=(tool_result(HALF, call_id="call_0"),))
    store = RunStore(tmp_path, groups_per_file=2)
    store.add("group-0/x#0", turn)
    store.record_fault("environment", HALF, episode="group-0/x#0")
    store.close()
    reopened = RunStore(tmp_path, groups_per_file=2)
    reopened.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_hides_nothing(tmp_path, value):
    """Check report 46."""
    run = made_run(tmp_path / "run", steps=2)
    Journal(run).record("reinforcement", 3, row(2, **{"reward/mean": value, "loss/total": value}))
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    answer = get(run, "/api/runs/0/curves")
    assert answer.status_code == 200, answer.text
    curves = json.loads(answer.text, parse_constant=pytest.fail)["reinforcement"]
    assert curves["reward/mean"]["x"] == [1, 2]
    assert curves["episode/success"]["x"] == [1, 2, 3]
    for path in ("/api/runs/0/overview", "/api/state", "/api/runs/0/steps"):
        assert get(run, path).status_code == 200


@pytest.mark.parametrize(
    "make", [float, np.float16, np.float32, np.float64, torch.tensor], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5])
def test_numbers_of_every_library_are_encoded_equally(tmp_path, make, value):
    """Check report 47."""
    Journal(tmp_path).record("reinforcement", 1, {"mine/number": make(value)})
    (read,) = Journal(tmp_path).read()
    assert read["mine/number"] == (value if math.isfinite(value) else None)


# exports


@torch.no_grad()
def logits(model):
    return model(IDS).logits


def test_adapters_of_an_output_layer_that_is_the_embedding_are_rejected():
    """Check report 49: merging them would also change the embedding."""
    tied = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)
    with pytest.raises(PolicyError, match="lm_head shares its weights with the embedding"):
        add_adapters(tied.model, rank=4, alpha=8, target_modules=["q_proj", "lm_head"], dora=False, seed=1)


def test_a_merged_export_has_the_learned_weights_and_every_file(tmp_path):
    """Check reports 48 and 49: the model has tied embeddings."""
    tuned = build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)
    base = logits(tuned.model)
    assert tuned.model.config.tie_word_embeddings
    tuned.model.generation_config = GenerationConfig(
        eos_token_id=tuned.tokenizer.eos_token_id, temperature=0.5, do_sample=True
    )
    add_adapters(tuned.model, rank=4, alpha=8, target_modules="all-linear", dora=False, seed=1)
    numbers = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in tuned.trainable_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=numbers)
    (tmp_path / "tuned").mkdir()
    save_policy(tuned, tmp_path / "tuned")
    done = whetstone("export", tmp_path / "tuned", "--merged", "--dtype", "float32", "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    learned = logits(load_policy(tmp_path / "tuned").model)
    assert torch.allclose(logits(opened), learned, atol=1e-5)
    assert not torch.allclose(logits(opened), base, atol=1e-2)
    assert (tmp_path / "out" / "generation_config.json").is_file()
    assert opened.generation_config.eos_token_id is not None
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
