"""Killed at random moments and resumed, a run ends as if nothing had happened; `benchmarks/crash.py` has more of it."""

import random

import pytest
import torch

import crash


@pytest.mark.slow
@pytest.mark.parametrize("way", crash.WAYS)
def test_killed_again_and_again_nothing_is_lost_or_doubled(tmp_path, speaking_policy, way):
    processes, numbers = crash.Processes(), random.Random(way)
    overrides = crash.overrides_of(way, speaking_policy)
    assert processes.run(overrides, tmp_path / "whole") == 0
    struck = 0
    while struck < 7:  # 20 and more in all three ways
        run_dir = tmp_path / f"behind-{struck}"
        struck += crash.killed_run(processes, overrides, run_dir, numbers, kills=3, events=crash.EVENTS, seconds=1.5)
        crash.accounted(run_dir)
        if way in crash.BY_RECIPE:
            whole = crash.weights(tmp_path / "whole")
            assert all(torch.equal(value, whole[name]) for name, value in crash.weights(run_dir).items())
