"""Action masks: masked turns take allowed actions, their log-probs are those that were sampled, and the mask fades."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.rollout_components import lists_actions
from whetstone.environments.built_in.frozen_lake import FrozenLake
from whetstone.errors import RecipeError
from whetstone.inference.protocol import EngineCapabilities
from whetstone.plugins import OptionError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rollout import EpisodeKey, EpisodeState, GroupPlan
from whetstone.rollout.action_masks import AdmissibleActions, TokenTrie
from whetstone.rollout.protocol import ALLOWED_LOGPROB
from whetstone.training import train
from whetstone.trajectory import Author, EndReason

LAKE = [*SMALL, "environment.max_turns=3", "rollout.max_new_tokens=24", "supervised=null"]


def only_left(state, admissible):
    assert set(admissible) < set(FrozenLake.commands)
    return ["left"]


def play(*changes, tasks=2):
    """Return the assembly and the trajectories of some training groups of an untrained policy."""
    assembly = assemble(load_recipe("frozen-lake", [*LAKE, *changes]))

    async def main():
        engine = assembly.build_engine()
        collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0), method=assembly.method)
        try:
            plans = [GroupPlan(assembly.source.task(k), seed=5, number=k) for k in range(tasks)]
            groups = [await collector.group(plan, assembly.strategy) for plan in plans]
            trajectories = [t for group in groups for t in group.trajectories]
            scores = [await engine.score(segment.tokens.sequence) for t in trajectories for segment in t.segments()]
        finally:
            await engine.close()
        return trajectories, scores

    return assembly, *asyncio.run(main())


def test_masked_turns_take_admissible_actions_and_agree_with_the_learner():
    assembly, trajectories, scores = play("rollout.action_mask={name: admissible, fade_updates: 10}")
    for trajectory in trajectories:
        assert trajectory.ended in (EndReason.TERMINATED, EndReason.MAX_TURNS), trajectory.error
        for turn in trajectory.turns:
            assert turn.message.text in FrozenLake.commands
            assert set(turn.action.authors) == {Author.INSERTED}
            assert set(turn.action.versions) == {0}
    segments = [segment for t in trajectories for segment in t.segments()]
    for segment, score in zip(segments, scores, strict=True):
        places = [place for place, trained in enumerate(segment.action_mask) if trained]
        (own,) = (t for t in trajectories if t.id == segment.trajectory_id)
        assert len(places) == own.action_tokens
        for place in places:
            # the log-prob under the policy is that under the mask plus that of all allowed tokens
            policy = segment.tokens.logprobs[place] + segment.tokens.measured[ALLOWED_LOGPROB][place]
            assert policy == pytest.approx(score.logprobs[place - 1], abs=1e-4)
            assert segment.tokens.logprobs[place] <= 1e-6
    assert assembly.method.at_evaluation().action_mask is None


def test_untrained_masked_turns_are_read_only():
    mask = f"rollout.action_mask={{name: admissible, fade_updates: 10, trained: false, script: '{__name__}:only_left'}}"
    _, trajectories, _ = play(mask, tasks=1)
    for trajectory in trajectories:
        assert trajectory.segments() == ()
        assert {turn.message.text for turn in trajectory.turns} == {"left"}
        assert all(math.isnan(p) for turn in trajectory.turns for p in turn.action.logprobs)


def test_no_turn_is_masked_after_the_last_update_of_the_mask():
    assembly = assemble(load_recipe("frozen-lake", [*LAKE, "rollout.action_mask={name: admissible, fade_updates: 2}"]))
    mask = assembly.method.action_mask

    async def admissible():
        return ["left"]

    async def masked(step):
        return await mask(EpisodeState(EpisodeKey(assembly.source.task(0), 0, step)), admissible)

    assert asyncio.run(masked(0)) == ["left"]
    assert asyncio.run(masked(2)) is None


def test_trie_allows_exactly_the_continuations_of_its_sequences():
    trie = TokenTrie([(1, 2, 9), (1, 3, 9), (4, 9)])
    allowed = {prefix: trie.allowed(prefix).nonzero()[0].tolist() for prefix in [(), (1,), (1, 3), (4,), (2,)]}
    assert allowed == {(): [1, 4], (1,): [2, 3], (1, 3): [9], (4,): [9], (2,): []}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"fade_updates": 0}, "at least 1 update"), ({"fade_updates": 1, "fraction": 0.0}, "above 0 and at most 1")],
)
def test_schedules_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        AdmissibleActions(**options)


def test_environment_without_admissible_actions_and_engine_without_constraints_are_refused():
    mask = "rollout.action_mask={name: admissible, fade_updates: 2}"
    with pytest.raises(
        RecipeError, match=r'action_mask.*: environment "tools" lists no admissible actions; set script'
    ):
        assemble(load_recipe("demo", [*SMALL, mask])).check()
    lake = assemble(load_recipe("frozen-lake", [*LAKE, mask]))
    assert lists_actions(lake.environment())
    engine = lake.build_engine()
    lacking = replace(EngineCapabilities(), constraints=False)
    with pytest.raises(RecipeError, match=r"rollout\.action_mask: admissible requires constrained decoding"):
        lake._check_capabilities(type("Lacking", (), {"capabilities": lacking})())
    asyncio.run(engine.close())


def test_actions_that_do_not_fit_into_a_turn_end_the_episode_with_the_key():
    _, (first, *_), _ = play(
        "rollout.action_mask={name: admissible, fade_updates: 2}", "rollout.max_new_tokens=1", tasks=1
    )
    assert first.ended is EndReason.ERROR
    assert "no allowed action has at most 1 tokens; raise rollout.max_new_tokens" in first.error


@pytest.mark.slow
@pytest.mark.parametrize("trained", [True, False])
def test_run_reports_the_fraction_of_masked_turns(tmp_path, trained):
    mask = f"rollout.action_mask={{name: admissible, fade_updates: 2, trained: {str(trained).lower()}}}"
    recipe = load_recipe("frozen-lake", [*LAKE, mask, "reinforcement.steps=4"])
    train(recipe, tmp_path / "run", progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    fractions = [row["action_mask/masked_fraction"] for row in rows if "action_mask/masked_fraction" in row]
    assert len(fractions) == 3  # each is in the row of the next update
    assert fractions[0] == 1
    assert 0 < fractions[1] < 1
    assert fractions[2] == 0
    assert 0 < rows[1]["action_mask/allowed_probability"] < 1
    assert rows[0]["update/tokens"] == (rows[0]["cost_per_step/sampled_tokens"] if trained else 0)
