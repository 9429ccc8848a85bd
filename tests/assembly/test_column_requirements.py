"""A recipe that requires columns that its run does not produce is refused with the component that provides them."""

import re

import pytest

from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.column_requirements import find_unmet_columns
from whetstone.errors import RecipeError
from whetstone.learning.columns import RunCapabilities
from whetstone.recipe import load_recipe
from whetstone.trajectory import Task


def refused(*overrides):
    with pytest.raises(RecipeError) as failure:
        assemble(load_recipe("demo", [*SMALL, "ablations=null", *overrides])).check()
    return str(failure.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["advantage=turn_gae"], "turn_gae reads values, which this run does not produce; requires a critic"),
        (
            [
                "advantage_transforms=[duration_weighted]",
                "reinforcement.deterministic=true",
                "reinforcement.admit_ahead=1",
                "reinforcement.max_staleness=1",
            ],
            "duration_weighted reads turn_seconds.*reinforcement.deterministic forbids; set it to false",
        ),
        (["objective=support.small:reads_logprobs"], 'reads logprobs; did you mean "learner_logprobs"'),
        (["objective=support.small:reads_an_option"], r"make it an option by a \* before it"),
        (["advantage=tree_ps"], "tree_ps reads nodes, which this run does not produce; a strategy that forks"),
        (["advantage=remax"], "remax reads greedy_rewards.* rollout.strategy: greedy_baseline"),
        (
            ["advantage=matchtir"],
            'process_rewards.* reward "exact_number" does not provide rewards of turns.*matched_calls',
        ),
        (["advantage=rlvmr", "reward=matched_calls"], "rlvmr reads tags.*meta_reasoning"),
        (["advantage=mars"], "mars reads roles.*set role_tag: TAG"),
        (["advantage=mars", "role_tag=kin"], 'no tag "kin" on tasks of "arithmetic", which have difficulty, kind'),
        (["advantage=oprl"], "oprl reads implicit.*implicit_prm"),
        (["objective=on_policy_distillation"], "on_policy_distillation reads teacher_logprobs.*teacher: {path"),
        (["reward_shaping=[gated]"], "reward_shaping.0.*gated reads process_rewards"),
        (
            ["advantage_transforms=[entropy_modulated]", "advantage=reinforce_plus_plus"],
            "one advantage per turn.* one per token",
        ),
        (["critic={}"], 'critic: has no effect: advantage "group_relative" does not use a critic'),
        (["aggregation=constant"], "aggregation.tokens: .* set it"),
        (["aggregation.tokens=5"], "aggregation.tokens: has no effect.*constant"),
        (
            ["objective=probability_difference", "importance_correction=truncated"],
            "importance_correction.*already includes",
        ),
        (["objective=dpo", "advantage=null", "importance_correction=truncated"], "importance_correction.*sums"),
        (["credit_filters=[void_turn]"], 'no credit filter named "void_turn"; did you mean "void_turns"'),
        (["advantage=group_relativ"], 'did you mean "group_relative"'),
        (["teacher.path=x"], "teacher: has no effect"),
        (["implicit_prm={}"], "implicit_prm: has no effect"),
        (["role_tag=kind"], "role_tag: has no effect"),
        (
            ["advantage={name: gigpo, discount: 1.5}"],
            "advantage.discount: input should be less than or equal to 1",
        ),
        (["advantage={name: gigpo, discout: 1}"], 'advantage.discout: no such option; did you mean "discount"'),
        (
            ["objective={name: clipped, dual_clip: 1.1}", "reinforcement.epochs=2"],
            "objective: dual_clip must be above 1",
        ),
        (
            ["importance_correction={name: masked, high: -1}"],
            "importance_correction: low must be at least 0 and below high",
        ),
        (
            ["reward_shaping={name: overlong, buffer: 0}"],
            "reward_shaping.0.buffer: input should be greater than or equal to 1",
        ),
        (["credit_filters=void_turn"], 'did you mean "void_turns"'),
        (["objective=dpo", "advantage=rloo"], 'advantage: has no effect.*objective "dpo" reads no advantages'),
    ],
)
def test_refusal_names_the_column_and_its_provider(overrides, message):
    assert re.search(message, refused(*overrides)), refused(*overrides)


def test_source_without_answers_has_no_beliefs_and_without_difficulty_no_hardness():
    run = RunCapabilities(load_recipe("demo").recipe, lambda: Task("t", "?"))
    unmet = dict(find_unmet_columns(["answer_beliefs", "hardness", "rewards"], run))
    assert "has no gold answer" in unmet["answer_beliefs"]
    assert "tags no task with a difficulty" in unmet["hardness"]
    assert "rewards" not in unmet
