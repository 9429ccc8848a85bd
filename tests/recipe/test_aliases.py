"""The field's own names are taken, and a group of one wherever nothing of its task is compared."""

import pytest

from tests_cli import whetstone
from tests_small import SMALL
from whetstone.algorithms import ADVANTAGES, CORRECTIONS, OBJECTIVES
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.plugins import checked_options
from whetstone.recipe import load_recipe
from whetstone.recipe.aliases import ALIASES

PLAIN = [change for change in SMALL if not change.startswith("supervised.")]
BUILT_IN = {"advantage": ADVANTAGES, "objective": OBJECTIVES, "importance_correction": CORRECTIONS}


def made(*changes):
    return load_recipe("demo", [*PLAIN, "supervised=null", "ablations=null", *changes])


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in ALIASES.items() for name in names])
def test_every_alias_stands_for_a_part_of_ours_and_is_no_name_of_ours(key, name):
    meant = dict(ALIASES[key][name])
    assert name not in BUILT_IN[key]
    checked_options(BUILT_IN[key][meant.pop("name")], meant)


def test_what_people_know_it_by_is_what_they_get():
    assert made("advantage=grpo").recipe.advantage.name == "group_relative"
    assert made("advantage=GRPO").recipe.advantage.name == "group_relative"
    assert made("advantage={name: dr-grpo, epsilon: 0.1}").recipe.advantage.model_dump() == {
        "name": "group_relative", "scale": False, "epsilon": 0.1,
    }  # fmt: skip
    assert made("advantage={name: dr_grpo, scale: true}").recipe.advantage.options == {"scale": True}
    assert made("objective=ppo", "importance_correction=tis").recipe.objective.name == "clipped"
    # the run knows it by our name, and goes on under either
    assert "group_relative" in made("advantage=grpo").dump()
    assert made("advantage=grpo").recipe == made("advantage=group_relative").recipe


@pytest.mark.parametrize(("key", "name"), [("advantage", "dapo"), ("objective", "dapo"), ("advantage", "gspo")])
def test_name_of_a_method_is_refused_as_a_part_with_the_key_to_use(key, name):
    with pytest.raises(RecipeError, match=f'{key}: "{name}" is a method, not an {key}; use with={name}'):
        assemble(made(f"{key}={name}")).check()


def test_estimator_with_the_name_of_a_method_says_what_else_the_method_sets():
    resolved = made("advantage=rloo", "objective=null")
    note = "advantage: rloo is the estimator of a method that also sets objective; use with=rloo"
    assert note in resolved.notes
    assert note in load_recipe(resolved).notes
    assert note in resolved.with_overrides(["seed=3"]).notes
    assert not made("advantage=grpo").notes
    assert not [each for each in made("advantage=rloo", "with=rloo").notes if "also sets" in each]


def test_minibatches_of_a_method_fit_the_groups_of_a_step():
    # gspo makes 4 updates per step; two groups are at most two
    resolved = made("with=gspo", "reinforcement.tasks_per_step=2")
    assert resolved.recipe.reinforcement.minibatches == 2
    assert "gspo: reinforcement.minibatches is 2, not 4: a step has 2 groups" in resolved.notes[0]
    assert made("with=gspo", "reinforcement.tasks_per_step=8").recipe.reinforcement.minibatches == 4
    with pytest.raises(RecipeError, match="4 updates cannot each have a share of 2 groups"):
        made("with=gspo", "reinforcement.tasks_per_step=2", "reinforcement.minibatches=4")


def test_ppo_asks_for_the_critic_it_needs():
    with pytest.raises(RecipeError, match="token_gae reads token_values, which this run does not produce; a critic"):
        assemble(made("advantage=ppo")).check()
    assemble(made("advantage=ppo", "critic={}")).check()


def test_a_misspelt_name_is_told_the_nearest_as_before(tmp_path):
    done = whetstone("train", "demo", *SMALL, "advantage=group_relatve", "--run-dir", tmp_path / "run")
    assert (done.returncode, 'did you mean "group_relative"' in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "changes",
    [
        ["advantage=reinforce_plus_plus"],
        ["advantage=ppo", "critic={}"],
        ["advantage={name: group_relative, singleton: raw}"],
        ["objective=supervised", "advantage=null"],
    ],
)
def test_one_episode_a_task_is_enough_where_nothing_of_it_is_compared(changes):
    assembly = assemble(made("rollout.group_size=1", *changes))
    assert assembly.strategy.group_size == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], 'advantage "group_relative" compares the trajectories of a task.*reinforce_plus_plus'),
        (["advantage=rloo"], 'advantage "leave_one_out" compares the trajectories of a task'),
        (["objective=dpo", "advantage=null"], 'objective "dpo" compares the trajectories of a task'),
        (
            ["advantage=ppo", "critic={}", "rollout.strategy=random_branching"],
            'strategy "random_branching" makes a group of several',
        ),
    ],
)
def test_one_alone_is_refused_where_it_could_teach_nothing(changes, said):
    with pytest.raises(RecipeError, match=said):
        assemble(made("rollout.group_size=1", *changes)).check()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("advantage={name: group_relative, epsilon: -1}", "greater than or equal to 0"),
        ("advantage={name: group_relative, ddof: 4}", "should be 0 or 1"),
        ("importance_correction={name: sequence_truncated, high: -1}", "greater than 0"),
        ("importance_correction={name: sequence_masked, high: .nan}", "finite number"),
        ("objective={name: sapo, temperature: 0}", "greater than 0"),
        ("objective={name: kl_cov, fraction: 9}", "less than or equal to 1"),
        ("reinforcement.learning_rate=.inf", "finite number"),
        ("seed=99999999999999999999999", "less than"),
        ("rollout.strategy={name: frontier_tree, width: 0}", "width"),
        ("rollout.strategy={name: entropy_branching, base: 5}", "base"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(change, said):
    plain = ["environment.max_turns=3"] if "strategy" in change else []
    with pytest.raises((RecipeError, ValueError), match=said):
        assemble(made(change, *plain)).check()
