"""Stored episodes beside fresh ones: without any it is the plain run; killed and resumed, it comes to the same."""

import asyncio
import json

import pytest
import torch

from tests_small import TEACHING, StopAfter, Stopped
from whetstone.analysis.replay import Replay, mixed_groups
from whetstone.analysis.why import Explainer
from whetstone.errors import DataError, RecipeError, RunDirectoryError
from whetstone.recipe import load_recipe
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
    """A run whose episodes others learn from."""
    train(small_demo(TEACHING, "supervised.steps=1", "seed=5"), tmp_path / "stored", progress=QUIET)
    return tmp_path / "stored"


def with_stored(run, use, *, data=None):
    more = CRITIC if "critic" in use else []
    return [TEACHING, *more, f"reinforcement.offline_mixture={{data: {data or run}, {use}}}"]


def weights(run_dir):
    return final_policy(run_dir).model.state_dict()


def alike(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def rows(run_dir):
    read = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row for row in read if row["stage"] == "reinforcement"]


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_killed_and_resumed_it_comes_to_the_same_weights_and_replays(tmp_path, small_demo, stored_run, use):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    resolved = small_demo(*with_stored(stored_run, USES[use]), *more)
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "killed", progress=StopAfter(2, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=QUIET)
    assert alike(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert all(row["offline/groups"] > 0 for row in rows(tmp_path / "whole"))


@pytest.mark.slow
def test_tasks_chosen_by_what_is_stored_are_chosen_alike_behind_a_kill(tmp_path, small_demo, stored_run):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    covered = small_demo(*with_stored(stored_run, "fraction: 0"), *more, "curriculum={name: coverage, size: 6}")
    train(covered, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(covered, tmp_path / "killed", progress=StopAfter(2, of="reinforcement"))
    train(covered, tmp_path / "killed", resume=True, progress=QUIET)
    assert alike(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert 0 < rows(tmp_path / "whole")[-1]["curriculum/need"] <= 1
    with pytest.raises(RecipeError, match=r"set reinforcement\.offline_mixture"):
        train(small_demo(TEACHING, "curriculum={name: coverage, size: 6}"), tmp_path / "none", progress=QUIET)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["mode: joint, fraction: 0", "mode: critic_only, critic_weight: 0"])
def test_without_a_share_or_a_weight_it_is_the_run_without_them(tmp_path, small_demo, stored_run, use):
    plain = small_demo(TEACHING, *(CRITIC if "critic" in use else []))
    train(plain, tmp_path / "plain", progress=QUIET)
    train(small_demo(*with_stored(stored_run, use)), tmp_path / "with", progress=QUIET)
    assert alike(weights(tmp_path / "plain"), weights(tmp_path / "with"))


@pytest.mark.slow
def test_stored_episodes_are_explained_and_replayed_like_fresh_ones(tmp_path, small_demo, stored_run):
    train(small_demo(*with_stored(stored_run, "mode: joint")), tmp_path / "run", progress=QUIET)
    names = [f"stored-1-0/{t}" for t in ("group-0", "group-1", "group-2", "group-3")]
    explainer = Explainer(tmp_path / "run")
    assembly = explainer.replay.before
    settings = assembly.resolved.recipe.reinforcement
    mixed = asyncio.run(mixed_groups(assembly.method, settings, explainer.record, 1))
    drawn = mixed["stored"][0].trajectories[0].id
    assert any(drawn.startswith(name) for name in names)
    told = asyncio.run(explainer.explain(drawn))
    assert told.update == 2
    assert "replayed" in {step.value for step in told.chain}
    again = asyncio.run(Replay(tmp_path / "run").from_checkpoint())
    metrics = asyncio.run(again.step())
    assert metrics["offline/reward"] == rows(tmp_path / "run")[again.done - 1]["offline/reward"]


@pytest.mark.slow
def test_stored_episodes_that_changed_between_a_kill_and_its_resume_are_refused(tmp_path, small_demo, stored_run):
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
    with pytest.raises(RunDirectoryError, match=r"reinforcement\.offline_mixture\.data\S+ is not"):
        train(resolved, tmp_path / "run", resume=True, progress=QUIET)


@pytest.mark.slow
def test_stored_episodes_that_are_not_there_are_told_before_anything_is_played(tmp_path, small_demo):
    with pytest.raises(DataError, match="nowhere: no such file"):
        train(small_demo(*with_stored("nowhere", "fraction: 0.5")), tmp_path / "run", progress=QUIET)
    assert not (tmp_path / "run" / "evaluations").exists()


@pytest.mark.parametrize(
    ("use", "said"),
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
def test_what_a_mixture_cannot_mean_is_refused_in_a_line(use, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe("demo", [f"reinforcement.offline_mixture={{data: x, {use}}}"])


@pytest.mark.slow
def test_several_sources_killed_and_resumed_come_to_the_same_weights(tmp_path, small_demo, stored_run):
    more = ["reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "supervised.steps=1"]
    sources = [
        "reinforcement.sources.old={source: {name: stored, data: %s}, fraction: 0.3, timeout_seconds: null}",
        "reinforcement.sources.dream={source: {name: 'tests_small:Imagined', path: %s}, fraction: 0.2}",
    ]
    resolved = small_demo(TEACHING, *(each % stored_run for each in sources), *more)
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "killed", progress=StopAfter(3, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=QUIET)
    assert alike(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    counted = [
        {name: value for name, value in row.items() if name.startswith(("provenance/", "sources/"))}
        for run in ("whole", "killed")
        for row in rows(tmp_path / run)
    ]
    assert counted[:4] == counted[4:]
    assert all(row["sources/old/groups"] > 0 for row in counted)
    assert {"provenance/sampled", "provenance/replayed", "provenance/imagined"} <= set(counted[-1])
