"""A run that is killed at random moments and resumed ends as an undisturbed one; see `benchmarks/robust/crash.py`."""

import random

import pytest
import torch

import crash


@pytest.mark.slow
@pytest.mark.parametrize("way", crash.WAYS)
def test_repeatedly_killed_run_loses_and_duplicates_nothing(tmp_path, speaking_policy, way):
    processes, numbers = crash.Processes(), random.Random(way)
    overrides = crash.build_overrides(way, speaking_policy)
    assert processes.run(overrides, tmp_path / "whole") == 0
    struck = 0
    while struck < 7:  # at least 20 in all three modes
        run_dir = tmp_path / f"behind-{struck}"
        struck += crash.run_with_kills(
            processes, overrides, run_dir, numbers, kills=3, events=crash.EVENTS, seconds=1.5
        )
        crash.check_accounting(run_dir)
        if way in crash.BY_RECIPE:
            undisturbed = crash.load_weights(tmp_path / "whole")
            assert all(torch.equal(value, undisturbed[name]) for name, value in crash.load_weights(run_dir).items())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", crash.MEMBERS)
def test_run_with_two_trained_models_is_the_same_after_kills(tmp_path, speaking_policy, recipe):
    """Killed while it samples, between the updates of the two models, in the next update, and twice between their
    files in a checkpoint, of which the second is not the first checkpoint with both."""
    processes, overrides = crash.Processes(), crash.member_overrides(recipe, "synchronous", speaking_policy)
    assert processes.run(overrides, tmp_path / "whole") == 0
    moments = [("append", 9), ("gradient", 2), ("gradient", 3), ("member", 2), ("member", 4)]
    assert crash.kill_at(processes, overrides, tmp_path / "killed", moments) == len(moments)
    assert crash.differences(tmp_path / "killed", tmp_path / "whole") == []
    files = {path.name for path in (tmp_path / "killed").rglob("members/*/trainer/*")}
    assert "optimizer.pt" in files
