"""A short pass is computed by as many threads as are quickest, and that decides nothing but how long it takes."""

import pytest
import torch

from whetstone.inference.forward import RowForward
from whetstone.inference.threads import SHORT, Shares, ThreadChoice, sums_alike
from whetstone.policies import build_tiny


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def passes(count, *, one_takes, all_take):
    """Threads of each pass, where passes of one thread and of all take so many seconds."""
    now = [0.0]
    choice, found = ThreadChoice(clock=lambda: now[0]), []
    for _ in range(count):
        with choice.threads(1, tried=True):
            found.append(torch.get_num_threads())
            now[0] += one_takes(now[0]) if found[-1] == 1 else all_take(now[0])
    assert torch.get_num_threads() == 2
    return found


def test_the_quicker_is_taken_and_the_other_tried_now_and_then():
    quiet = passes(200, one_takes=lambda now: 1.1, all_take=lambda now: 1.0)
    assert quiet[:6] == [1, 2, 1, 2, 1, 2]
    assert quiet.count(1) < 10
    busy = passes(200, one_takes=lambda now: 1.0, all_take=lambda now: 9.0)
    assert busy.count(2) < 6


def test_a_machine_that_becomes_busy_is_noticed():
    found = passes(400, one_takes=lambda now: 1.1, all_take=lambda now: 1.0 if now < 100 else 9.0)
    assert found[50:90].count(2) > 30
    assert found[-100:].count(1) > 90


def test_what_is_unlike_its_neighbours_is_not_compared_and_long_passes_have_all():
    choice = ThreadChoice()
    for _ in range(3):
        with choice.threads(1, tried=False):
            assert torch.get_num_threads() == 1
        with choice.threads(SHORT, tried=True):
            assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError), choice.threads(1, tried=False):
        raise RuntimeError
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not sums_alike(2), reason="this machine's products depend on the number of threads: all are used")
def test_how_many_threads_compute_a_pass_does_not_show_in_its_bits():
    model = build_tiny(["Compute 12+3 with the calculator."], hidden=128, heads=4, layers=2, context_length=128).model
    prompts = [[(7 * row + place) % 200 for place in range(60)] for row in range(32)]
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        forward = RowForward(model, rows=32, context_length=128)
        with torch.inference_mode():
            logits = forward.logits(range(32), [0] * 32, prompts)
            tokens = [[int(token)] for token in logits.argmax(-1)]
            drawn = forward.logits(range(32), [60] * 32, tokens, drawn=True, prompts=[60] * 32)
        found.append(torch.cat([logits, drawn]))
    assert torch.equal(*found)


@pytest.mark.parametrize(("numbers", "between"), [(1000, 1), (10**6, 2)])
def test_what_lies_between_products_takes_one_thread_where_it_is_small(numbers, between):
    shares, found = Shares(numbers), []

    def fails():
        with shares.between():
            found.append(torch.get_num_threads())
            with shares.product():
                found.append(torch.get_num_threads())
            found.append(torch.get_num_threads())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert found == [between, 2, between]
    assert torch.get_num_threads() == 2


def test_where_one_thread_is_all_there_are_it_takes_everything():
    torch.set_num_threads(1)
    shares = Shares(10**6)
    with shares.between(), shares.product():
        assert torch.get_num_threads() == 1
