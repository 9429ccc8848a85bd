"""Stored recipes of earlier releases are converted to the names of this release."""

import pytest

from whetstone import renames
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.recipe.reading import yaml_value
from whetstone.recipe.upgrade import upgrade_key, upgrade_recipe

KEYS = {
    "rollout.halt": "rollout.early_stopping",
    "rollout.early_stopping.after": "rollout.early_stopping.turns",
    "STAGE.norm": "STAGE.max_grad_norm",
    "models.NAME.key": "models.NAME.api_key_env",
    "STAGE.precision": "policy.dtype",
}


@pytest.fixture
def _table(monkeypatch):
    monkeypatch.setattr("whetstone.recipe.upgrade.RECIPE_KEYS", KEYS)
    monkeypatch.setattr("whetstone.recipe.upgrade.RECIPE_VALUES", {"STAGE.decay": {"straight": "linear"}})
    monkeypatch.setattr("whetstone.recipe.upgrade.COMPONENTS", {"reward": {"retail": "tau2"}})
    monkeypatch.setattr("whetstone.recipe.upgrade.COMPONENT_KEYS", {"reward": "reward"})
    monkeypatch.setattr("whetstone.recipe.upgrade.COMPONENT_OPTIONS", {"tau2": {"most": "max_calls"}})


CONVERTED = [
    ("rollout: {halt: {after: 3}}", "rollout: {early_stopping: {turns: 3}}"),
    ("supervised: {norm: 1.0, steps: 3}", "supervised: {max_grad_norm: 1.0, steps: 3}"),
    ("models: {judge: {key: K}, b: {url: u}}", "models: {judge: {api_key_env: K}, b: {url: u}}"),
    ("reinforcement: {precision: float32}", "{reinforcement: {}, policy: {dtype: float32}}"),
    ("supervised: {decay: straight}", "supervised: {decay: linear}"),
    ("reward: retail", "reward: tau2"),
    (
        "reward: {name: otc, outcome: {name: retail, most: 2}}",
        "reward: {name: otc, outcome: {name: tau2, max_calls: 2}}",
    ),
    ("stages: [{supervised: {norm: 2}}]", "stages: [{supervised: {max_grad_norm: 2}}]"),
    ("ablations: {a: {rollout.halt.after: 1}}", "ablations: {a: {rollout.early_stopping.turns: 1}}"),
    ("ablations: {a: {supervised.norm: 2}}", "ablations: {a: {supervised.max_grad_norm: 2}}"),
    ("{supervised: null, rollout: {group_size: 4}}", "{supervised: null, rollout: {group_size: 4}}"),
]


@pytest.mark.usefixtures("_table")
@pytest.mark.parametrize(("stored", "upgraded"), CONVERTED)
def test_stored_names_are_converted_once(stored, upgraded):
    expected = yaml_value(upgraded, "")
    assert upgrade_recipe(yaml_value(stored, "")) == expected
    assert upgrade_recipe(expected) == expected


@pytest.mark.usefixtures("_table")
@pytest.mark.parametrize(
    ("stored", "upgraded"),
    [
        ("rollout.halt.0.path", "rollout.early_stopping.0.path"),
        ("rollout.halt.after", "rollout.early_stopping.turns"),
        ("supervised.norm", "supervised.max_grad_norm"),
        ("policy.path", "policy.path"),
    ],
)
def test_dotted_keys_are_converted(stored, upgraded):
    assert upgrade_key(stored) == upgraded


OLD = """
policy:
  tiny: {vocabulary: 320, hidden: 32, layers: 2, heads: 2, intermediate: 48}
  lora: {targets: [q_proj]}
  frozen: [a]
rollout: {stop: [x], stops: [void_turn], allocate: a, start: s, rewrites: [fold]}
supervised: {max_gradient_norm: 2.0, share_prefixes: false, logit_megabytes: 1, max_nonfinite: 2}
reinforcement: {max_faults: 3, max_mismatch: 0.5, max_gradient_norm: 3.0}
distillation: {max_faults: 4, max_mismatch: 0.6}
critic: {slow_rate: 0.2, detached: false, warm_up: 1, ensemble: 2, strength: 0.5}
ablations: {a: {critic: {warm_up: 3}, rollout.stops: null, policy.tiny.hidden: 8}}
"""
NEW = """
policy:
  tiny: {vocab_size: 320, hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 48}
  lora: {target_modules: [q_proj]}
  freeze: [a]
rollout:
  {stop_strings: [x], early_stopping: [void_turn], budget_allocation: a, start_states: s, context_rewrites: [fold]}
supervised: {max_grad_norm: 2.0, prefix_sharing: false, logits_memory_mb: 1, max_nonfinite_updates: 2}
reinforcement: {max_failures: 3, max_mismatch_kl: 0.5, max_grad_norm: 3.0}
distillation: {max_failures: 4, max_mismatch_kl: 0.6}
critic: {target_update_rate: 0.2, detach_backbone: false, warmup_updates: 1, ensemble_size: 2, pessimism_coef: 0.5}
ablations: {a: {critic: {warmup_updates: 3}, rollout.early_stopping: null, policy.tiny.hidden_size: 8}}
"""


def test_keys_of_policy_rollout_stages_and_critic_are_converted():
    assert upgrade_recipe(yaml_value(OLD, "")) == yaml_value(NEW, "")


def test_recipe_of_this_release_is_not_changed():
    keys = load_recipe("demo").recipe.model_dump(mode="json")
    assert upgrade_recipe(keys) == keys


@pytest.mark.parametrize(("old", "new"), sorted(renames.RECIPE_KEYS.items()))
def test_old_recipe_key_is_refused_with_the_new_name(old, new):
    stage, name = ("reinforcement", "judge")
    key, renamed = (text.replace("STAGE", stage).replace("NAME", name) for text in (old, new))
    with pytest.raises(RecipeError, match=rf"renamed to {renamed}$"):
        load_recipe("demo", [f"{key}=1"])


@pytest.mark.parametrize(
    ("key", "old", "new"), [(k, o, n) for k, v in renames.RECIPE_VALUES.items() for o, n in v.items()]
)
def test_old_value_is_refused(key, old, new):
    with pytest.raises(RecipeError):
        load_recipe("demo", [f"{key.replace('STAGE', 'reinforcement')}={old}"])
