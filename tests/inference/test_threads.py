"""A short pass is computed by one thread, and that decides nothing but how long it takes."""

import pytest
import torch

from whetstone.inference.forward import RowForward
from whetstone.inference.threads import SHORT, threads_for
from whetstone.policies import build_tiny


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_short_pass_has_one_thread_and_a_long_one_all():
    with threads_for(SHORT - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads_for(SHORT):
        assert torch.get_num_threads() == 2


def test_a_pass_that_fails_gives_the_threads_back():
    with pytest.raises(RuntimeError), threads_for(1):
        raise RuntimeError
    assert torch.get_num_threads() == 2


def test_how_many_threads_compute_a_pass_does_not_show_in_its_bits(monkeypatch):
    model = build_tiny(["Compute 12+3 with the calculator."], hidden=128, heads=4, layers=2, context_length=128).model
    prompts = [[(7 * row + place) % 200 for place in range(60)] for row in range(32)]
    found = []
    for short in (SHORT, 0):
        monkeypatch.setattr("whetstone.inference.threads.SHORT", short)
        forward = RowForward(model, rows=32, context_length=128)
        with torch.inference_mode():
            logits = forward.logits(range(32), [0] * 32, prompts)
            tokens = [[int(token)] for token in logits.argmax(-1)]
            drawn = forward.logits(range(32), [60] * 32, tokens, drawn=True, prompts=[60] * 32)
        found.append(torch.cat([logits, drawn]))
    assert torch.equal(*found)
