"""The device of `support/fake_device.py` finds faults that only a GPU shows, and counts the waits of the CPU for it.

Each planted fault is a change of one line that people make: a tensor that stays on the CPU, a generator of another
device, numbers read one at a time. Without it the same work runs.
"""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.fake_device import NAME, recorded_waits
from support.models import random_model
from test_devices import SEGMENTS, SETTINGS, STEM, THERE, on_device, surrogate
from whetstone.errors import InfrastructureError
from whetstone.inference import GenerateRequest, LocalEngine, Sampling, forward_choice, sampling
from whetstone.inference.kv_cache import KVCache
from whetstone.learning import forward_passes
from whetstone.learning.flops import peak_flops
from whetstone.learning.forward_passes import LocalPasses, is_out_of_memory
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import Policy, move_policy
from whetstone.trajectory import TokenSequence

pytestmark = pytest.mark.skipif(THERE.type != NAME, reason="planted faults are for the device in the CPU's memory")
MIXED = "expected all tensors to be on the same device"


def trainer_there(**changes):
    policy = move_policy(Policy(copy.deepcopy(random_model("llama")), None), THERE)
    return ModelTrainer(policy, SETTINGS.model_copy(update=changes))


def sample(count=1, tokens=4):
    """Sample `count` episodes; return (decode steps, operations that waited for the device)."""

    async def run():
        engine = LocalEngine(on_device(random_model("llama").requires_grad_(False)), context_length=96, rows=16)
        draw = Sampling(max_new_tokens=tokens, seed=1)
        try:
            await engine.generate(GenerateRequest(TokenSequence(STEM), draw, "first"))  # examines the model
            before = engine.statistics.steps
            with recorded_waits() as waits:
                requests = [GenerateRequest(TokenSequence([*STEM, k]), draw, str(k)) for k in range(count)]
                await asyncio.gather(*map(engine.generate, requests))
            return engine.statistics.steps - before, waits
        finally:
            await engine.close()

    return asyncio.run(run())


def leave_a_column_on_the_cpu(monkeypatch):
    original = forward_passes.pack_segments

    def pack(*arguments, **options):
        for micro in original(*arguments, **options):
            yield replace(micro, advantages=micro.advantages.cpu())

    monkeypatch.setattr(forward_passes, "pack_segments", pack)


def make_weights_on_the_cpu(monkeypatch):
    original = MetricAccumulator.add

    def add(self, per_token, *rest):
        original(self, replace(per_token, loss=per_token.loss * torch.ones(len(per_token.loss))), *rest)

    monkeypatch.setattr(MetricAccumulator, "add", add)


def restore_a_state_without_its_device(monkeypatch):
    original = LocalPasses.apply

    def apply(self):
        for optimizer in self.optimizers.all_optimizers:
            for state in optimizer.state.values():
                state["exp_avg"] = state["exp_avg"].cpu()
        return original(self)

    monkeypatch.setattr(LocalPasses, "apply", apply)


@pytest.mark.parametrize(
    "plant", [leave_a_column_on_the_cpu, make_weights_on_the_cpu, restore_a_state_without_its_device]
)
def test_planted_fault_of_a_learner_is_found(monkeypatch, plant):
    trainer = trainer_there()
    trainer.step(SEGMENTS, surrogate)
    plant(monkeypatch)
    with pytest.raises(RuntimeError, match=MIXED):
        trainer.step(SEGMENTS, surrogate)


def keep_random_numbers_on_the_cpu(monkeypatch):
    original = sampling._invert_cdf
    monkeypatch.setattr(sampling, "_invert_cdf", lambda probabilities, numbers: original(probabilities, numbers.cpu()))


def test_planted_fault_of_an_engine_is_found(monkeypatch):
    keep_random_numbers_on_the_cpu(monkeypatch)
    with pytest.raises(InfrastructureError, match=MIXED):
        sample()


def test_planted_fault_in_an_optimized_path_is_a_warning_and_the_reference_path(monkeypatch):
    original = KVCache.select_slots

    def aim(self, *arguments, **options):
        original(self, *arguments, **options)
        self.places = self.places.cpu()

    model = on_device(random_model("llama").requires_grad_(False))
    assert forward_choice._try_slots(model) is None  # over rows
    monkeypatch.setattr(KVCache, "select_slots", aim)
    with pytest.warns(UserWarning, match=r"do not support it \(RuntimeError\)"):
        assert forward_choice._try_slots(model) is not None


def test_generator_of_the_cpu_is_refused_on_the_device():
    numbers = torch.Generator().manual_seed(0)
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.randn(3, generator=numbers, device=THERE)
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.zeros(3, device=THERE).normal_(generator=numbers)


def test_tensors_on_the_device_are_neither_written_nor_read_by_numpy(tmp_path):
    tensor = torch.ones(3, device=THERE)
    with pytest.raises(TypeError, match="could not read it"):
        torch.save(tensor, tmp_path / "state.pt")
    with pytest.raises((TypeError, RuntimeError)):
        np.asarray(tensor)


@pytest.mark.slow
def test_number_of_waits_per_update_is_constant():
    counts = {}
    for name, segments, changes in (
        ("few", SEGMENTS, {}), ("many", SEGMENTS * 3, {}), ("cut", SEGMENTS, {"micro_batch_tokens": 24}),
    ):  # fmt: skip
        trainer = trainer_there(**changes)
        trainer.step(SEGMENTS, surrogate)  # measures the peak of a product
        with recorded_waits() as waits:
            metrics = trainer.step(segments, surrogate, temperature=0.8)
        counts[name] = len(waits)
        assert metrics["update/skipped_fraction"] == 0
    assert counts["few"] == counts["many"] <= 4
    passes = 1 + (counts["cut"] - counts["few"]) / 2
    assert passes == int(passes) > 1  # two per pass: its tally, and whether its entropies have a gradient


def test_numbers_read_one_at_a_time_are_counted(monkeypatch):
    original = MetricAccumulator.add

    def add(self, per_token, *rest):
        for value in per_token.loss:
            value.item()
        original(self, per_token, *rest)

    monkeypatch.setattr(MetricAccumulator, "add", add)
    trainer = trainer_there()
    trainer.step(SEGMENTS, surrogate)
    with recorded_waits() as waits:
        trainer.step(SEGMENTS, surrogate)
    assert len(waits) > 4


@pytest.mark.slow
def test_decode_step_waits_for_the_device_twice_for_any_batch():
    for count in (1, 8):
        steps, waits = sample(count, tokens=6)
        assert 0 < len(waits) <= 2 * (steps + count)  # a prompt that ends samples a first token


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: out of memory", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_out_of_memory_errors_are_distinguished_from_others(text, is_memory):
    assert is_out_of_memory(RuntimeError(text)) is is_memory


def test_the_peak_is_measured_with_a_smaller_product_if_memory_does_not_suffice(monkeypatch):
    sizes = []

    def product(size, repeats, device, dtype):
        sizes.append(size)
        if size > 512:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1e9

    monkeypatch.setattr("whetstone.learning.flops._product_flops", product)
    assert peak_flops.__wrapped__("cuda", torch.bfloat16) == 1e9
    assert sizes == [4096, 2048, 1024, 512]
