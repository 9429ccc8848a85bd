"""A small complete run: its files, its refusals, and its resume after a stop."""

import fcntl
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.episodes import group, turn
from support.episodes import path as path_of
from support.sandbox import mark_isolation
from support.slow import mostly_slow
from support.small import SMALL, TEACHING, StopAfter, Stopped, in_miniature
from whetstone.assembly import assemble
from whetstone.errors import NonFiniteError, RunDirectoryError, SaveError, WhetstoneError
from whetstone.inference import matmul_is_batch_invariant
from whetstone.policies import save_policy
from whetstone.recipe import built_in_recipes, load_recipe
from whetstone.record import run_recipe
from whetstone.record.checkpoint import load_checkpoint
from whetstone.record.run_directory import open_run_directory
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import final_policy, train
from whetstone.training.run import _suggest_more_steps
from whetstone.training.supervised import describe_groups

CHECKPOINT_EVERY_STEP = ["supervised.checkpoint_interval_steps=1", "reinforcement.checkpoint_interval_steps=1"]


QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "demo"
    resolved = small("ablations={without_tool: {environment.tools: [], environment.max_calls_per_turn: null}}")
    return run_dir, train(resolved, run_dir, progress=QUIET)


def small(*overrides):
    return load_recipe("demo", [*SMALL, *overrides])


def test_run_writes_the_documented_files(finished):
    run_dir, summary = finished
    assert {"recipe.yaml", "metrics.jsonl", "trajectories", "checkpoints", "summary.json", "report.html"} <= {
        path.name for path in run_dir.iterdir()
    }
    assert json.loads((run_dir / "summary.json").read_text()) == summary.written
    assert list(summary.evaluations) == ["untrained", "supervised", "reinforcement"]
    for side in (summary.before, summary.after):
        low, high = side.interval
        assert 0 <= low <= side.success <= high <= 1


def test_metrics_are_one_object_per_step_with_the_documented_keys(finished):
    rows = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["step"]) for row in rows] == [
        ("supervised", 1),
        ("supervised", 2),
        ("reinforcement", 1),
        ("reinforcement", 2),
    ]
    expected = {"reward/mean", "episode/turns", "episode/success", "time/rollout", "throughput/tokens_per_second"}
    assert expected <= set(rows[-1])


def test_checkpoint_is_a_hugging_face_folder(finished):
    folder = max((finished[0] / "checkpoints").iterdir())
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    state = final_policy(finished[0]).model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "12"}], tokenize=False)
    assert rendered == "<|user|>12<|end|>"
    assert [tokenizer.decode(i) for i in tokenizer.encode("127", add_special_tokens=False)] == ["1", "2", "7"]


def test_stored_trajectories_are_the_sampled_ones(finished):
    (trajectory, *_) = trajectories = read_trajectories(finished[0] / "trajectories" / "step-000002.jsonl")
    assert len(trajectories) == 2 * 2
    drawn = trajectory.turns[0].action
    assert all(logprob <= 0 for logprob in drawn.logprobs)
    assert set(drawn.versions) == {3}  # two supervised updates and one of reinforcement came before


def test_ablation_is_a_run_next_to_it(finished):
    run_dir, summary = finished
    assert "without_tool" in summary.ablations
    assert run_recipe(run_dir / "ablations" / "without_tool").recipe.environment.options.get("tools") in (None, [])
    assert summary.ablations["without_tool"].after.tool_calls == 0


def test_finished_run_is_only_reported_again(finished):
    run_dir, summary = finished
    resolved = small("ablations={without_tool: {environment.tools: [], environment.max_calls_per_turn: null}}")
    repeated = train(resolved, run_dir, resume=True, progress=StopAfter(0))
    assert repeated.written == summary.written


@pytest.mark.parametrize("steps", mostly_slow([0, 1, 2, 3], quick=[2]))
def test_run_stopped_anywhere_resumes_to_the_same_weights(tmp_path, steps):
    resolved = small("ablations=null", *CHECKPOINT_EVERY_STEP, TEACHING, "rollout.group_size=4")
    undisturbed = train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "stopped", progress=StopAfter(steps))
    resumed = train(resolved, tmp_path / "stopped", resume=True, progress=QUIET)
    assert resumed.written["evaluations"] == undisturbed.written["evaluations"]
    expected, state = (final_policy(tmp_path / name).model.state_dict() for name in ("whole", "stopped"))
    assert all(torch.equal(expected[name], state[name]) for name in expected)
    steps_on_record = [
        [(row["stage"], row["step"]) for row in map(json.loads, (tmp_path / name / "metrics.jsonl").open())]
        for name in ("whole", "stopped")
    ]
    assert steps_on_record[0] == steps_on_record[1]


@pytest.mark.skipif(
    not matmul_is_batch_invariant(),
    reason="this processor's matrix products round by the number of rows; run on x86 with PyTorch's own wheel",
)
def test_weights_and_metrics_do_not_depend_on_the_concurrency(tmp_path):
    results = []
    for in_flight in (1, 3, 64):
        run_dir = tmp_path / str(in_flight)
        train(
            small("ablations=null", TEACHING, "rollout.group_size=4", f"rollout.max_in_flight={in_flight}"),
            run_dir,
            progress=QUIET,
        )
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        timed = ("time/", "throughput/", "memory/")
        metrics = [{key: value for key, value in row.items() if not key.startswith(timed)} for row in rows]
        results.append((metrics, final_policy(run_dir).model.state_dict()))
    for metrics, weights in results[1:]:
        assert metrics == results[0][0]
        assert all(torch.equal(value, results[0][1][name]) for name, value in weights.items())


def test_directory_with_a_run_is_not_overwritten(finished):
    with pytest.raises(RunDirectoryError, match="holds a run already; add --resume"):
        train(small(), finished[0], progress=QUIET)
    with pytest.raises(RunDirectoryError, match="another recipe: seed is 0 there and 7 here"):
        train(
            small("seed=7", "ablations={without_tool: {environment.tools: [], environment.max_calls_per_turn: null}}"),
            finished[0],
            resume=True,
            progress=QUIET,
        )


def test_directory_with_other_files_is_not_changed(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match=r"is not empty and holds no run \(thesis\.tex is in it\)"):
        train(small(), tmp_path, progress=QUIET)
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunDirectoryError, match="another process is training here; wait until it ends"):
            train(small(), tmp_path, progress=QUIET)
        lock.write("4711")
        lock.flush()
        with pytest.raises(RunDirectoryError, match=r"another process \(4711\) is training here"):
            train(small(), tmp_path, progress=QUIET)
    with open_run_directory(tmp_path / "run", small(), resume=False):
        assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    "damaged",
    mostly_slow(["trainer/optimizer.pt", "model.safetensors", "trainer/checksums.json"], quick=["model.safetensors"]),
)
def test_damaged_checkpoint_is_reported_and_the_previous_one_used(tmp_path, capsys, damaged):
    resolved = small("ablations=null", *CHECKPOINT_EVERY_STEP, TEACHING, "rollout.group_size=4")
    train(resolved, tmp_path / "run", progress=QUIET)
    weights = {name: value.clone() for name, value in final_policy(tmp_path / "run").model.state_dict().items()}
    for path in ("summary.json", "evaluations/reinforcement.json"):
        (tmp_path / "run" / path).unlink()
    last = max((tmp_path / "run" / "checkpoints").iterdir())
    content = bytearray((last / damaged).read_bytes())
    content[len(content) // 2] ^= 1
    (last / damaged).write_bytes(content)
    train(resolved, tmp_path / "run", resume=True, progress=Progress())
    message = " ".join(capsys.readouterr().err.split())
    assert "damaged checkpoint (" in message
    assert "resuming from step 3" in message
    resumed = final_policy(tmp_path / "run").model.state_dict()
    assert all(torch.equal(value, resumed[name]) for name, value in weights.items())
    assert (last.parent / f"damaged-{last.name}").is_dir()


def test_full_disk_during_saving_is_one_line_and_earlier_checkpoints_remain(tmp_path, small_disk):
    resolved = small("ablations=null", *CHECKPOINT_EVERY_STEP)
    with pytest.raises(SaveError, match="the disk is full"):
        train(resolved, small_disk / "run", progress=QUIET)
    for folder in (small_disk / "run" / "checkpoints").glob("step-*"):
        AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)


def test_prompts_longer_than_the_context_end_the_run_in_one_line(tmp_path):
    with pytest.raises(WhetstoneError, match=r"nothing was played: no prompt leaves room for an answer"):
        train(small("policy.tiny.context_length=16"), tmp_path / "run", progress=QUIET)


def test_gradients_that_are_not_finite_end_the_run_with_its_state_saved(tmp_path):
    resolved = small(
        "ablations=null", "supervised.steps=9", "supervised.learning_rate=1e38", "supervised.max_nonfinite_updates=2"
    )
    with pytest.raises(
        NonFiniteError, match=r"step \d of supervised: .* 2 updates in a row.*The state is in .*step-00000"
    ):
        train(resolved, tmp_path / "run", progress=QUIET)
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert load_checkpoint(saved)[2].done == {"supervised": len(rows)}


VARIANTS = {
    "adapters": ["policy.lora={rank: 4}", "reinforcement.reference_kl=0.1"],
    "adapters without a warm-up": ["policy.lora={rank: 4}", "reinforcement.reference_kl=0.1", "supervised=null"],
    "adapters in 4 bits": ["policy.lora={rank: 4, quantization: nf4}", "reinforcement.reference_kl=0.1"],
    "frozen": ["policy.freeze=[model.embed_tokens.*]", "reinforcement.reference_kl=0.1"],
    "epochs": ["reinforcement.epochs=2", "reinforcement.minibatches=2", "reinforcement.reference_kl=0.1"],
    "critic": ["advantage=turn_gae", "critic={warmup_updates: 1, learning_rate: 0.02}"],
    "critic epochs": ["advantage=turn_gae", "critic={epochs: 3}"],
    "token critic": ["advantage=token_gae", "critic={detach_backbone: false, clip: 0.2}"],
    "slow critics": ["advantage=archer", "critic={}", "objective=policy_gradient"],
    "success critics": ["advantage=digirl", "critic={loss: success}", "objective=policy_gradient"],
    "process model": ["advantage=oprl", "implicit_prm={learning_rate: 0.01}"],
    "entropy band": ["reinforcement.entropy={weight: 0.01, band: 0.2, phase: decay}"],
    "preference": ["objective=dpo", "advantage=null"],
    "regression": ["objective=refuel", "advantage=null", "reinforcement.minibatches=2"],
    "sequences": [
        "objective={name: gspo, clip_low: 0.2, clip_high: 0.2}",
        "aggregation=sequence_mean",
        "reinforcement.epochs=2",
    ],
    "chance": [
        "advantage_transforms=[{name: clip_cov, low: -1, fraction: 0.2}]",
        "objective=kl_cov",
        "reinforcement.epochs=2",
    ],
    "stale tokens": ["advantage_transforms=[{name: m2po, bound: 0.01}]"],
    "penalty": ["advantage=reinforce_plus_plus", "reward_shaping=[{name: kl_penalty, weight: 0.5}]"],
    "imitation": ["reinforcement.imitation={weight: 0.5, batch_size: 3}"],
    "one by one": [
        "reinforcement.prefix_sharing=false",
        "supervised.prefix_sharing=false",
        "reinforcement.reference_kl=0.1",
    ],
}


@pytest.mark.parametrize("name", mostly_slow(VARIANTS, quick=["adapters", "critic epochs"]))
def test_every_learner_stopped_anywhere_resumes_to_the_same_weights(tmp_path, name):
    if "4 bits" in name:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
    changes = [c for c in SMALL if not ("supervised=null" in VARIANTS[name] and c.startswith("supervised"))]
    changes += [
        "ablations=null",
        "reinforcement.checkpoint_interval_steps=1",
        TEACHING,
        "rollout.group_size=4",
        *VARIANTS[name],
    ]
    resolved = load_recipe("demo", changes)
    train(resolved, tmp_path / "whole", progress=QUIET)
    warm_up = 0 if resolved.recipe.supervised is None else 2
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "stopped", progress=StopAfter(warm_up + 1))
    train(resolved, tmp_path / "stopped", resume=True, progress=QUIET)
    expected, policy = (final_policy(tmp_path / run) for run in ("whole", "stopped"))
    weights = policy.model.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in expected.model.state_dict().items())
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["update/skipped_fraction"] == 0
    if name == "imitation":
        assert rows[-1]["loss/imitation"] > 0
    if "critic" in name:
        assert rows[-1]["loss/value"] >= 0
        assert all(map(torch.equal, expected.critic.state_dict().values(), policy.critic.state_dict().values()))
    if name.startswith("adapters"):
        assert (max((tmp_path / "whole" / "checkpoints").iterdir()) / "adapter_model.safetensors").is_file()
    if name == "frozen":
        untrained = assemble(resolved).policy.model.get_input_embeddings().weight
        assert torch.equal(expected.model.get_input_embeddings().weight, untrained)


_METHODS = ["gspo", "expert-iteration", "star"]
"""Others train in `test_methods_in_worlds.py`, which these two leave without a solved episode."""


@pytest.mark.parametrize(
    "name",
    mark_isolation(mostly_slow([*built_in_recipes(), *_METHODS], quick=["demo"]), needing=["smollm2-python"]),
)
def test_every_recipe_runs_two_steps_with_a_tiny_model(tmp_path, name, request):
    summary = train(load_recipe(name, in_miniature(name, request)), tmp_path / name, progress=QUIET)
    assert summary.after.episodes == 4


@pytest.mark.slow
def test_run_whose_template_rewrites_history_counts_it_and_reports_once(tmp_path):
    policy = assemble(small()).policy
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(
        "{% for message in messages %}", "{{ messages | length }}{% for message in messages %}"
    )
    (tmp_path / "model").mkdir()
    save_policy(policy, tmp_path / "model")
    lines = []

    class Hears(Progress):
        def say(self, text):
            lines.append(text)

    overrides = ["policy.tiny=null", f"policy.path={tmp_path / 'model'}", "chat.format=compact", "ablations=null"]
    train(small(*overrides), tmp_path / "run", progress=Hears(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["episode/context_resets"] >= 0 for row in rows if row["stage"] == "reinforcement")
    reported = [text for text in lines if "rewrites earlier messages" in text]
    assert len(reported) == 1
    assert "it renders the initial messages differently" in reported[0]


def test_unused_template_variable_is_an_error_with_its_place():
    with pytest.raises(WhetstoneError, match=r'chat\.variables.*never reads "enable_thinking", nor any other'):
        assemble(small("chat.variables={enable_thinking: false}")).check()


def test_segments_that_start_within_an_episode_are_counted_per_episode():
    opens, goes_on = (replace(turn("b"), opens_segment=opened) for opened in (True, False))
    twice, never = path_of("a", 1.0, [opens, opens, goes_on, opens]), path_of("b", 0.0, [opens, goes_on])
    description = describe_groups([replace(group(1.0, 0.0), trajectories=(twice, never))])
    assert (
        description["episode/context_resets"] == 1.0
    )  # the first turn of an episode opens its first segment: (2 + 0) / 2


def test_live_run_is_not_continued_by_training(tmp_path):
    (tmp_path / "live").mkdir()
    with pytest.raises(RunDirectoryError, match="holds a run of `whetstone live`, which the command that started it"):
        train(small(), tmp_path, resume=True, progress=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


def test_command_for_more_steps_names_the_last_stage_and_a_chain_has_none(tmp_path):
    def suggest(resolved):
        return _suggest_more_steps(SimpleNamespace(resolved=resolved, run_dir=tmp_path))

    assert "--resume reinforcement.steps=" in suggest(small())
    alone = ("reinforcement", "advantage", "objective", "rollout.group_size", "ablations")
    assert "--resume supervised.steps=" in suggest(small().with_changes(dict.fromkeys(alone)))
    assert suggest(load_recipe("score")) == ""
