"""`ModelTrainer` has the loss and gradient of a naive computation of one sequence at a time."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.forward_passes import recorder
from support.models import CONFIGS, random_model
from support.segments import forked_segments, segment
from support.slow import examples
from whetstone.algorithms import clipped, reference_kl, squared_value, supervised
from whetstone.errors import NonFiniteError
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import Policy, add_adapters, build_critic, build_tiny, has_adapters
from whetstone.recipe import OptimizerSettings

FLOAT64 = 1e-6
"""Tolerance in float64: models still normalize in float32."""
SETTINGS = OptimizerSettings(steps=10, learning_rate=1e-3)


def small_policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)


def with_settings(**changes):
    return SETTINGS.model_copy(update=changes)


def surrogate(outputs, micro):
    return clipped(outputs.logprobs, outputs.logprobs.detach(), micro.advantages)


def off_policy(outputs, micro):
    """Compute the loss of a second update: the old policy differs, and some tokens are clipped."""
    old = outputs.logprobs.detach() + 0.4 * torch.sin(micro.targets.to(outputs.logprobs.dtype))
    return clipped(outputs.logprobs, old, micro.advantages)


def imitation(outputs, micro):
    return supervised(outputs.logprobs)


def pull(outputs, micro):
    return reference_kl(outputs.logprobs, torch.cos(micro.targets.to(outputs.logprobs.dtype)) - 5)


def entropy(outputs, micro):
    loss = surrogate(outputs, micro)
    return type(loss)(loss.loss - 0.3 * outputs.entropies, loss.metrics)


LOSSES = {"clipped": surrogate, "off_policy": off_policy, "supervised": imitation, "kl": pull, "entropy": entropy}


class _Micro:
    def __init__(self, targets, advantages):
        self.targets, self.advantages = targets, advantages


class _Outputs:
    def __init__(self, logprobs, entropies):
        self.logprobs, self.entropies = logprobs, entropies


def naive(model, batch, loss_of, temperature=1.0):
    """Return (loss, gradients) of a copy of the model by its own forward pass."""
    model = copy.deepcopy(model)
    total = sum(sum(s.action_mask[1:]) for s in batch)
    loss = 0.0
    for s in batch:
        wanted = [i for i in range(1, len(s)) if s.action_mask[i]]
        if not wanted:
            continue
        logits = model(torch.tensor([s.tokens.ids]), use_cache=False).logits[0, [i - 1 for i in wanted]]
        logp = torch.log_softmax(logits / temperature, -1)
        targets = torch.tensor([s.tokens.ids[i] for i in wanted])
        outputs = _Outputs(logp[range(len(wanted)), targets], -(logp.exp() * logp).sum(-1))
        micro = _Micro(targets, torch.tensor([s.advantages[i] for i in wanted], dtype=logp.dtype))
        loss = loss + loss_of(outputs, micro).loss.sum() / total
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def assert_same(actual, expected, tolerance):
    """Assert equality up to a fraction of the norm of the complete gradient."""
    size = torch.stack([g.norm() for g in expected if g is not None]).norm().item()
    for one, other in zip(actual, expected, strict=True):
        one = torch.zeros(()) if one is None else one
        other = torch.zeros(()) if other is None else other
        assert (one - other).norm().item() <= tolerance * size + 1e-12


def trainable(batch):
    return any(any(s.action_mask[1:]) for s in batch)


@examples(40)
@given(
    batch=forked_segments(),
    budget=st.integers(1, 80),
    share=st.booleans(),
    loss=st.sampled_from(sorted(LOSSES)),
    temperature=st.sampled_from([1.0, 0.7]),
)
def test_float64_loss_and_gradient_equal_the_naive_ones(batch, budget, share, loss, temperature):
    if not trainable(batch):
        return
    policy = small_policy()
    policy.model.double()
    learner = recorder(policy, with_settings(micro_batch_tokens=budget, prefix_sharing=share))
    metrics = learner.step(batch, LOSSES[loss], temperature=temperature)
    expected_loss, expected = naive(policy.model, batch, LOSSES[loss], temperature)
    assert metrics["loss/total"] == pytest.approx(expected_loss, rel=FLOAT64, abs=1e-9)
    assert_same(learner.passes.kept, expected, FLOAT64)


@examples(20)
@given(batch=forked_segments(), budget=st.integers(1, 80))
def test_gradient_of_a_critic_reaches_the_policy_as_in_the_naive_computation(batch, budget):
    if not trainable(batch):
        return
    policy = small_policy()
    policy.model.double()
    critic = build_critic(policy.model, detached=False).double()
    torch.nn.init.normal_(critic.value.weight, generator=torch.Generator().manual_seed(0))
    learner = recorder(replace(policy, critic=critic), with_settings(micro_batch_tokens=budget))

    def squared(values, targets):
        return squared_value(values, torch.cos(targets.to(values.dtype)).unsqueeze(1))

    learner.step(batch, lambda outputs, micro: squared(outputs.values, micro.targets))
    model, loss = copy.deepcopy(policy.model), 0.0
    for s in batch:
        wanted = [i for i in range(1, len(s)) if s.action_mask[i]]
        states = model.model(torch.tensor([s.tokens.ids]), use_cache=False).last_hidden_state[0]
        targets = torch.tensor([s.tokens.ids[i] for i in wanted], dtype=torch.long)
        loss = loss + squared(critic(states[[i - 1 for i in wanted]]), targets).loss.sum()
    (loss / sum(sum(s.action_mask[1:]) for s in batch)).backward()
    assert_same(learner.passes.kept, [p.grad for p in model.parameters()], FLOAT64)


@examples(30)
@given(batch=forked_segments(), budget=st.integers(20, 200))
def test_float32_results_with_and_without_sharing_agree_to_five_digits(batch, budget):
    if not trainable(batch):
        return
    results = []
    for share in (True, False):
        learner = recorder(small_policy(), with_settings(micro_batch_tokens=budget, prefix_sharing=share))
        loss = learner.step(batch, imitation)["loss/total"]
        results.append((loss, learner.passes.kept))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    assert_same(results[0][1], results[1][1], 1e-5)


def group(vocabulary=97):
    """Build a prompt, three answers, and forks of one of them."""
    stem = [(5 * k + 2) % vocabulary for k in range(20)]
    first = [*stem, *((k * k + 1) % vocabulary for k in range(18))]
    segments = [segment(first, [0] * 20 + [1] * 18, 0.75)]
    for k in range(2):
        segments.append(segment([*stem, *((k + 3 * i) % vocabulary for i in range(17))], [0] * 20 + [1] * 17, -0.5))
    segments.append(segment([*first[:36], 9, 8, 7], [0] * 30 + [1] * 9, 1.25))
    return [*segments, segment([1, 2, 3, 4], [0, 1, 0, 1], 0.25)]


@pytest.mark.parametrize("name", CONFIGS)
def test_model_families_are_computed_as_trees(name):
    model = random_model(name).double()
    learner = recorder(Policy(model, None), SETTINGS)
    assert learner.shares
    metrics = learner.step(group(), surrogate)
    assert metrics["update/computed_tokens"] < 0.75 * sum(map(len, group()))
    _, expected = naive(model, group(), surrogate)
    assert_same(learner.passes.kept, expected, FLOAT64)


def test_unsupported_model_is_computed_one_segment_at_a_time():
    policy = small_policy()
    policy.model.double()
    policy.model.base_model_prefix = "nowhere"
    learner = recorder(policy, SETTINGS)
    assert not learner.shares
    learner.step(group(), surrogate)
    _, expected = naive(policy.model, group(), surrogate)
    assert_same(learner.passes.kept, expected, FLOAT64)


@pytest.mark.parametrize("dora", [False, True])
def test_only_adapters_are_trained(dora):
    policy = small_policy()
    policy.model.double()
    add_adapters(policy.model, rank=4, alpha=8, target_modules=["q_proj", "down_proj"], dora=dora, seed=1)
    with torch.no_grad():  # as after some training
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter += 0.01 * torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape).sin()
    assert has_adapters(policy.model)
    learner = recorder(policy, SETTINGS)
    learner.step(group(), surrogate)
    _, expected = naive(policy.model, group(), surrogate)
    assert_same(learner.passes.kept, expected, FLOAT64)
    names = [name for name, p in policy.model.named_parameters() if p.requires_grad]
    assert names != []
    assert all("lora_" in name for name in names)


def test_policy_with_disabled_adapters_is_the_reference():
    policy = small_policy()
    plain = ModelTrainer(copy.deepcopy(policy), SETTINGS).logprobs(group())
    add_adapters(policy.model, rank=4, alpha=8, target_modules="all-linear", dora=False, seed=1)
    trained = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    learner = ModelTrainer(policy, with_settings(learning_rate=0.05))
    learner.step(group(), surrogate)
    adapted = learner.logprobs(group())
    reference = learner.logprobs(group(), of="reference")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, reference, strict=True))
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(adapted, reference, strict=True))
    assert {name for name, p in policy.model.named_parameters() if p.requires_grad} == trained


@pytest.mark.parametrize("change", [{"activation_checkpointing": True}, {"logits_memory_mb": 1}])
def test_memory_saving_options_change_no_gradient(change):
    gradients = []
    for changes in ({}, change):
        learner = recorder(small_policy(), with_settings(**changes))
        learner.step(group(), surrogate)
        gradients.append(learner.passes.kept)
    assert_same(*gradients, 1e-6)


@pytest.mark.slow  # takes seconds on processors without support for the precision
@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
def test_low_precision_gradients_have_the_same_direction(short):
    gradients = []
    for precision in (torch.float32, short):
        learner = recorder(replace(small_policy(), dtype=precision), with_settings())
        learner.step(group(), surrogate)
        gradients.append(torch.cat([g.flatten() for g in learner.passes.kept]))
    assert gradients[1].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.99


def test_skipped_tokens_without_credit_change_nothing():
    learner = recorder(small_policy(), SETTINGS)
    with_credit, without = segment([1, 2, 3], [0, 1, 1]), segment([4, 5, 6, 7], [0, 1, 1, 1], advantage=0.0)
    learner.step([with_credit, without], surrogate)
    complete = learner.passes.kept
    learner.step([with_credit], surrogate, divisor=5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(complete, learner.passes.kept, strict=True))


def test_logprobs_are_returned_in_the_order_of_segments():
    policy = small_policy()
    batch = [segment(range(n), [i % 2 for i in range(n)]) for n in (3, 9, 2, 5)] + [segment([7], [1])]
    logprobs = ModelTrainer(policy, with_settings(micro_batch_tokens=12)).logprobs(batch, temperature=0.7)
    for s, values in zip(batch, logprobs, strict=True):
        with torch.no_grad():
            plain = torch.log_softmax(policy.model(torch.tensor([s.tokens.ids])).logits[0] / 0.7, -1)
        expected = [plain[i - 1, s.tokens.ids[i]] for i in range(1, len(s)) if s.action_mask[i]]
        assert torch.allclose(values, torch.stack(expected) if expected else torch.zeros(0), atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("adapted", [False, True])
def test_loss_falls_on_a_fixed_batch(optimizer, adapted):
    policy = small_policy()
    if adapted:
        add_adapters(policy.model, rank=8, alpha=16, target_modules="all-linear", dora=False, seed=1)
    learner = ModelTrainer(policy, OptimizerSettings(steps=40, optimizer=optimizer, learning_rate=1e-2))
    batch = [segment([5, 9, 7, 3, 8], [0, 1, 1, 1, 1])]
    losses = [learner.step(batch, imitation)["loss/total"] for _ in range(40)]
    assert losses[-1] < losses[0] - (0.1 if adapted else 1.0)


def test_empty_update_is_counted_and_changes_nothing():
    policy = small_policy()
    before = [p.clone() for p in policy.model.parameters()]
    learner = ModelTrainer(policy, SETTINGS)
    assert learner.step([], surrogate)["update/skipped_fraction"] == 1.0
    assert learner.step([segment([1, 2], [0, 0])], surrogate)["update/skipped_fraction"] == 1.0
    zero = learner.step([segment([1, 2, 3], [0, 1, 1], advantage=0.0)], surrogate)
    assert (zero["update/skipped_fraction"], zero["update/tokens"]) == (1.0, 2.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_nonfinite_gradients_are_skipped_until_a_limit_in_a_row():
    policy = small_policy()
    before = [p.clone() for p in policy.model.parameters()]
    learner = ModelTrainer(policy, with_settings(max_nonfinite_updates=3))
    broken = [segment([1, 2], [0, 1], advantage=math.inf)]
    for _ in range(2):
        metrics = learner.step(broken, surrogate)
        assert (metrics["update/skipped_fraction"], metrics["update/nonfinite_fraction"]) == (1.0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    learner.step([segment([1, 2], [0, 1])], surrogate)  # one valid update resets the count
    learner.step(broken, surrogate)
    learner.step(broken, surrogate)
    with pytest.raises(NonFiniteError, match="3 updates in a row"):
        learner.step(broken, surrogate)


def test_equal_seeds_give_bit_identical_weights():
    def trained():
        policy = small_policy()
        learner = ModelTrainer(policy, SETTINGS)
        for _ in range(3):
            learner.step(group(), surrogate)
        return list(policy.model.parameters())

    assert all(torch.equal(a, b) for a, b in zip(trained(), trained(), strict=True))


def test_update_reports_its_cost_and_size():
    metrics = ModelTrainer(small_policy(), with_settings(micro_batch_tokens=45)).step(group(), surrogate)
    assert metrics["update/oversized_micro_batches"] == 0
    assert 0 < metrics["update/relative_norm"] < 0.1
    assert 0 < metrics["update/shared_fraction"] < 1
    assert metrics["throughput/update_tokens_per_second"] > 0
    assert 0 < metrics["throughput/mfu"] < 1
    assert metrics["memory/peak_gib"] > 0
    narrow = ModelTrainer(small_policy(), with_settings(micro_batch_tokens=30)).step(group(), surrogate)
    assert narrow["update/oversized_micro_batches"] == 4  # of five segments one fits, and the others take one pass each


def test_unknown_token_names_its_trajectory():
    with pytest.raises(ValueError, match="token 90000 is not one of the model's"):
        ModelTrainer(small_policy(), SETTINGS).step([segment([1, 90000], [0, 1])], surrogate)


def test_policy_has_the_context_length_of_its_model():
    assert isinstance(small_policy(), Policy)
    assert small_policy().context_length == 64


class _LimitedMemory:
    """A forward pass that runs out of memory beyond a number of tokens."""

    def __init__(self, forward, most, error):
        self.forward, self.most, self.error, self.refused = forward, most, error, 0

    def __call__(self, micro, temperature, *, noise=None):
        if len(micro.ids) > self.most:
            self.refused += 1
            raise self.error
        return self.forward(micro, temperature)

    def __getattr__(self, name):
        return getattr(self.forward, name)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_update_out_of_memory_is_repeated_in_smaller_micro_batches(error):
    batch = [segment([1, 2, 3 + i, *range(5, 45)], [0] * 3 + [1] * 40, 0.5 - i) for i in range(8)]
    plenty = recorder(small_policy(), with_settings(micro_batch_tokens=512, prefix_sharing=False))
    plenty.step(batch, surrogate)
    scarce = recorder(small_policy(), with_settings(micro_batch_tokens=512, prefix_sharing=False))
    little = _LimitedMemory(scarce.passes.forwards["policy"], 130, error)
    scarce.passes.forwards["policy"] = little
    metrics = scarce.step(batch, surrogate)
    assert little.refused == 2
    assert (scarce.token_budget, scarce.out_of_memory) == (128, 2)
    assert metrics["memory/micro_batch_tokens"] == 128
    for actual, expected in zip(plenty.passes.kept, scarce.passes.kept, strict=True):
        assert torch.allclose(actual, expected, atol=1e-6)
    assert [len(logprobs) for logprobs in scarce.logprobs(batch)] == [
        len(logprobs) for logprobs in plenty.logprobs(batch)
    ]


def test_other_errors_are_raised_and_clear_the_gradient():
    learner = ModelTrainer(small_policy(), SETTINGS)
    learner.passes.forwards["policy"] = _LimitedMemory(
        learner.passes.forwards["policy"], 0, RuntimeError("shapes differ")
    )
    with pytest.raises(RuntimeError, match="shapes differ"):
        learner.step([segment([1, 2, 3, 4], [0, 0, 1, 1])], surrogate)
    assert all(parameter.grad is None for parameter in learner.policy.model.parameters())
