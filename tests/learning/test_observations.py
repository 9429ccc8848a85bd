"""Tokens of tools are masked; with `train_on_observations` they are trained, and it is said wherever one looks."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

from tests_cli import whetstone
from tests_small import SMALL, TEACHING
from whetstone.analysis import Explainer
from whetstone.assembly import assemble
from whetstone.chat import assistant, user
from whetstone.errors import RecipeError
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups, observed_fraction
from whetstone.recipe import load_recipe
from whetstone.reporting import learned_from, learning_rows
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

ON = "reinforcement.train_on_observations=true"


def turn(context, action, *, opens=False):
    n = len(action)
    drawn = Tokens.sampled(action, logprobs=[-1.0] * n, versions=[0] * n, entropies=[0.5] * n)
    return Turn(Tokens.written(context, Author.ENVIRONMENT), drawn, assistant("x"), opens_segment=opens)


def path(*turns):
    return Trajectory("g/t#0", "t", (user("x"),), turns, EndReason.TERMINATED, score=Score(1.0))


PATH = path(turn([1, 2, 3], [4, 5], opens=True), turn([6, 7], [8]))


def test_only_what_was_sampled_is_trained_unless_it_is_asked_for():
    (masked,) = PATH.segments()
    (unmasked,) = PATH.segments(observations=True)
    assert masked.action_mask == (False, False, False, True, True, False, False, True)
    assert unmasked.action_mask == (False, False, False, True, True, True, True, True)
    assert unmasked.turns == (0, 0, 0, 0, 0, 1, 1, 1)
    assert all(math.isnan(unmasked.tokens.logprobs[k]) for k in (5, 6))


def test_what_stands_in_front_of_a_rewritten_context_is_a_prompt_and_not_trained():
    rewritten = path(turn([1, 2], [3], opens=True), turn([1, 9, 9], [4], opens=True), turn([5], [6]))
    first, second = rewritten.segments(observations=True)
    assert first.action_mask == (False, False, True)
    assert second.action_mask == (False, False, False, True, True, True)


def test_a_turn_trained_behind_another_context_is_trained_behind_it_alone():
    behind = replace(turn([7], [8]), training_context=Tokens.written([1, 2], Author.ENVIRONMENT))
    first, own = path(turn([1], [3], opens=True), behind).segments(observations=True)
    # in the segment it was drawn in the action is spliced: read, not trained; what tools said before it is
    assert first.action_mask == (False, True, True, False)
    assert own.action_mask == (False, False, True)


def test_what_tools_said_takes_the_advantage_of_the_turn_that_reads_it_and_has_no_entropy():
    held = index_groups([Group(Task("t", "x"), (PATH,))], observations=True)
    assert held[0].turn.tolist() == [0, 0, 1, 1, 1]
    assert observed_fraction(held) == pytest.approx(2 / 5)
    assert observed_fraction(index_groups([Group(Task("t", "x"), (PATH,))])) == 0
    assert Columns(held)["turn_entropies"].tolist() == [0.5, 0.5]  # of the tokens that have one


def test_credit_that_reads_what_the_sampler_said_of_each_token_is_refused():
    recipe = load_recipe("demo", [*SMALL, ON, "advantage_transforms=[entropy_aware]"])
    with pytest.raises(RecipeError, match=r"transforms\.0: reads entropies, which tokens of tools do not have"):
        assemble(recipe).check()


def test_a_critic_is_refused_which_would_be_asked_in_front_of_what_tools_said():
    recipe = load_recipe("demo", [*SMALL, ON, "advantage=turn_gae", "critic={}"])
    with pytest.raises(RecipeError, match="critic: does not go with train_on_observations"):
        assemble(recipe).check()


def test_it_is_said_before_anything_begins():
    (note,) = load_recipe("demo", [ON]).notes
    assert "train_on_observations is ON" in note
    assert not load_recipe("demo").notes


def test_the_table_of_steps_has_a_column_for_it_that_is_not_taken_for_a_loss():
    (row,) = learning_rows([{"stage": "reinforcement", "step": 1, "update/observation_fraction": 0.6}])
    assert row["unmasked"] == 0.6
    assert learned_from(row) == "nearly everything"


@pytest.mark.slow
def test_a_run_says_how_much_it_was_and_comes_to_the_same_when_it_is_made_again(tmp_path):
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
    # what tools said was drawn by nobody, so it has no part in how far sampler and learner are apart
    assert all(row["sampler/mismatch_kl"] < 1e-6 for row in on)
    again = whetstone("replay", tmp_path / "on", "--updates")
    assert again.returncode == 0, again.stdout + again.stderr
    explainer = Explainer(tmp_path / "on")
    shares = []
    most = max(on, key=lambda row: row["update/observation_fraction"])
    for name, *_ in explainer.trajectories(most["step"]):
        chain = {link.what: link.value for link in asyncio.run(explainer.explain(name, weights=False)).chain}
        shares.append(chain["TRAINED UNMASKED"])
    assert max(shares) > 0
    assert "were written by tools and TRAINED all the same" in whetstone("why", tmp_path / "on").stdout
