"""Stored episodes mixed with fresh ones: a fraction of zero is the plain run, and a killed run resumes exactly."""

import asyncio
import json

import pytest
import torch

from support.small import TEACHING, StopAfter, Stopped
from whetstone.analysis.explain import Explainer
from whetstone.analysis.replay_check import RunReplay
from whetstone.assembly import assemble
from whetstone.errors import DataError, RecipeError, RunDirectoryError
from whetstone.recipe import load_recipe
from whetstone.record import RunRecord
from whetstone.reporting import Progress
from whetstone.training import final_policy, train

QUIET = Progress(quiet=True)
USES = {
    "together": "mode: joint",
    "by reward": "mode: joint, sampling: reward, fraction: 0.4",
    "critic": "mode: critic_only",
    "alternate": "mode: alternating, inner_updates: 2, outer_rate: 0.5",
}
CRITIC = ["advantage=turn_gae", "critic={}"]


@pytest.fixture
def stored_run(tmp_path, small_demo):
    """Train a run whose episodes others are trained on."""
    train(small_demo(TEACHING, "supervised.steps=1", "seed=5"), tmp_path / "stored", progress=QUIET)
    return tmp_path / "stored"


def with_stored(run, use, *, data=None):
    more = CRITIC if "critic" in use else []
    return [TEACHING, *more, f"reinforcement.offline_mixture={{data: {data or run}, {use}}}"]


def weights(run_dir):
    return final_policy(run_dir).model.state_dict()


def equal_weights(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def rows(run_dir):
    read = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row for row in read if row["stage"] == "reinforcement"]


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_killed_run_resumes_to_the_same_weights_and_replays(tmp_path, small_demo, stored_run, use):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    resolved = small_demo(*with_stored(stored_run, USES[use]), *more)
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "killed", progress=StopAfter(2, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=QUIET)
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert all(row["offline/groups"] > 0 for row in rows(tmp_path / "whole"))


@pytest.mark.slow
def test_coverage_of_stored_tasks_is_the_same_after_a_kill(tmp_path, small_demo, stored_run):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    covered = small_demo(*with_stored(stored_run, "fraction: 0"), *more, "curriculum={name: coverage, size: 6}")
    train(covered, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(covered, tmp_path / "killed", progress=StopAfter(2, of="reinforcement"))
    train(covered, tmp_path / "killed", resume=True, progress=QUIET)
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert 0 < rows(tmp_path / "whole")[-1]["curriculum/need"] <= 1
    with pytest.raises(RecipeError, match=r"set reinforcement\.offline_mixture"):
        train(small_demo(TEACHING, "curriculum={name: coverage, size: 6}"), tmp_path / "none", progress=QUIET)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["mode: joint, fraction: 0", "mode: critic_only, critic_weight: 0"])
def test_fraction_or_weight_of_zero_is_the_plain_run(tmp_path, small_demo, stored_run, use):
    plain = small_demo(TEACHING, *(CRITIC if "critic" in use else []))
    train(plain, tmp_path / "plain", progress=QUIET)
    train(small_demo(*with_stored(stored_run, use)), tmp_path / "with", progress=QUIET)
    assert equal_weights(weights(tmp_path / "plain"), weights(tmp_path / "with"))


@pytest.mark.slow
def test_stored_episodes_are_explained_and_replayed_like_fresh_ones(tmp_path, small_demo, stored_run):
    train(small_demo(*with_stored(stored_run, "mode: joint")), tmp_path / "run", progress=QUIET)
    names = [f"stored-1-0/{t}" for t in ("group-0", "group-1", "group-2", "group-3")]
    explainer = Explainer(tmp_path / "run")
    assembly = explainer.replay.before
    settings = assembly.resolved.recipe.reinforcement
    mixed = asyncio.run(explainer.replay.mixed_groups(assembly.method, settings, 1))
    stored_id = mixed["stored"][0].trajectories[0].id
    assert any(stored_id.startswith(name) for name in names)
    explanation = asyncio.run(explainer.explain_trajectory(stored_id))
    assert explanation.update == 2
    assert "replayed" in {step.value for step in explanation.chain}
    replayed = asyncio.run(RunReplay(tmp_path / "run").from_checkpoint())
    metrics = asyncio.run(replayed.step())
    assert metrics["offline/reward"] == rows(tmp_path / "run")[replayed.done - 1]["offline/reward"]


@pytest.mark.slow
def test_stored_episodes_changed_between_a_kill_and_its_resume_are_refused(tmp_path, small_demo, stored_run):
    resolved = small_demo(*with_stored(stored_run, "fraction: 0.5"), "reinforcement.checkpoint_interval_steps=1")
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "run", progress=StopAfter(1, of="reinforcement"))
    train(
        small_demo(TEACHING, "reinforcement.steps=3", "supervised.steps=1", "seed=6"),
        tmp_path / "other",
        progress=QUIET,
    )
    stored_run.rename(tmp_path / "gone")
    (tmp_path / "other").rename(stored_run)
    with pytest.raises(RunDirectoryError, match=r"reinforcement\.offline_mixture\.data\S+ differs from"):
        train(resolved, tmp_path / "run", resume=True, progress=QUIET)


@pytest.mark.slow
def test_missing_stored_episodes_are_reported_before_the_first_episode(tmp_path, small_demo):
    with pytest.raises(DataError, match="nowhere: no such file"):
        train(small_demo(*with_stored("nowhere", "fraction: 0.5")), tmp_path / "run", progress=QUIET)
    assert not (tmp_path / "run" / "evaluations").exists()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("mode: critic_only", "reinforcement.offline_mixture.mode: critic_only requires a critic"),
        (
            "critic_weight: 0.3",
            "reinforcement.offline_mixture.critic_weight: has no effect: .*mode is joint, not critic_only",
        ),
        (
            "outer_rate: 0.3",
            "reinforcement.offline_mixture.outer_rate: has no effect: .*mode is joint, not alternating",
        ),
        (
            "sampling_strength: 2",
            "sampling_strength: has no effect: reinforcement.offline_mixture.sampling is uniform",
        ),
        ("off_policy: truncated", "truncated requires importance_correction"),
        ("fraction: 1", "reinforcement.offline_mixture.fraction"),
    ],
)
def test_invalid_mixture_is_refused_in_one_line(use, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", [f"reinforcement.offline_mixture={{data: x, {use}}}"])


@pytest.mark.slow
def test_several_sources_resume_to_the_same_weights(tmp_path, small_demo, stored_run):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    sources = [
        "reinforcement.sources.old={source: {name: stored, data: %s}, fraction: 0.3, timeout_seconds: null}",
        "reinforcement.sources.dream={source: {name: 'support.small:Imagined', path: %s}, fraction: 0.2}",
    ]
    resolved = small_demo(TEACHING, *(each % stored_run for each in sources), *more)
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "killed", progress=StopAfter(3, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=QUIET)
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    counted = [
        {name: value for name, value in row.items() if name.startswith(("provenance/", "sources/"))}
        for run in ("whole", "killed")
        for row in rows(tmp_path / run)
    ]
    assert counted[:4] == counted[4:]
    assert all(row["sources/old/groups"] > 0 for row in counted)
    assert {"provenance/sampled", "provenance/replayed", "provenance/imagined"} <= set(counted[-1])


@pytest.mark.slow
def test_imagined_groups_are_played_once_and_are_the_same_after_a_kill(tmp_path, small_demo):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    dream = "reinforcement.sources.dream={source: {name: imagined, environment: {max_turns: 2}}, fraction: 0.5}"
    resolved = small_demo(TEACHING, dream, *more)
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "killed", progress=StopAfter(3, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=QUIET)
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    record = RunRecord(tmp_path / "killed" / "sources" / "dream")
    count = 4 * resolved.recipe.reinforcement.tasks_per_step
    assert sorted(record.admitted) == list(range(count))
    for row in rows(tmp_path / "whole"):
        assert row["provenance/imagined"] == row["provenance/sampled"]
        assert row["cost_per_step/episodes"] == 2 * row["provenance/sampled"]
    checks = asyncio.run(computed_again(tmp_path / "whole"))
    assert [check.what for check in checks][-1] == "updates 1 to 4"
    assert not any(check.changed for check in checks)


async def computed_again(run):
    return [check async for check in RunReplay(run).recompute_all(updates=True)]


def test_imagined_environment_with_a_wrong_tool_is_refused():
    source = "{source: {name: imagined, environment: {tools: [nothing]}}, fraction: 0.5}"
    resolved = load_recipe("demo", [f"reinforcement.sources.dream={source}"])
    with pytest.raises(RecipeError, match="nothing"):
        assemble(resolved).check()
