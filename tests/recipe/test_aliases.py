"""Names of other libraries are aliases of built-in components; groups of one episode are allowed if tasks are not
compared."""

import pytest

from support.cli import whetstone
from support.small import SMALL
from whetstone.algorithms import ADVANTAGES, CORRECTIONS, OBJECTIVES
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.plugins import validate_options
from whetstone.recipe import load_recipe
from whetstone.recipe.resolved import ALIASES

PLAIN = [change for change in SMALL if not change.startswith("supervised.")]
BUILT_IN = {"advantage": ADVANTAGES, "objective": OBJECTIVES, "importance_correction": CORRECTIONS}


def load_plain(*changes):
    return load_recipe("demo", [*PLAIN, "supervised=null", "ablations=null", *changes])


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in ALIASES.items() for name in names])
def test_every_alias_is_a_built_in_component_with_options(key, name):
    meant = dict(ALIASES[key][name])
    assert name not in BUILT_IN[key]
    validate_options(BUILT_IN[key][meant.pop("name")], meant)


def test_aliases_give_the_component_of_that_name():
    assert load_plain("advantage=grpo").recipe.advantage.name == "group_relative"
    assert load_plain("advantage=GRPO").recipe.advantage.name == "group_relative"
    assert load_plain("advantage={name: dr-grpo, epsilon: 0.1}").recipe.advantage.model_dump() == {
        "name": "group_relative", "scale": False, "epsilon": 0.1,
    }  # fmt: skip
    assert load_plain("advantage={name: dr_grpo, scale: true}").recipe.advantage.options == {"scale": True}
    assert load_plain("objective=ppo", "importance_correction=tis").recipe.objective.name == "clipped"
    # stored under the built-in name; a run resumes with either
    assert "group_relative" in load_plain("advantage=grpo").dump()
    assert load_plain("advantage=grpo").recipe == load_plain("advantage=group_relative").recipe


@pytest.mark.parametrize(("key", "name"), [("advantage", "dapo"), ("objective", "dapo"), ("advantage", "gspo")])
def test_method_name_as_a_component_is_refused_with_the_key_to_use(key, name):
    with pytest.raises(RecipeError, match=f'{key}: "{name}" is a method, not an {key}; use with={name}'):
        assemble(load_plain(f"{key}={name}")).check()


def test_estimator_named_like_a_method_reports_the_other_keys_of_the_method():
    resolved = load_plain("advantage=rloo", "objective=null")
    note = "advantage: rloo is the estimator of a method that also sets objective; use with=rloo"
    assert note in resolved.notes
    assert note in load_recipe(resolved).notes
    assert note in resolved.with_overrides(["seed=3"]).notes
    assert not load_plain("advantage=grpo").notes
    assert not [each for each in load_plain("advantage=rloo", "with=rloo").notes if "also sets" in each]


def test_objective_named_like_a_method_reports_the_other_keys_of_the_method():
    note = "objective: gspo is the objective of a method that also sets aggregation; use with=gspo"
    assert note in load_plain("objective=gspo").notes
    assert not [each for each in load_plain("objective=gspo", "aggregation=sequence_mean").notes if "also sets" in each]
    assert not [each for each in load_plain("with=gspo").notes if "also sets" in each]


def test_minibatches_of_a_method_fit_the_groups_of_a_step():
    # gspo makes 4 updates per step; two groups are at most two
    resolved = load_plain("with=gspo", "reinforcement.tasks_per_step=2")
    assert resolved.recipe.reinforcement.minibatches == 2
    assert "gspo: reinforcement.minibatches is 2, not 4: a step has 2 groups" in resolved.notes[0]
    assert load_plain("with=gspo", "reinforcement.tasks_per_step=8").recipe.reinforcement.minibatches == 4
    with pytest.raises(RecipeError, match="4 updates require at least as many groups, got 2"):
        load_plain("with=gspo", "reinforcement.tasks_per_step=2", "reinforcement.minibatches=4")


def test_ppo_requires_a_critic():
    with pytest.raises(RecipeError, match="token_gae reads token_values, which this run does not produce"):
        assemble(load_plain("advantage=ppo")).check()
    assemble(load_plain("advantage=ppo", "critic={}")).check()


def test_misspelled_component_is_refused_with_the_nearest(tmp_path):
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
def test_one_episode_per_task_is_allowed_if_tasks_are_not_compared(changes):
    assembly = assemble(load_plain("rollout.group_size=1", *changes))
    assert assembly.strategy.group_size == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], 'advantage "group_relative" compares the trajectories of a task.*reinforce_plus_plus'),
        (["advantage=rloo"], 'advantage "leave_one_out" compares the trajectories of a task'),
        (["objective=dpo", "advantage=null"], 'objective "dpo" compares the trajectories of a task'),
        (
            ["advantage=ppo", "critic={}", "rollout.strategy=random_branching"],
            'strategy "random_branching" samples several episodes per group',
        ),
    ],
)
def test_one_episode_per_task_is_refused_if_tasks_are_compared(changes, message):
    with pytest.raises(RecipeError, match=message):
        assemble(load_plain("rollout.group_size=1", *changes)).check()


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_numbers_out_of_range_are_refused(change, message):
    plain = ["environment.max_turns=3"] if "strategy" in change else []
    with pytest.raises((RecipeError, ValueError), match=message):
        assemble(load_plain(change, *plain)).check()
