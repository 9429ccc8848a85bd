"""Tuning of threads: short forward passes use the fastest number of threads, with identical results."""

import asyncio

import pytest
import torch

from whetstone.compute_thread import run_engine_steps, run_in_compute_thread
from whetstone.inference.forward import SlotForward
from whetstone.inference.thread_tuning import GRAIN, SHORT, ProductThreads, ThreadChoice, matmul_is_thread_invariant
from whetstone.policies import build_tiny


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    asyncio.run(run_in_compute_thread(torch.set_num_threads, before))
    torch.set_num_threads(before)


def passes(count, *, one_takes, all_take, core_fraction=lambda now: 1.0):
    """Threads of each forward pass, with the given seconds for one thread and for all threads."""
    now, processor = [0.0], [0.0]
    choice, counts = ThreadChoice(clock=lambda: now[0], thread_clock=lambda: processor[0]), []
    for _ in range(count):
        with choice.limit_threads(1, tried=True):
            counts.append(torch.get_num_threads())
            seconds = one_takes(now[0]) if counts[-1] == 1 else all_take(now[0])
            processor[0] += seconds * core_fraction(now[0])
            now[0] += seconds
    assert torch.get_num_threads() == 2
    return counts


def test_faster_number_of_threads_is_used_and_the_other_is_tried_now_and_then():
    quiet = passes(400, one_takes=lambda now: 1.1, all_take=lambda now: 1.0)
    assert quiet[:12] == [1, 1, 1, 2, 2, 2] * 2
    assert quiet.count(1) < 15
    slow = passes(400, one_takes=lambda now: 1.0, all_take=lambda now: 9.0)
    assert slow.count(2) < 40  # a trial ends with the first forward pass of all threads


def test_trial_ends_before_all_threads_are_tried_if_other_processes_use_the_core():
    counts = passes(400, one_takes=lambda now: 1.5, all_take=lambda now: 1.0, core_fraction=lambda now: 2 / 3)
    assert counts.count(2) == 0


@pytest.mark.parametrize(("slower", "noticed"), [(2.0, 8), (9.0, 4)])
def test_trial_starts_at_once_if_forward_passes_of_all_threads_become_slower(slower, noticed):
    counts = passes(
        800,
        one_takes=lambda now: 1.1 if now < 100 else 1.65,
        all_take=lambda now: 1.0 if now < 100 else slower,
        core_fraction=lambda now: 1.0 if now < 100 else 2 / 3,
    )
    assert counts[50:90].count(2) > 30
    assert counts[98:].index(1) < noticed  # not after 20 times the duration of a trial
    assert counts[107:].count(2) == 0


def test_all_threads_are_tried_soon_after_other_processes_end():
    counts = passes(
        800,
        one_takes=lambda now: 1.65 if now < 500 else 1.1,
        all_take=lambda now: 9.0 if now < 500 else 1.0,
        core_fraction=lambda now: 2 / 3 if now < 500 else 1.0,
    )
    idle_from = round(500 / 1.65)
    assert counts[:idle_from].count(2) == 0
    assert counts[idle_from:].index(2) < 20
    assert counts[-100:].count(2) > 85


def test_one_thread_stays_set_between_engine_steps_and_other_work_has_all_threads():
    choice = ThreadChoice()

    def step():
        before = torch.get_num_threads()
        with choice.limit_threads(1, tried=False):
            within = torch.get_num_threads()
        return before, within, torch.get_num_threads()

    async def main():
        await run_in_compute_thread(torch.set_num_threads, 2)
        steps = [await run_engine_steps(step) for _ in range(2)]
        other = await run_in_compute_thread(torch.get_num_threads)
        with pytest.raises(RuntimeError):
            await run_engine_steps(fail)
        return steps, other, await run_in_compute_thread(step), await run_in_compute_thread(torch.get_num_threads)

    def fail():
        with choice.limit_threads(1, tried=False):
            raise RuntimeError

    assert asyncio.run(main()) == ([(2, 1, 1), (1, 1, 1)], 2, (2, 1, 2), 2)


@pytest.mark.skipif(
    not matmul_is_thread_invariant(2), reason="this machine's products depend on the number of threads: all are used"
)
def test_large_logits_are_sampled_with_all_threads():
    model = build_tiny(["Compute 12+3 with the calculator."], hidden=128, heads=4, layers=2, context_length=128).model
    forward = SlotForward(model, rows=32, context_length=128)
    vocabulary = model.config.vocab_size
    counts = []

    def step(width):
        with torch.inference_mode():
            logits = forward.compute_logits(range(32), [0] * 32, [[5] * width] * 32, everywhere=True)
        counts.append((logits.numel() >= GRAIN, torch.get_num_threads()))

    async def main():
        await run_in_compute_thread(torch.set_num_threads, 2)
        for width in (1, -(-GRAIN // (32 * vocabulary))):
            await run_engine_steps(step, width)

    forward._threads.one = True
    asyncio.run(main())
    assert counts[-1] == (True, 2)


def test_different_passes_are_not_compared_and_long_passes_use_all_threads():
    choice = ThreadChoice()
    for _ in range(3):
        with choice.limit_threads(1, tried=False):
            assert torch.get_num_threads() == 1
        with choice.limit_threads(SHORT, tried=True):
            assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError), choice.limit_threads(1, tried=False):
        raise RuntimeError
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(
    not matmul_is_thread_invariant(2), reason="this machine's products depend on the number of threads: all are used"
)
def test_bits_do_not_depend_on_the_number_of_threads():
    model = build_tiny(["Compute 12+3 with the calculator."], hidden=128, heads=4, layers=2, context_length=128).model
    prompts = [[(7 * row + place) % 200 for place in range(60)] for row in range(32)]
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        forward = SlotForward(model, rows=32, context_length=128)
        with torch.inference_mode():
            logits = forward.compute_logits(range(32), [0] * 32, prompts)
            tokens = [[int(token)] for token in logits.argmax(-1)]
            decode_logits = forward.compute_logits(range(32), [60] * 32, tokens, is_decode=True, prompts=[60] * 32)
        results.append(torch.cat([logits, decode_logits]))
    assert torch.equal(*results)


@pytest.mark.parametrize(("numbers", "between"), [(1000, 1), (10**6, 2)])
def test_small_operations_between_products_use_one_thread(numbers, between):
    shares, counts = ProductThreads(numbers), []

    def fails():
        with shares.reduce_threads():
            counts.append(torch.get_num_threads())
            with shares.use_all_threads():
                counts.append(torch.get_num_threads())
            counts.append(torch.get_num_threads())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert counts == [between, 2, between]
    assert torch.get_num_threads() == 2


def test_single_thread_computes_everything():
    torch.set_num_threads(1)
    shares = ProductThreads(10**6)
    with shares.reduce_threads(), shares.use_all_threads():
        assert torch.get_num_threads() == 1
