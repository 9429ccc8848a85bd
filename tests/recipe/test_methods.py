"""A method fits onto any task: what it sets, where it lies, and what does not go together."""

import json

import pytest

from tests_cli import whetstone
from tests_slow import mostly_slow
from whetstone.errors import RecipeError
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe, origins, read_method, with_origins

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


def layered(tmp_path, *methods, wins=None, world=WORLD, overrides=()):
    """The world with methods over it, each the text of a file: one, two, …"""
    named = []
    for k, text in enumerate(methods):
        path = str(written(tmp_path, text, f"{('one', 'two', 'three')[k]}.yaml"))
        named.append({path: "wins"} if wins == k else path)
    return load_recipe(written(tmp_path, world), overrides, with_=named)


def test_no_name_is_both_a_world_and_a_method():
    assert not set(built_in_recipes()) & set(built_in_methods())


@pytest.mark.parametrize("name", mostly_slow(built_in_methods(), quick=["dapo", "memory-folding"]))
def test_a_method_says_nothing_of_a_task(name):
    method = read_method(name)
    assert not {"policy", "chat", "environment", "tasks", "engine"} & set(method.keys)
    assert method.keys["title"]
    assert method.keys["paper"]


def test_a_method_lies_over_what_the_world_says_and_takes_nothing_else_away(tmp_path):
    recipe = layered(tmp_path, "advantage: {name: gigpo, discount: 0.9}\nreinforcement: {minibatches: 2}\n").recipe
    assert recipe.advantage.model_dump() == {"name": "gigpo", "discount": 0.9}
    assert (recipe.reinforcement.steps, recipe.reinforcement.minibatches) == (3, 2)
    assert recipe.ablations == {}  # of the world: they compare it, not the method


def test_what_is_said_on_the_command_line_lies_over_methods(tmp_path):
    method = "reinforcement: {steps: 9, minibatches: 2}\n"
    assert layered(tmp_path, method, overrides=["reinforcement.steps=4"]).recipe.reinforcement.steps == 4


def test_files_name_methods_and_what_extends_them_lies_over_both(tmp_path):
    written(tmp_path, "reinforcement: {steps: 9, minibatches: 2}\n", "own.yaml")
    shop = written(tmp_path, f"{WORLD}with: [own.yaml, gigpo]\n")
    found = load_recipe(shop)
    assert (found.recipe.reinforcement.steps, found.recipe.advantage.name, found.name) == (9, "gigpo", "shop")
    above = written(tmp_path, "extends: shop.yaml\nadvantage: {discount: 0.5}\n", "above.yaml")
    recipe = load_recipe(above).recipe
    assert recipe.advantage.options == {"scale": True, "discount": 0.5}
    instead = load_recipe(above, [f"with={tmp_path / 'own.yaml'}", "advantage=null"])
    assert (instead.recipe.reinforcement.steps, instead.recipe.advantage.name) == (9, "group_relative")


def test_a_key_that_a_file_sets_beside_a_method_that_sets_it_too_is_told(tmp_path):
    found = load_recipe(written(tmp_path, f"{WORLD}with: gigpo\n"))
    assert found.notes == ("shop.yaml:5  advantage: gigpo lies over it, so it is 'gigpo', not 'leave_one_out'",)
    assert load_recipe(written(tmp_path, WORLD), ["with=gigpo"]).notes == ()


@pytest.mark.parametrize(
    "written_as", ["dapo,gigpo", "[dapo, gigpo]", "dapo, gigpo", '["dapo", "gigpo"]'], ids=["a", "b", "c", "d"]
)
def test_several_methods_are_several_papers(written_as):
    found = load_recipe("demo", [f"with={written_as}"])
    assert (found.recipe.advantage.name, found.recipe.objective.options) == ("gigpo", {"clip_high": 0.28})
    assert found.recipe.paper == "arXiv:2503.14476, arXiv:2505.10978"
    assert found.name == "demo-with-dapo-gigpo"


def test_lists_of_parts_are_joined_in_the_order_of_methods(tmp_path):
    found = layered(
        tmp_path, "credit_filters: [overlong_filter]\n", "credit_filters: [void_turns, overlong_filter]\n"
    ).recipe
    assert [part.name for part in found.credit_filters] == ["overlong_filter", "void_turns"]


def test_a_method_on_its_own_is_that_method_on_the_demo_and_says_so():
    by_name, on_demo = load_recipe("dapo"), load_recipe("demo", ["with=dapo"])
    assert (by_name.recipe, by_name.name) == (on_demo.recipe, on_demo.name)
    assert by_name.notes == ("dapo is a method; here it is laid over demo: demo with=dapo",)
    both = load_recipe("dapo", ["with=gigpo"])
    assert (both.recipe.advantage.name, both.recipe.objective.options) == ("gigpo", {"clip_high": 0.28})


DIFFER = "objective: {name: clipped, clip_high: 0.3}\nreinforcement: {minibatches: 2}\n"


@pytest.mark.parametrize(
    ("one", "two", "said"),
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
def test_two_methods_that_set_a_key_to_different_values_are_refused_in_one_line(tmp_path, one, two, said):
    with pytest.raises(RecipeError) as refused:
        layered(tmp_path, one, two)
    assert said in str(refused.value)
    assert str(refused.value).endswith("leave one out, or say which wins: with: [one, {two: wins}]")
    assert "\n" not in str(refused.value)


def test_the_one_that_is_said_to_win_wins_wherever_it_stands(tmp_path):
    for wins, objective in enumerate(("gspo", "clipped")):
        found = layered(tmp_path, "objective: gspo\n", DIFFER, wins=wins).recipe
        assert found.objective.name == objective
        assert found.reinforcement.minibatches == 2
    with pytest.raises(RecipeError, match="both are said to win; let one"):
        load_recipe("demo", ["with=[{gspo: wins}, {dapo: wins}]"])


def test_what_both_set_to_the_same_goes_together(tmp_path):
    assert layered(tmp_path, DIFFER, "objective: clipped\n").recipe.objective.options == {"clip_high": 0.3}


def test_what_methods_add_is_summed_over_the_worlds_own_or_its_default(tmp_path):
    one = "adds: {policy.tiny.context_length: 100, environment.max_turns: 2, environment.tools: [fold_memory]}\n"
    found = layered(tmp_path, one, "adds: {policy.tiny.context_length: 50}\n").recipe
    assert found.policy.tiny.context_length == 450
    assert found.environment.max_turns == 7
    assert found.environment.options["tools"] == ["pocket_calculator", "fold_memory"]
    plain = WORLD.replace("{context_length: 300}", "{}").replace(", max_turns: 5", "")
    assert layered(tmp_path, one, world=plain).recipe.policy.tiny.context_length == 612
    assert layered(tmp_path, one, world=plain).recipe.environment.max_turns == 10
    folder = plain.replace("tiny: {}", "path: somewhere")
    assert layered(tmp_path, one, world=folder).recipe.policy.tiny is None


def test_a_reward_that_is_made_of_another_is_made_of_the_worlds(tmp_path):
    found = layered(tmp_path, "reward: {name: otc, outcome: world, smooth: 2}\n").recipe
    assert found.reward.options == {"outcome": {"name": "exact_number"}, "smooth": 2}
    terms = "{outcome: world, few: {name: few_calls, weight: 0.2}}"
    found = layered(tmp_path, f"reward: {{name: composed, terms: {terms}}}\n").recipe
    assert found.reward.options["terms"]["outcome"] == {"name": "exact_number"}


def test_what_a_method_is_told_of_one_world_counts_there_and_in_what_extends_it(tmp_path):
    method = "curriculum: {name: ucb}\nneeds: {curriculum.kinds: the kinds}\non: {shop: {curriculum: {kinds: [a]}}}\n"
    assert layered(tmp_path, method).recipe.curriculum.options == {"kinds": ["a"]}
    below = written(tmp_path, "extends: shop.yaml\n", "mine.yaml")
    assert load_recipe(below, with_=str(tmp_path / "one.yaml")).recipe.curriculum.options == {"kinds": ["a"]}
    other = written(tmp_path, WORLD, "other.yaml")
    with pytest.raises(RecipeError, match=r"other-with-one: one needs curriculum\.kinds: the kinds"):
        load_recipe(other, with_=str(tmp_path / "one.yaml"))
    given = load_recipe(other, ["curriculum.kinds=[b]"], with_=str(tmp_path / "one.yaml"))
    assert given.recipe.curriculum.options == {"kinds": ["b"]}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("dapoo", 'no method named "dapoo"; did you mean "dapo"?'),
        ("frozen-lake", '"frozen-lake" is a recipe, not a method'),
        ("3", "with: names of methods, one of which may win"),
        ("{dapo: loses}", "with: names of methods, one of which may win"),
        ("[dapo, [gigpo]]", "with: names of methods"),
        ("dapo,dapo", '"dapo" is listed twice'),
        ("nowhere.yaml", "nowhere.yaml: no such method file"),
    ],
)
def test_methods_that_are_none_are_told_in_a_line(named, said):
    with pytest.raises(RecipeError) as refused:
        load_recipe("demo", [f"with={named}"])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: demo\n", "one.yaml:1  extends: belongs to the recipe a method is laid over"),
        ("tasks: {source: x}\n", "tasks: belongs to the recipe"),
        ("adds: 3\n", "adds: a mapping, got 3"),
        ("adds: {reward: 3}\n", "adds.reward: 3 cannot be added to {'name': 'exact_number'}"),
        ("adds: {environment.max_turns: x}\n", "adds.environment.max_turns: a number or a list, got 'x'"),
        ("adds: {environment.stools: [x]}\n", "one adds x to environment.stools, and the recipe lists none there"),
        ("objectiv: gspo\n", 'one.yaml:1  objectiv: no such key; did you mean "objective"?'),
        ("- a\n", "one.yaml:1  a method is a mapping"),
    ],
)
def test_a_method_that_cannot_be_meant_is_told_in_a_line(tmp_path, text, said):
    with pytest.raises(RecipeError) as refused:
        layered(tmp_path, text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_key_is_shown_with_where_it_comes_from_and_the_page_is_the_recipe(tmp_path):
    found = load_recipe("demo", ["with=dapo,experience", "reinforcement.steps=7"])
    by_key = {key: (value, where) for key, value, where in origins(found)}
    assert by_key["objective.clip_high"] == (0.28, "methods/dapo.yaml:6")
    assert by_key["objective.name"] == ("clipped", "methods/dapo.yaml:6")
    assert by_key["reward.name"] == ("exact_number", "demo.yaml:12")
    assert by_key["reinforcement.steps"] == (7, "command line (reinforcement.steps=7)")
    assert by_key["policy.tiny.context_length"] == (512, "demo.yaml:5 + methods/experience.yaml:4")
    assert by_key["reinforcement.epochs"] == (1, "default")
    assert load_recipe(written(tmp_path, with_origins(found))).recipe == found.recipe


def test_the_command_shows_it():
    shown = whetstone("recipes", "show", "dapo")
    assert "0.28" in shown.stdout
    assert "methods/dapo.yaml:6" in shown.stdout
    assert shown.stderr == "whetstone: dapo is a method; here it is laid over demo: demo with=dapo\n"
    told = json.loads(whetstone("recipes", "show", "demo", "with=dapo", "--json").stdout)
    assert told["objective.clip_high"] == {"value": 0.28, "from": "methods/dapo.yaml:6"}
