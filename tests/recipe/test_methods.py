"""Methods change keys of any recipe: set keys, their order, and combinations that are refused."""

import json

import pytest

from support.cli import whetstone
from support.slow import mostly_slow
from whetstone.errors import RecipeError
from whetstone.recipe import (
    built_in_methods,
    built_in_recipes,
    list_key_sources,
    load_recipe,
    read_method,
    with_origins,
)

WORLD = """\
policy: {tiny: {context_length: 300}}
tasks: {source: arithmetic}
environment: {tools: [pocket_calculator], max_turns: 5}
reward: {name: exact_number}
advantage: leave_one_out
reinforcement: {steps: 3}
ablations: {other: {seed: 1}}
"""


def written(tmp_path, text, name="shop.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def with_methods(tmp_path, *methods, wins=None, world=WORLD, overrides=()):
    """Load the recipe of a task with methods over it, each a file with this text: one, two, …"""
    method_paths = []
    for k, text in enumerate(methods):
        path = str(written(tmp_path, text, f"{('one', 'two', 'three')[k]}.yaml"))
        method_paths.append({path: "wins"} if wins == k else path)
    return load_recipe(written(tmp_path, world), overrides, with_=method_paths)


def test_recipes_and_methods_have_different_names():
    assert not set(built_in_recipes()) & set(built_in_methods())


@pytest.mark.parametrize("name", mostly_slow(built_in_methods(), quick=["dapo", "memory-folding"]))
def test_methods_set_no_key_of_the_task(name):
    method = read_method(name)
    assert not {"policy", "chat", "environment", "tasks", "engine"} & set(method.keys)
    assert method.keys["title"]
    assert method.keys["paper"]


def test_method_overrides_its_keys_and_keeps_the_others(tmp_path):
    recipe = with_methods(tmp_path, "advantage: {name: gigpo, discount: 0.9}\nreinforcement: {minibatches: 2}\n").recipe
    assert recipe.advantage.model_dump() == {"name": "gigpo", "discount": 0.9}
    assert (recipe.reinforcement.steps, recipe.reinforcement.minibatches) == (3, 2)
    assert recipe.ablations == {}  # ablations of the task's recipe are dropped


def test_command_line_overrides_methods(tmp_path):
    method = "reinforcement: {steps: 9, minibatches: 2}\n"
    assert with_methods(tmp_path, method, overrides=["reinforcement.steps=4"]).recipe.reinforcement.steps == 4


def test_files_name_methods_and_extending_files_override_both(tmp_path):
    written(tmp_path, "reinforcement: {steps: 9, minibatches: 2}\n", "own.yaml")
    shop = written(tmp_path, f"{WORLD}with: [own.yaml, gigpo]\n")
    resolved = load_recipe(shop)
    assert (resolved.recipe.reinforcement.steps, resolved.recipe.advantage.name, resolved.name) == (9, "gigpo", "shop")
    above = written(tmp_path, "extends: shop.yaml\nadvantage: {discount: 0.5}\n", "above.yaml")
    recipe = load_recipe(above).recipe
    assert recipe.advantage.options == {"scale": True, "discount": 0.5}
    instead = load_recipe(above, [f"with={tmp_path / 'own.yaml'}", "advantage=null"])
    assert (instead.recipe.reinforcement.steps, instead.recipe.advantage.name) == (9, "group_relative")


def test_key_that_a_file_and_its_method_set_is_reported(tmp_path):
    resolved = load_recipe(written(tmp_path, f"{WORLD}with: gigpo\n"))
    assert resolved.notes == ("shop.yaml:5  advantage: gigpo overrides it: 'gigpo' instead of 'leave_one_out'",)
    assert load_recipe(written(tmp_path, WORLD), ["with=gigpo"]).notes == ()


@pytest.mark.parametrize(
    "written_as", ["dapo,gigpo", "[dapo, gigpo]", "dapo, gigpo", '["dapo", "gigpo"]'], ids=["a", "b", "c", "d"]
)
def test_several_methods_have_several_papers(written_as):
    resolved = load_recipe("demo", [f"with={written_as}"])
    assert (resolved.recipe.advantage.name, resolved.recipe.objective.options) == ("gigpo", {"clip_high": 0.28})
    assert resolved.recipe.paper == "arXiv:2503.14476, arXiv:2505.10978"
    assert resolved.name == "demo-with-dapo-gigpo"


def test_lists_of_components_are_joined_in_the_order_of_methods(tmp_path):
    resolved = with_methods(
        tmp_path, "credit_filters: [overlong_filter]\n", "credit_filters: [void_turns, overlong_filter]\n"
    ).recipe
    assert [part.name for part in resolved.credit_filters] == ["overlong_filter", "void_turns"]


def test_method_without_a_recipe_runs_on_the_demo_and_reports_it():
    by_name, on_demo = load_recipe("dapo"), load_recipe("demo", ["with=dapo"])
    assert (by_name.recipe, by_name.name) == (on_demo.recipe, on_demo.name)
    assert by_name.notes == ("dapo is a method; it is applied to demo: demo with=dapo",)
    both = load_recipe("dapo", ["with=gigpo"])
    assert (both.recipe.advantage.name, both.recipe.objective.options) == ("gigpo", {"clip_high": 0.28})


DIFFER = "objective: {name: clipped, clip_high: 0.3}\nreinforcement: {minibatches: 2}\n"


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ("objective: gspo\n", DIFFER, "one and two both set objective ('gspo', 'clipped')"),
        (DIFFER, DIFFER.replace("0.3", "0.4"), "one and two both set objective.clip_high (0.3, 0.4)"),
        (DIFFER, "reinforcement: {minibatches: 4}\n", "both set reinforcement.minibatches (2, 4)"),
        ("advantage: null\n", "advantage: gigpo\n", "one and two both set advantage (None, 'gigpo')"),
        ("aggregation: sequence_mean\n", "aggregation: {mode: constant}\n", "both set aggregation.mode"),
        (
            "rollout: {early_stopping: [{name: budget_exhausted, most: 3}]}\n",
            "rollout: {early_stopping: [budget_exhausted]}\n",
            "set rollout.early_stopping: budget_exhausted",
        ),
    ],
)
def test_two_methods_that_set_a_key_differently_are_refused_in_one_line(tmp_path, one, two, message):
    with pytest.raises(RecipeError) as refused:
        with_methods(tmp_path, one, two)
    assert message in str(refused.value)
    assert str(refused.value).endswith("remove one, or set the priority: with: [one, {two: wins}]")
    assert "\n" not in str(refused.value)


def test_method_marked_as_winning_wins_in_any_position(tmp_path):
    for wins, objective in enumerate(("gspo", "clipped")):
        recipe = with_methods(tmp_path, "objective: gspo\n", DIFFER, wins=wins).recipe
        assert recipe.objective.name == objective
        assert recipe.reinforcement.minibatches == 2
    with pytest.raises(RecipeError, match="both have priority"):
        load_recipe("demo", ["with=[{gspo: wins}, {dapo: wins}]"])


def test_methods_that_set_a_key_equally_are_combined(tmp_path):
    assert with_methods(tmp_path, DIFFER, "objective: clipped\n").recipe.objective.options == {"clip_high": 0.3}


def test_additions_of_methods_are_added_to_the_recipe_or_the_default(tmp_path):
    one = "adds: {policy.tiny.context_length: 100, environment.max_turns: 2, environment.tools: [fold_memory]}\n"
    recipe = with_methods(tmp_path, one, "adds: {policy.tiny.context_length: 50}\n").recipe
    assert recipe.policy.tiny.context_length == 450
    assert recipe.environment.max_turns == 7
    assert recipe.environment.options["tools"] == ["pocket_calculator", "fold_memory"]
    plain = WORLD.replace("{context_length: 300}", "{}").replace(", max_turns: 5", "")
    assert with_methods(tmp_path, one, world=plain).recipe.policy.tiny.context_length == 612
    assert with_methods(tmp_path, one, world=plain).recipe.environment.max_turns == 10
    folder = plain.replace("tiny: {}", "path: somewhere")
    assert with_methods(tmp_path, one, world=folder).recipe.policy.tiny is None


def test_reward_that_wraps_another_wraps_that_of_the_recipe(tmp_path):
    recipe = with_methods(tmp_path, "reward: {name: otc, outcome: world, smooth: 2}\n").recipe
    assert recipe.reward.options == {"outcome": {"name": "exact_number"}, "smooth": 2}
    terms = "{outcome: world, few: {name: few_calls, weight: 0.2}}"
    recipe = with_methods(tmp_path, f"reward: {{name: composed, terms: {terms}}}\n").recipe
    assert recipe.reward.options["terms"]["outcome"] == {"name": "exact_number"}


def test_method_settings_for_one_recipe_apply_to_it_and_its_extensions(tmp_path):
    method = "curriculum: {name: ucb}\nneeds: {curriculum.kinds: the kinds}\non: {shop: {curriculum: {kinds: [a]}}}\n"
    assert with_methods(tmp_path, method).recipe.curriculum.options == {"kinds": ["a"]}
    below = written(tmp_path, "extends: shop.yaml\n", "mine.yaml")
    assert load_recipe(below, with_=str(tmp_path / "one.yaml")).recipe.curriculum.options == {"kinds": ["a"]}
    other = written(tmp_path, WORLD, "other.yaml")
    with pytest.raises(RecipeError, match=r"other-with-one: one requires curriculum\.kinds: the kinds"):
        load_recipe(other, with_=str(tmp_path / "one.yaml"))
    resolved = load_recipe(other, ["curriculum.kinds=[b]"], with_=str(tmp_path / "one.yaml"))
    assert resolved.recipe.curriculum.options == {"kinds": ["b"]}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("dapoo", 'no method named "dapoo"; did you mean "dapo"?'),
        ("frozen-lake", '"frozen-lake" is a recipe, not a method'),
        ("3", "with: a list of methods is expected"),
        ("{dapo: loses}", "with: a list of methods is expected"),
        ("[dapo, [gigpo]]", "with: a list of methods is expected"),
        ("dapo,dapo", '"dapo" is listed twice'),
        ("nowhere.yaml", "nowhere.yaml: no such method file"),
    ],
)
def test_unknown_methods_are_refused_in_one_line(named, message):
    with pytest.raises(RecipeError) as refused:
        load_recipe("demo", [f"with={named}"])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: demo\n", "one.yaml:1  extends: not allowed in a method; set it in the recipe"),
        ("tasks: {source: x}\n", "tasks: not allowed in a method"),
        ("adds: 3\n", "adds: a mapping, got 3"),
        ("adds: {reward: 3}\n", "adds.reward: 3 cannot be added to {'name': 'exact_number'}"),
        ("adds: {environment.max_turns: x}\n", "adds.environment.max_turns: a number or a list, got 'x'"),
        ("adds: {environment.stools: [x]}\n", "one adds x to environment.stools, and the recipe has no list there"),
        ("objectiv: gspo\n", 'one.yaml:1  objectiv: no such key; did you mean "objective"?'),
        ("- a\n", "one.yaml:1  a method is a mapping"),
    ],
)
def test_invalid_method_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(RecipeError) as refused:
        with_methods(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_key_is_shown_with_its_origin_and_the_page_is_the_recipe(tmp_path):
    resolved = load_recipe("demo", ["with=dapo,experience", "reinforcement.steps=7"])
    by_key = {key: (value, where) for key, value, where in list_key_sources(resolved)}
    assert by_key["objective.clip_high"] == (0.28, "methods/dapo.yaml:6")
    assert by_key["objective.name"] == ("clipped", "methods/dapo.yaml:6")
    assert by_key["reward.name"] == ("exact_number", "demo.yaml:12")
    assert by_key["reinforcement.steps"] == (7, "command line (reinforcement.steps=7)")
    assert by_key["policy.tiny.context_length"] == (512, "demo.yaml:5 + methods/experience.yaml:4")
    assert by_key["reinforcement.epochs"] == (1, "default")
    assert load_recipe(written(tmp_path, with_origins(resolved))).recipe == resolved.recipe


def test_layer_without_a_title_is_shown(tmp_path):
    (tmp_path / "mine.yaml").write_text("reinforcement: {steps: 7}")
    resolved = load_recipe("demo", [f"with={tmp_path / 'mine.yaml'}"])
    assert {key: where for key, _, where in list_key_sources(resolved)}["title"] == "mine"
    assert load_recipe(written(tmp_path, with_origins(resolved))).recipe == resolved.recipe


def test_show_command_prints_the_recipe():
    printed = whetstone("recipes", "show", "dapo")
    assert "0.28" in printed.stdout
    assert "methods/dapo.yaml:6" in printed.stdout
    assert printed.stderr == "whetstone: dapo is a method; it is applied to demo: demo with=dapo\n"
    json_output = json.loads(whetstone("recipes", "show", "demo", "with=dapo", "--json").stdout)
    assert json_output["objective.clip_high"] == {"value": 0.28, "from": "methods/dapo.yaml:6"}
