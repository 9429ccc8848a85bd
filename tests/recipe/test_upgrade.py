"""Stored recipes of earlier releases are converted to the names of this release."""

import pytest

from whetstone import renames
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, CREDIT_FILTERS, OBJECTIVES, SHAPING
from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS, USERS
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError, find_part, get_component_options, validate_options
from whetstone.recipe import load_recipe
from whetstone.recipe.loader import yaml_value
from whetstone.recipe.upgrade import upgrade_key, upgrade_recipe
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES
from whetstone.rollout.budget_allocation import ALLOCATIONS
from whetstone.rollout.context_rewrites import REWRITES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.context_transforms.prompt_proposers import PROPOSERS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.early_stopping import STOPS
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.start_states import STARTS
from whetstone.rollout.strategies import STRATEGIES
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks import SOURCES
from whetstone.tasks.curricula import CURRICULA
from whetstone.tools import TOOLS

KEYS = {
    "rollout.halt": "rollout.early_stopping",
    "rollout.early_stopping.after": "rollout.early_stopping.turns",
    "STAGE.norm": "STAGE.max_grad_norm",
    "models.NAME.key": "models.NAME.api_key_env",
    "STAGE.precision": "policy.dtype",
    "STAGE.data.best": "STAGE.data.top_k",
}


@pytest.fixture
def _table(monkeypatch):
    monkeypatch.setattr("whetstone.recipe.upgrade.RECIPE_KEYS", KEYS)
    monkeypatch.setattr("whetstone.recipe.upgrade.RECIPE_VALUES", {"STAGE.decay": {"straight": "linear"}})
    for name, table in COMPONENT_TABLES.items():
        monkeypatch.setattr(f"whetstone.recipe.upgrade.{name}", table)


COMPONENT_TABLES = {
    "COMPONENTS": {
        "reward": {"retail": "tau2"},
        "stop": {"spent": "budget_exhausted"},
        "environment": {"advised": "advisor"},
        "task source": {"dealing": "bargaining"},
    },
    "COMPONENT_KEYS": {
        "environment": "environment",
        "reward": "reward",
        "rollout.early_stopping": "stop",
        "rollout.strategy": "strategy",
        "tasks": "task source",
    },
    "COMPONENTS_WITHIN": {
        "environment": {"tools": "tool", "world": "environment"},
        "reward": {"judge": "judge", "outcome": "reward", "terms": "reward"},
        "strategy": {"verifier": "reward"},
    },
    "COMPONENT_OPTIONS": {
        "tau2": {"most": "max_calls"},
        "budget_exhausted": {"share": "fraction"},
        "notes": {"most": "max_notes"},
        "endpoint": {"tries": "max_attempts"},
        "bargaining": {"held_out_share": "held_out_fraction"},
    },
}


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
    ("reward: {name: composed, terms: {a: retail}}", "reward: {name: composed, terms: {a: tau2}}"),
    (
        "reward: {name: composed, terms: {a: {name: retail, most: 1, weight: 2}}}",
        "reward: {name: composed, terms: {a: {name: tau2, max_calls: 1, weight: 2}}}",
    ),
    ("reward: {name: otc, outcome: retail}", "reward: {name: otc, outcome: tau2}"),
    (
        "reward: {name: rules, judge: {name: endpoint, tries: 2}}",
        "reward: {name: rules, judge: {name: endpoint, max_attempts: 2}}",
    ),
    ("rollout: {halt: [spent]}", "rollout: {early_stopping: [budget_exhausted]}"),
    (
        "rollout: {halt: [{name: spent, share: 1}, void_turn]}",
        "rollout: {early_stopping: [{name: budget_exhausted, fraction: 1}, void_turn]}",
    ),
    ("rollout: {strategy: {name: best_of, verifier: retail}}", "rollout: {strategy: {name: best_of, verifier: tau2}}"),
    ("environment: {name: advised, max_turns: 3}", "environment: {name: advisor, max_turns: 3}"),
    (
        "environment: {name: tools, tools: [calculator, {name: notes, most: 3}]}",
        "environment: {name: tools, tools: [calculator, {name: notes, max_notes: 3}]}",
    ),
    (
        "environment: {name: advised, world: {name: tools, tools: {name: notes, most: 3}}}",
        "environment: {name: advisor, world: {name: tools, tools: {name: notes, max_notes: 3}}}",
    ),
    ("tasks: {source: dealing, levels: [1]}", "tasks: {source: bargaining, levels: [1]}"),
    ("tasks: {source: dealing, held_out_share: 0.1}", "tasks: {source: bargaining, held_out_fraction: 0.1}"),
    (
        "{reward: retail, ablations: {a: {reward.most: 1}, b: {reward: {most: 2}}, c: {tasks.source: dealing}}}",
        "{reward: tau2, ablations: {a: {reward.max_calls: 1}, b: {reward: {max_calls: 2}}, "
        "c: {tasks.source: bargaining}}}",
    ),
    (
        "ablations: {a: {reward: retail}, b: {environment.tools: [{name: notes, most: 3}]}}",
        "ablations: {a: {reward: tau2}, b: {environment.tools: [{name: notes, max_notes: 3}]}}",
    ),
    ("stages: [{supervised: {norm: 2}}]", "stages: [{supervised: {max_grad_norm: 2}}]"),
    ("ablations: {a: {rollout.halt.after: 1}}", "ablations: {a: {rollout.early_stopping.turns: 1}}"),
    ("ablations: {a: {supervised.norm: 2}}", "ablations: {a: {supervised.max_grad_norm: 2}}"),
    ("ablations: {a: {rollout.halt: {after: 1}}}", "ablations: {a: {rollout.early_stopping: {turns: 1}}}"),
    ("ablations: {a: {supervised.decay: straight}}", "ablations: {a: {supervised.decay: linear}}"),
    ("ablations: {a: {supervised.precision: float32}}", "ablations: {a: {policy.dtype: float32}}"),
    ("ablations: {a: {rollout.halt: null}}", "ablations: {a: {rollout.early_stopping: null}}"),
    ("supervised: {data: [{best: 1}, {best: 2}]}", "supervised: {data: [{top_k: 1}, {top_k: 2}]}"),
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


STORED = """
rounds: 2
memory: [runs/before]
reinforcement:
  stored: {data: [{path: a, best: 2}, {path: b, joined: 1}], share: 0.3, use: alternate, prefer: even, strength: 2}
  smoothness: {noise: 0.1}
environment: {name: tools, noise: {errors: 0.1, outdated: 0.2}}
ablations: {critic: {reinforcement.stored.use: critic, offline.data: {path: a, clean: true}}}
"""
UPGRADED = """
repeat_stages: 2
init_state_from: [runs/before]
reinforcement:
  offline_mixture:
    data: [{path: a, top_k_per_task: 2}, {path: b, stitched: 1}]
    fraction: 0.3
    mode: alternating
    sampling: uniform
    sampling_strength: 2
  consistency_regularization: {noise: 0.1}
environment: {name: tools, fault_injection: {error_rate: 0.1, stale_rate: 0.2}}
ablations:
  critic: {reinforcement.offline_mixture.mode: critic_only, offline.data: {path: a, well_formed_only: true}}
"""


def test_stored_names_of_an_earlier_release_are_converted():
    assert upgrade_recipe(yaml_value(STORED, "")) == yaml_value(UPGRADED, "")


@pytest.mark.parametrize(
    ("stored", "upgraded"),
    [
        ("reinforcement.stored.data.0.path", "reinforcement.offline_mixture.data.0.path"),
        ("stages.1.reinforcement.stored.data.0.path", "stages.1.reinforcement.offline_mixture.data.0.path"),
        ("memory.0", "init_state_from.0"),
        ("policy.path", "policy.path"),
    ],
)
def test_keys_of_stored_input_digests_are_converted(stored, upgraded):
    assert upgrade_key(stored) == upgraded


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reinforcement.stored={data: x}", "reinforcement.stored: renamed to reinforcement.offline_mixture$"),
        ("reinforcement.offline_mixture={data: [{path: x, best: 1}]}", "renamed to .*data.top_k_per_task$"),
        ("environment.noise={errors: 0.1}", "environment.noise: renamed to environment.fault_injection$"),
        ("shaping=null", "shaping: renamed to reward_shaping$"),
    ],
)
def test_old_key_is_refused_before_other_problems(override, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", [override])


def test_recipe_of_this_release_is_not_changed():
    keys = load_recipe("demo").recipe.model_dump(mode="json")
    assert upgrade_recipe(keys) == keys


@pytest.mark.parametrize(("old", "new"), sorted(renames.RECIPE_KEYS.items()))
def test_old_recipe_key_is_refused_with_the_new_name(old, new):
    stage, name = ("supervised" if old.startswith("STAGE.data.") else "reinforcement", "judge")
    key, renamed = (text.replace("STAGE", stage).replace("NAME", name) for text in (old, new))
    with pytest.raises(RecipeError, match=rf"renamed to {renamed}$"):
        load_recipe("demo", [f"{key}=1"])


@pytest.mark.parametrize(
    ("key", "old", "new"), [(k, o, n) for k, v in renames.RECIPE_VALUES.items() for o, n in v.items()]
)
def test_old_value_is_refused(key, old, new):
    with pytest.raises(RecipeError):
        load_recipe("demo", [f"{key.replace('STAGE', 'reinforcement')}={old}"])


REGISTRIES = {
    "advantage": ADVANTAGES,
    "advantage transform": ADVANTAGE_TRANSFORMS,
    "context transform": CONTEXT_TRANSFORMS,
    "curriculum": CURRICULA,
    "dynamic sampling": DYNAMIC_SAMPLING,
    "environment": ENVIRONMENTS,
    "objective": OBJECTIVES,
    "reward": REWARDS,
    "reward shaping": SHAPING,
    "start": STARTS,
    "stop": STOPS,
    "strategy": STRATEGIES,
    "task source": TASKS_OF_WORLDS,
    "tool": TOOLS,
    "trajectory filter": TRAJECTORY_FILTERS,
}


@pytest.mark.parametrize(
    ("kind", "old", "new"), [(k, o, n) for k, v in renames.COMPONENTS.items() for o, n in v.items()]
)
def test_old_component_is_refused_with_the_new_name(kind, old, new):
    assert new in REGISTRIES[kind]
    with pytest.raises(RecipeError, match=f'{kind} "{old}": renamed to "{new}"$'):
        find_part(kind, old, REGISTRIES[kind])


EVERY = (
    *REGISTRIES.values(), ALLOCATIONS, CREDIT_FILTERS, JUDGES, PROPOSERS, REPLAY, REWRITES, SOURCES, USERS,
)  # fmt: skip


@pytest.mark.parametrize(("name", "options"), renames.COMPONENT_OPTIONS.items())
def test_old_option_is_refused_with_the_new_name(name, options):
    parts = [built_in[name] for built_in in EVERY if name in built_in]
    assert parts
    for old, new in options.items():
        having = [part for part in parts if new in get_component_options(part)]
        assert having
        for part in having:
            with pytest.raises(OptionError, match=f"{old}: renamed to {new}$"):
                validate_options(part, {old: 1})


def test_stored_names_of_components_never_change():
    assert renames.stored_name("trajectory_filters.rare_successes") == "trajectory_filters.surprising"
    assert renames.stored_name("reward") == "reward"
