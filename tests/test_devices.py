"""A model on a device is sampled, trained and stored as on the CPU; no tensor is created on the wrong device.

The device is a GPU if one exists, otherwise one in the memory of the CPU that raises the errors of a GPU
(`support/fake_device.py`).
"""

import asyncio
import copy
import gc
from importlib.util import find_spec

import pytest
import torch

import whetstone
from support.fake_device import DEVICE, NAME, allocated, without
from support.models import CONFIGS, random_model
from support.sandbox import mark_isolation
from support.segments import segment
from support.small import SMALL, TEACHING, StopAfter, Stopped, in_miniature
from whetstone.algorithms import clipped, reference_kl
from whetstone.assembly import assemble
from whetstone.assembly.placement import list_ineffective_keys, policy_device
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import GenerateRequest, LocalEngine, Member, Sampling
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import (
    Policy,
    available_devices,
    build_critic,
    build_tiny,
    find_device,
    load_policy,
    move_policy,
    save_policy,
    suitable_dtype,
)
from whetstone.recipe import OptimizerSettings, built_in_methods, built_in_recipes, list_stages, load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.trajectory import TokenSequence

THERE = find_device(DEVICE)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
PLAIN = Sampling(max_new_tokens=4, temperature=0.9, seed=4)
WAYS = {
    "plain": PLAIN,
    "greedy": Sampling(max_new_tokens=4, temperature=0.0),
    "cut": Sampling(max_new_tokens=4, temperature=1.2, top_k=20, top_p=0.9, min_p=0.01, seed=1),
    "biased": Sampling(max_new_tokens=4, logit_bias={5: 3.0, 9: -100.0}, seed=2),
    "forced": Sampling(max_new_tokens=4, forced=(5, 6), seed=3),
}


def on_device(model):
    """Return a copy of a model on the device."""
    return move_policy(Policy(copy.deepcopy(model), None), THERE).model


def sample_all_modes(model, **options):
    """Return the results of an engine in each sampling mode, with shared prefixes, two turns and a score."""

    async def main():
        engine = LocalEngine(model, context_length=96, rows=4, **options)
        try:
            prompt = [(7 * k + 3) % 97 for k in range(20)]
            generated = await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(TokenSequence([*prompt, 10 + k]), way, name))
                    for k, (name, way) in enumerate(WAYS.items())
                )
            )
            first = generated[0].tokens
            continued = await engine.generate(
                GenerateRequest(TokenSequence([*prompt, 10, *first, 4, 5]), PLAIN, "plain")
            )
            scores = await engine.score(TokenSequence([*prompt, *first]), start=len(prompt))
            weights = {name: 1.1 * each for name, each in model.named_parameters()}
            await engine.load_weights(weights, 1)
            newer = await engine.generate(GenerateRequest(TokenSequence(prompt), PLAIN, "newer"))
        finally:
            await engine.close()
        return [*generated, continued, newer], scores

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_engine_on_a_device_samples_like_one_on_the_cpu(name):
    model = random_model(name).requires_grad_(False)
    expected, scored = sample_all_modes(copy.deepcopy(model))
    results, scores = sample_all_modes(on_device(model))
    for one, other in zip(results, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, rel=1e-3, abs=1e-4)
        assert one.entropies == pytest.approx(other.entropies, rel=1e-3, abs=1e-4)
    assert scores.logprobs == pytest.approx(scored.logprobs, rel=1e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != NAME, reason="GPUs have float64")
def test_device_without_float64_samples():
    model = random_model("llama").requires_grad_(False)
    expected, _ = sample_all_modes(copy.deepcopy(model))
    with without(torch.float64):
        results, _ = sample_all_modes(on_device(model))
    assert [one.tokens for one in results] == [one.tokens for one in expected]


STEM = [(5 * k + 2) % 97 for k in range(20)]
SEGMENTS = [
    segment([*STEM, *own], [False] * 20 + [k % 3 > 0 for k in range(len(own))], 1.0 - credit)
    for credit, own in enumerate(([4, 9, 9, 2, 7], [4, 9, 11, 30], [50, 51, 52, 53, 54, 55, 56], [60]))
]
"""Segments of one task, two of which are forks."""


SETTINGS = OptimizerSettings(steps=10, learning_rate=1e-3)


def device_bytes():
    """Return the allocated bytes of the device."""
    gc.collect()
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else allocated()


def surrogate(outputs, micro):
    losses = clipped(outputs.logprobs, outputs.logprobs.detach() - 0.1, micro.advantages)
    pull = reference_kl(outputs.logprobs, outputs.logprobs.detach() + 0.2)
    loss = losses.loss + 0.1 * pull.loss - 0.01 * outputs.entropies
    return type(losses)(loss if outputs.values is None else loss + outputs.values.square().sum(1), losses.metrics)


def learned(policy, segments, **changes):
    settings = OptimizerSettings(steps=10, learning_rate=1e-3, **changes)
    trainer = ModelTrainer(policy, settings)
    metrics = [trainer.step(segments, surrogate, temperature=0.8) for _ in range(2)]
    return metrics, trainer.logprobs(segments)


LEARNERS = {
    "trees": {},
    "padded": {"prefix_sharing": False, "micro_batch_tokens": 64},
    "few logits": {"logits_memory_mb": 1},
    "checkpointing": {"activation_checkpointing": True},
    "muon": {"optimizer": "muon_float32", "weight_decay": 0.1},  # the choice of "muon" depends on the processor
}


@pytest.mark.slow
@pytest.mark.parametrize("way", LEARNERS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt_neox"])
def test_learner_on_a_device_trains_like_one_on_the_cpu(name, way):
    model = random_model(name)
    critic = None if name == "gpt_neox" else build_critic(model, ("values", "twin_values"), detached=False)
    alone = Policy(copy.deepcopy(model), None, copy.deepcopy(critic))
    on_gpu = move_policy(Policy(copy.deepcopy(model), None, copy.deepcopy(critic)), THERE)
    learner_metrics, before = learned(alone, SEGMENTS, **LEARNERS[way])
    metrics, logprobs = learned(on_gpu, SEGMENTS, **LEARNERS[way])
    assert metrics[1]["loss/total"] == pytest.approx(learner_metrics[1]["loss/total"], rel=1e-3)
    assert metrics[1]["update/grad_norm"] == pytest.approx(learner_metrics[1]["update/grad_norm"], rel=1e-3)
    for one, other in zip(logprobs, before, strict=True):
        assert one.device == THERE
        torch.testing.assert_close(one.cpu(), other, **CLOSE)
    for one, other in zip(on_gpu.trainable_parameters(), alone.trainable_parameters(), strict=True):
        assert one.device == THERE
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-2, atol=2e-4)


@pytest.mark.slow
def test_offloaded_optimizer_takes_the_same_steps_and_allocates_nothing_on_the_device():
    model = random_model("llama")
    critic = build_critic(model, ("values",))
    for way in ({}, {"optimizer": "muon_float32", "weight_decay": 0.1}):
        alone = Policy(copy.deepcopy(model), None, copy.deepcopy(critic))
        on_gpu = move_policy(Policy(copy.deepcopy(model), None, copy.deepcopy(critic)), THERE)
        learned(alone, SEGMENTS, **way)
        trainer = ModelTrainer(on_gpu, OptimizerSettings(steps=10, learning_rate=1e-3, optimizer_offload=True, **way))
        for _ in range(2):
            trainer.step(SEGMENTS, surrogate, temperature=0.8)
        states = [state for of in trainer.state_dict()["optimizers"] for state in of["state"].values()]
        assert states
        assert {each.device.type for state in states for each in state.values()} == {"cpu"}
        for one, other in zip(on_gpu.trainable_parameters(), alone.trainable_parameters(), strict=True):
            assert one.device == THERE
            torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-2, atol=2e-4)


@pytest.mark.slow
def test_offloaded_optimizer_starts_from_the_loaded_weights():
    on_gpu = move_policy(Policy(random_model("llama"), None), THERE)
    trainer = ModelTrainer(on_gpu, OptimizerSettings(steps=10, optimizer_offload=True))
    state = trainer.state_dict()
    with torch.no_grad():
        for parameter in on_gpu.trainable_parameters():
            parameter.zero_()
    trainer.load_state_dict(state)
    trainer.step(SEGMENTS, surrogate)
    assert all(bool((parameter.abs() < 0.1).all()) for parameter in on_gpu.trainable_parameters())


@pytest.mark.slow
def test_offloaded_reference_is_moved_for_its_pass():
    model, other = random_model("llama"), random_model("llama", seed=1).requires_grad_(False)
    reference = {"reference": Member("reference", lambda: Policy(other, None))}
    expected = ModelTrainer(Policy(model, None), SETTINGS, members=reference).logprobs(SEGMENTS, of="reference")
    on_gpu = move_policy(Policy(copy.deepcopy(model), None), THERE)
    members = {
        "reference": Member("reference", lambda: Policy(other, None), device=THERE),
        "teacher": Member("teacher", lambda: Policy(other, None)),
    }
    trainer = ModelTrainer(on_gpu, SETTINGS, members=members)
    before = device_bytes()
    for of in ("reference", "teacher"):  # moved to the device; computed in place
        for one, wanted in zip(trainer.logprobs(SEGMENTS, of=of), expected, strict=True):
            assert one.device == THERE
            torch.testing.assert_close(one.cpu(), wanted, **CLOSE)
    del one
    assert {parameter.device.type for parameter in other.parameters()} == {"cpu"}
    assert device_bytes() == before


@pytest.mark.slow
def test_sleeping_engine_has_no_kv_cache_and_continues_identically():
    model = on_device(random_model("llama").requires_grad_(False))

    async def drawn(*, sleeps):
        engine = LocalEngine(model, context_length=96, rows=4)
        first = await engine.generate(GenerateRequest(TokenSequence(STEM), PLAIN, "a"))
        awake = device_bytes()
        if sleeps:
            await engine.sleep()
            assert (
                device_bytes() < awake - 4 * 96 * 2 * 16 * 4
            )  # sequences, positions, keys and values, elements, bytes
        prompt = [*STEM, *first.tokens, 4, 5]
        second = await engine.generate(
            GenerateRequest(TokenSequence(prompt), PLAIN, "a", sampled_spans=[(20, 20 + len(first.tokens))])
        )
        await engine.close()
        return second

    one, other = asyncio.run(drawn(sleeps=True)), asyncio.run(drawn(sleeps=False))
    assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs)


RUNS = {
    "weights": (),
    "adapters": ("policy.lora={rank: 4}",),
    "bfloat16": ("policy.dtype=bfloat16",),
    "adapters in bfloat16": ("policy.lora={rank: 4}", "policy.dtype=bfloat16"),
    "reference": ("reinforcement.reference_kl=0.01",),
    "reference brought": ("reinforcement.reference_kl=0.01", "reinforcement.reference_offload=true"),
    "reference on the CPU": ("reinforcement.reference_kl=0.01", "reinforcement.reference_device=cpu"),
    "optimiser on the CPU": ("reinforcement.optimizer_offload=true", "supervised.optimizer_offload=true"),
    "ahead": ("reinforcement.admit_ahead=1", "reinforcement.max_staleness=1"),
    "evaluated in background": ("evaluation.interval_steps=1",),
    "entropy": ("reinforcement.entropy={band: 0.2}", "reinforcement.imitation={}"),
}


def small(*changes, name="demo", device=DEVICE):
    words = [*SMALL, TEACHING, "ablations=null", "evaluation.episodes=2", f"policy.device={device}", *changes]
    return load_recipe(name, words)


@pytest.mark.slow
@pytest.mark.parametrize("way", RUNS)
def test_run_on_a_device_trains_and_is_evaluated_on_the_cpu(tmp_path, way):
    run = train(small(*RUNS[way]), tmp_path, progress=Progress(quiet=True))
    assert run.policy().device.type == "cpu"
    assert whetstone.evaluate(run, ["policy.device=cpu"], progress=Progress(quiet=True)).episodes == 2


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(DEVICE, "cpu"), ("cpu", DEVICE)])
@pytest.mark.parametrize("name", ["demo", "ppo"])
def test_stopped_run_resumes_on_another_device(tmp_path, first, then, name):
    often = "reinforcement.checkpoint_interval_steps=1"
    with pytest.raises(Stopped):
        train(small(often, name=name, device=first), tmp_path / "run", progress=StopAfter(1, of="reinforcement"))
    run = train(small(often, name=name, device=then), tmp_path / "run", resume=True, progress=Progress(quiet=True))
    undisturbed = train(small(often, name=name, device="cpu"), tmp_path / "whole", progress=Progress(quiet=True))
    for one, other in zip(run.policy().model.parameters(), undisturbed.policy().model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


RECIPES = [name for name in (*built_in_recipes(), *built_in_methods()) if name != "textworld"]
"""All but one whose games take minutes to make."""


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_isolation(RECIPES, needing=["smollm2-python"]))
def test_every_recipe_runs_two_steps_on_a_device(tmp_path, name, request):
    changes = [*in_miniature(name, request), "ablations=null", "evaluation.episodes=1", f"policy.device={DEVICE}"]
    try:
        recipe = load_recipe(name, [*changes, TEACHING])
        for one in [stage.resolved for stage in list_stages(recipe)] or [recipe]:
            assemble(one).check()
    except RecipeError:  # its rewards are not only 0 or 1
        recipe = load_recipe(name, changes)
    train(recipe, tmp_path, progress=Progress(quiet=True))


@pytest.mark.slow
def test_adapters_are_saved_from_a_device_and_loaded(tmp_path):
    policy = assemble(small("policy.lora={rank: 4}")).policy
    assert policy.device == THERE
    save_policy(policy, tmp_path)
    loaded = load_policy(tmp_path, device=THERE)
    assert loaded.device == THERE
    written = {name: each.cpu() for name, each in policy.model.state_dict().items()}
    assert all(torch.equal(each.cpu(), written[name]) for name, each in loaded.model.state_dict().items())


def test_shared_weights_stay_shared_on_a_device():
    on_gpu = move_policy(build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16), THERE).model
    assert on_gpu.get_input_embeddings().weight is on_gpu.get_output_embeddings().weight


@pytest.mark.slow
def test_device_of_a_recipe_is_reported_once():
    messages = []
    assemble(small(), say=messages.append).check()
    assert len([line for line in messages if line.startswith(f"computed on {THERE}")]) == 1


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (f"{DEVICE}:99", rf"policy\.device: {DEVICE}:99: this machine has \d+ \({DEVICE}:0"),
        ("xpu", r"policy\.device: xpu: this machine has no such device that PyTorch .* can use; available: .*cpu"),
        ("cdua", r'policy\.device: "cdua" is not a device; did you mean "cuda"\?'),
        ("cuda:-1", r'policy\.device: "cuda:-1" is not a device'),
        ("meta", r"policy\.device: meta: this machine has no such device"),
    ],
)
def test_missing_device_is_one_line(device, message):
    with pytest.raises(RecipeError, match=message) as raised:
        assemble(small(device=device)).check()
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(DEVICE != NAME, reason="which numbers a GPU has is its own")
def test_bfloat16_is_the_default_on_devices_that_support_it_and_refused_on_others():
    large, small_one = 20_000_000, 10_000
    assert suitable_dtype(large, THERE) == torch.bfloat16
    assert suitable_dtype(small_one, THERE) == torch.float32
    with without(torch.bfloat16):
        assert suitable_dtype(large, THERE) == torch.float32
        with pytest.raises(
            RecipeError, match=r"policy\.dtype: bfloat16: second:0 .* has no instructions for it; use float16"
        ):
            policy_device(small("policy.dtype=bfloat16"))


def test_setting_without_effect_on_the_cpu_is_reported():
    keys = ["reinforcement.optimizer_offload", "reinforcement.reference_offload"]
    recipe = small(*(f"{key}=true" for key in keys), device="cpu")
    assert list_ineffective_keys(recipe, torch.device("cpu")) == keys
    assert list_ineffective_keys(recipe, THERE) == []


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != NAME, reason="GPUs have float64")
def test_run_needs_no_float64_of_a_device(tmp_path):
    with without(torch.float64):
        train(small("reinforcement.reference_kl=0.01"), tmp_path, progress=Progress(quiet=True))
    assert (tmp_path / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.skipif(
    DEVICE != "cuda" or find_spec("bitsandbytes") is None, reason="no GPU, or: pip install bitsandbytes"
)
def test_eight_bit_states_are_saved_and_loaded_on_a_gpu(tmp_path):
    model, settings = random_model("llama"), OptimizerSettings(steps=10, learning_rate=1e-3, optimizer="adamw_8bit")
    first, second = (ModelTrainer(move_policy(Policy(copy.deepcopy(model), None), THERE), settings) for _ in range(2))
    first.step(SEGMENTS, surrogate)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.policy.model.load_state_dict(first.policy.model.state_dict())
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu"))
    for trainer in (first, second):
        trainer.step(SEGMENTS, surrogate)
    for one, other in zip(first.policy.trainable_parameters(), second.policy.trainable_parameters(), strict=True):
        assert one.device == THERE
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_eight_bit_states_are_not_computed_on_the_cpu():
    changes = ("reinforcement.optimizer=adamw_8bit", "reinforcement.optimizer_offload=true")
    with pytest.raises(
        RecipeError, match=r"reinforcement\.optimizer: adamw_8bit computes on a GPU; .* use adamw or muon"
    ):
        assemble(small(*changes)).check()


def test_auto_is_a_gpu_if_one_exists_and_otherwise_the_cpu():
    assert find_device("auto") == torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    assert available_devices()[-1] == find_device("cpu") == torch.device("cpu")
    assert THERE in available_devices()
    with pytest.raises(PolicyError):
        find_device("")
