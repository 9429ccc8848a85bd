"""Defaults of reinforcement that depend on the policy and the supervised stage."""

from whetstone.recipe import load_recipe

TINY = {
    "policy": {"tiny": {}},
    "tasks": {"source": "arithmetic"},
    "reward": "exact_number",
    "rollout": {},
}


def reinforcement(*overrides, supervised=None, **keys):
    recipe = {**TINY, **({"supervised": supervised} if supervised is not None else {}), "reinforcement": keys}
    return load_recipe(recipe, overrides).recipe.reinforcement


def chosen(settings):
    return settings.optimizer, settings.learning_rate, settings.decay_fraction


def test_after_demonstrations_the_rate_follows_the_groups_with_a_signal():
    settings = reinforcement(supervised={"optimizer": "muon"}, tasks_per_step=8)
    assert chosen(settings) == ("muon", 3e-3, 0.9)
    assert settings.full_rate_groups == 32
    settings = reinforcement(supervised={}, tasks_per_step=8)
    assert chosen(settings) == ("adamw", 3e-4, 0.9)
    assert settings.full_rate_groups == 32


def test_the_optimizer_that_is_set_decides_the_rate():
    settings = reinforcement(supervised={"optimizer": "muon"}, tasks_per_step=32, optimizer="adamw")
    assert chosen(settings) == ("adamw", 3e-4, 0.9)


def test_keys_that_are_set_are_kept():
    settings = reinforcement(supervised={}, learning_rate=0.5, decay_fraction=0.0, tasks_per_step=8)
    assert chosen(settings) == ("adamw", 0.5, 0.0)
    assert settings.full_rate_groups is None


def test_without_a_supervised_stage_the_rate_does_not_follow_the_groups():
    settings = reinforcement(tasks_per_step=8)
    assert chosen(settings) == ("adamw", 1e-3, 0.0)
    assert settings.full_rate_groups is None


def test_a_default_follows_later_changes_of_the_supervised_stage():
    recipe = load_recipe({**TINY, "supervised": {}, "reinforcement": {"tasks_per_step": 8}})
    assert recipe.with_overrides(["supervised.optimizer=muon"]).recipe.reinforcement.optimizer == "muon"


def test_a_stored_recipe_has_the_chosen_values(tmp_path):
    recipe = load_recipe({**TINY, "supervised": {}, "reinforcement": {"tasks_per_step": 8}})
    (tmp_path / "recipe.yaml").write_text(recipe.dump())
    assert load_recipe(tmp_path / "recipe.yaml").recipe == recipe.recipe
