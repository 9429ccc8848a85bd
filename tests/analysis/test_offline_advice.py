"""Advice of offline runs from losses on held-out episodes."""

import json

import pytest
from click.testing import CliRunner

from support.small import SMALL, TEACHING
from whetstone.analysis import HeldOutEvaluation, find_advice, held_out_evaluations
from whetstone.cli.why import why_command
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train


def evaluations(train, held_out, divergence=None):
    return [
        HeldOutEvaluation(5 * k + 1, t, h, divergence) for k, (t, h) in enumerate(zip(train, held_out, strict=True))
    ]


@pytest.mark.parametrize(
    ("train", "held_out", "divergence", "finding"),
    [
        # fell by 1, rose again by .2 of it, while the training loss continued to fall
        ([2, 1.2, 0.8, 0.5, 0.3], [2, 1.3, 1.0, 1.1, 1.2], 0.1, "stop"),
        ([2, 1, 0.5, 0.2], [2, 2.1, 2.3, 2.6], 0.1, "regularize"),
        ([2, 1.5, 1.2, 1.0], [2, 1.6, 1.3, 1.1], 1.5, "regularize"),
        ([2, 1.5, 1.0, 0.5, 0.2], [2, 1.7, 1.3, 0.9, 0.5], 0.1, "continue"),
        # flat, 1 above what fell by 1.8
        ([2, 1.0, 0.4, 0.2, 0.2, 0.2], [2, 1.4, 1.2, 1.2, 1.2, 1.2], 0.1, "more_data"),
        ([2, 1.0, 0.4, 0.3, 0.3, 0.3], [2, 1.1, 0.5, 0.4, 0.4, 0.4], 0.1, "converged"),
        ([2, 1], [2, 1], None, "unknown"),
    ],
)
def test_trends_have_their_findings(train, held_out, divergence, finding):
    assert find_advice(evaluations(train, held_out, divergence)).finding == finding


def test_small_fluctuation_is_no_rise_and_the_best_step_is_advised():
    assert find_advice(evaluations([2, 1, 1, 1], [2, 1.0, 1.04, 1.05])).finding != "stop"
    assert "stop at step 11" in find_advice(evaluations([2, 1, 0.5, 0.2], [2, 1.5, 1.0, 1.5])).said


def test_training_losses_are_means_between_evaluations():
    rows = [{"stage": "offline", "step": k, "loss/total": float(k)} for k in range(1, 6)]
    rows[0]["held_out/loss"], rows[2]["held_out/loss"] = 9.0, 8.0
    rows.append({"stage": "reinforcement", "step": 1, "loss/total": 100.0})
    assert [(look.step, look.train, look.held_out) for look in held_out_evaluations(rows)] == [
        (1, 1.5, 9.0),
        (3, 4.0, 8.0),
    ]


@pytest.mark.slow
def test_offline_run_is_explained_by_evaluations_and_never_trains_on_held_out_episodes(tmp_path):
    small = [*SMALL, "ablations=null", TEACHING, "reinforcement.steps=6"]
    train(load_recipe("demo", small), tmp_path / "stored", progress=Progress(quiet=True))
    settings = {"steps": 4, "tasks_per_step": 2, "held_out": 0.3, "held_out_interval_steps": 2}
    plain = ["supervised=null", "reinforcement=null", "rollout.group_size=null"]
    offline = load_recipe(
        "demo",
        [*small[:4], "evaluation.episodes=4", "rollout.max_new_tokens=6", "ablations=null", TEACHING, *plain],
        offline={"data": str(tmp_path / "stored"), **settings},
        objective="advantage_weighted",
    )
    train(offline, tmp_path / "run", progress=Progress(quiet=True))
    done = CliRunner().invoke(why_command, [str(tmp_path / "run"), "--json"], catch_exceptions=False)
    printed = json.loads(done.output)
    assert [look["step"] for look in printed["looks"]] == [1, 2, 4]
    assert all(look["kl"] is not None for look in printed["looks"])
    assert printed["advice"]["finding"] in ("stop", "regularize", "more_data", "continue", "converged")
    output = CliRunner().invoke(why_command, [str(tmp_path / "run")], catch_exceptions=False).output
    assert printed["advice"]["finding"] in output
