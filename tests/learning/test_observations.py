"""Observation tokens are masked; with `train_on_observations` they are trained, and every report states it."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.analysis import Explainer
from whetstone.assembly import assemble
from whetstone.chat import assistant, user
from whetstone.errors import RecipeError
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups, observed_fraction
from whetstone.recipe import load_recipe
from whetstone.reporting import describe_learning, learning_rows
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

ON = "reinforcement.train_on_observations=true"


def turn(context, action, *, opens=False):
    n = len(action)
    drawn = Tokens.from_samples(action, logprobs=[-1.0] * n, versions=[0] * n, entropies=[0.5] * n)
    return Turn(Tokens.from_ids(context, Author.ENVIRONMENT), drawn, assistant("x"), opens_segment=opens)


def path(*turns):
    return Trajectory("g/t#0", "t", (user("x"),), turns, EndReason.TERMINATED, score=Score(1.0))


PATH = path(turn([1, 2, 3], [4, 5], opens=True), turn([6, 7], [8]))


def test_only_sampled_tokens_are_trained_by_default():
    (masked,) = PATH.segments()
    (unmasked,) = PATH.segments(observations=True)
    assert masked.action_mask == (False, False, False, True, True, False, False, True)
    assert unmasked.action_mask == (False, False, False, True, True, True, True, True)
    assert unmasked.turns == (0, 0, 0, 0, 0, 1, 1, 1)
    assert all(math.isnan(unmasked.tokens.logprobs[k]) for k in (5, 6))


def test_rewritten_context_is_a_prompt_and_not_trained():
    rewritten = path(turn([1, 2], [3], opens=True), turn([1, 9, 9], [4], opens=True), turn([5], [6]))
    first, second = rewritten.segments(observations=True)
    assert first.action_mask == (False, False, True)
    assert second.action_mask == (False, False, False, True, True, True)


def test_turn_with_a_training_context_is_trained_only_in_that_context():
    turn_with_context = replace(turn([7], [8]), training_context=Tokens.from_ids([1, 2], Author.ENVIRONMENT))
    first, own = path(turn([1], [3], opens=True), turn_with_context).segments(observations=True)
    # in its sampled segment the action is spliced: read, not trained; the observation before it is trained
    assert first.action_mask == (False, True, True, False)
    assert own.action_mask == (False, False, True)


def test_observations_have_the_advantage_of_the_next_turn_and_no_entropy():
    indexed = index_groups([Group(Task("t", "x"), (PATH,))], observations=True)
    assert indexed[0].turn.tolist() == [0, 0, 1, 1, 1]
    assert observed_fraction(indexed) == pytest.approx(2 / 5)
    assert observed_fraction(index_groups([Group(Task("t", "x"), (PATH,))])) == 0
    assert Columns(indexed)["turn_entropies"].tolist() == [0.5, 0.5]  # over tokens with an entropy


def test_credit_that_reads_entropies_of_tokens_is_refused():
    recipe = load_recipe("demo", [*SMALL, ON, "advantage_transforms=[entropy_aware]"])
    with pytest.raises(RecipeError, match=r"transforms\.0: reads entropies, which tokens of tools do not have"):
        assemble(recipe).check()


def test_critics_are_refused_with_train_on_observations():
    recipe = load_recipe("demo", [*SMALL, ON, "advantage=turn_gae", "critic={}"])
    with pytest.raises(RecipeError, match="critic: is incompatible with train_on_observations"):
        assemble(recipe).check()


def test_training_on_observations_is_noted_before_the_run():
    (note,) = load_recipe("demo", [ON]).notes
    assert "train_on_observations is ON" in note
    assert not load_recipe("demo").notes


def test_table_of_steps_has_a_column_for_trained_observations():
    (row,) = learning_rows([{"stage": "reinforcement", "step": 1, "update/observation_fraction": 0.6}])
    assert row["unmasked"] == 0.6
    assert describe_learning(row) == "nearly everything"


@pytest.mark.slow
def test_run_reports_trained_observations_and_its_replay_is_identical(tmp_path):
    assert whetstone("new", "environment", "walk", cwd=tmp_path).returncode == 0
    learned = [
        "policy.tiny.hidden_size=32",
        "supervised.steps=25",
        "supervised.batch_size=16",
        "environment.max_turns=3",
    ]
    learned += ["supervised.decay_fraction=0"]
    for name, changes in (("on", [ON]), ("off", [])):
        done = whetstone(
            "train", "walk/recipe.yaml", *SMALL, TEACHING, *learned, *changes, "--run-dir", name, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    rows = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("on", "off")
    ]
    on, off = ([row for row in each if row["stage"] == "reinforcement"] for each in rows)
    assert any(row["update/observation_fraction"] > 0 for row in on)
    assert all("update/observation_fraction" not in row for row in off)
    # observations are not sampled, so the mismatch of sampler and learner excludes them
    assert all(row["sampler/mismatch_kl"] < 1e-6 for row in on)
    replayed = whetstone("replay", tmp_path / "on", "--updates")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    explainer = Explainer(tmp_path / "on")
    shares = []
    most = max(on, key=lambda row: row["update/observation_fraction"])
    for name, *_ in explainer.list_trajectories(most["step"]):
        chain = {link.what: link.value for link in asyncio.run(explainer.explain_trajectory(name, weights=False)).chain}
        shares.append(chain["TRAINED UNMASKED"])
    assert max(shares) > 0
    assert "were written by tools and are TRAINED nevertheless" in whetstone("why", tmp_path / "on").stdout
