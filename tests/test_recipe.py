"""A mistake in a recipe is one line: file, line, key, and the nearest valid value."""

import re

import pytest

from support.slow import mostly_slow
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.plugins import find_part
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe

MINIMAL = """\
policy: {tiny: {hidden_size: 16, num_heads: 2, num_layers: 1}}
tasks: {source: arithmetic}
environment: {tools: [pocket_calculator]}
chat: {format: compact}
reward: exact_number
reinforcement: {steps: 3}
"""


def written(tmp_path, text, name="mine.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_defaults_fill_missing_keys(tmp_path):
    recipe = load_recipe(written(tmp_path, MINIMAL)).recipe
    assert recipe.rollout.group_size == 8
    assert recipe.supervised is None
    assert recipe.advantage.name == "group_relative"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "rewrd: x\n", 'mine.yaml:7  rewrd: no such key; did you mean "reward"?'),
        (
            MINIMAL.replace("steps: 3", "stepz: 3"),
            'mine.yaml:6  reinforcement.stepz: no such key; did you mean "steps"?',
        ),
        (
            MINIMAL.replace("steps: 3", "steps: many"),
            "mine.yaml:6  reinforcement.steps: input should be a valid integer",
        ),
        (MINIMAL.replace("steps: 3", "steps: 0"), "greater than or equal to 1, got 0"),
        (MINIMAL.replace("reward: exact_number\n", ""), "mine  reward: is required"),
        (MINIMAL.replace("reinforcement: {steps: 3}", ""), "neither supervised nor reinforcement is set"),
        (MINIMAL.replace("tiny: {", "path: x, tiny: {"), "mine.yaml:1  policy: set either path"),
        (MINIMAL.replace("num_heads: 2", "num_heads: 3"), "must divide hidden_size (16), got 3"),
        ("a: [", "mine.yaml:1  not YAML"),
        ("- a\n", "mine.yaml:1  a recipe is a mapping"),
        ("extends: mine.yaml\n", "extends itself"),
        ("extends: demoo\n", 'no recipe named "demoo"; did you mean "demo"?'),
    ],
)
def test_a_mistake_in_the_file_is_named_by_line(tmp_path, text, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks.digitz=3", "tasks.digitz: no such option"),
        ("tasks.digits=three", "tasks.digits: input should be a valid integer"),
        ("tasks.source=arithmetics", 'no task source named "arithmetics"; did you mean "arithmetic"?'),
        ("tasks.kinds={prodct: 1}", 'no kind of arithmetic named "prodct"; did you mean "product"?'),
        ("environment.tools=[calculater]", 'no tool named "calculater"; did you mean "calculator"?'),
        ("environment.max_calls_per_tern=1", 'no such option; did you mean "max_calls_per_turn"?'),
        ("advantage=group_relatve", 'no advantage named "group_relatve"; did you mean "group_relative"?'),
        ("advantage=group_relative,gigpo", "one name is expected; a list is [NAME, NAME]; to compare several values"),
        ("objective.clip_lo=0.1", 'objective.clip_lo: no such option; did you mean "clip_low"?'),
        ("loss_terms=[entorpy]", 'no loss term named "entorpy"; did you mean "entropy"?'),
        ("loss_terms=[entropy_bonus]", 'no loss term named "entropy_bonus"; did you mean "entropy"?'),
        ("loss_terms=[kl]", 'no loss term named "kl"; did you mean "reference_kl"?'),
        ("loss_terms=[{name: entropy, wieght: 0.1}]", 'loss_terms.0.wieght: no such option; did you mean "weight"?'),
        ("environment.tools=['shop:functools.partial(price, table=1)']", "is a call; assign its result to a variable"),
        ("environment.max_calls_per_second=5", "a mapping is expected, such as {NAME: 5}, got 5"),
        ("environment.max_calls_per_second=fast", "a mapping is expected, such as {NAME: VALUE}, got 'fast'"),
        ("reward=nowhere:reward", "No module named 'nowhere'"),
        ("reward=whetstone.rewards:exact_numbr", 'did you mean "exact_number"?'),
        ("chat.format=hermess", 'did you mean "hermes"?'),
    ],
)
def test_mistake_in_a_component_is_found_before_the_run(tmp_path, change, message):
    with pytest.raises(RecipeError) as caught:
        assemble(load_recipe(written(tmp_path, MINIMAL), [change])).check()
    assert message in str(caught.value)
    assert str(caught.value).startswith("command line")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.clip_high=0.3"], "objective.clip_high: has no effect: with one minibatch and one epoch"),
        (["evaluation.samples=4"], "evaluation.samples: has no effect: at evaluation.temperature: 0"),
        (["environment.tools=[]", "environment.max_calls_per_turn=1"], "has no effect: the environment has no tools"),
        (
            ["reinforcement=null", "supervised.steps=2", "rollout.group_size=4"],
            "rollout.group_size: has no effect: there is no",
        ),
        (["policy.trust_remote_code=true"], "has no effect: no model of the recipe comes from a folder"),
        (["rollout.group_size=0"], "rollout.group_size: input should be greater than or equal to 1"),
    ],
)
def test_a_key_without_effect_is_an_error_with_the_reason(tmp_path, changes, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(tmp_path, MINIMAL), changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "suggestion"),
    [
        ("reinforcement.optimizer=Adam", 'did you mean "adamw"?'),
        ("reinforcement.optimizer=AdamW", 'did you mean "adamw"?'),
        ("reinforcement.optimizer=torch.optim.AdamW", 'did you mean "adamw"?'),
        ("reinforcement.optimizer=adamw_torch", 'did you mean "adamw"?'),
        ("reinforcement.optimizer={name: adamw}", 'did you mean "adamw"?'),
        ("reinforcement.optimizer=adamw_bnb_8bit", 'did you mean "adamw_8bit"?'),
        ("reinforcement.optimizer=sgd", "input should be 'adamw', 'muon', 'muon_float32'"),
        ("policy.dtype=torch.bfloat16", 'did you mean "bfloat16"?'),
        ("optimizer=adamw", "optimizer: no such key; did you mean reinforcement.optimizer?"),
        ("loss_terms=[{nam: entropy}]", 'loss_terms.0.name: is required; did you mean "name" instead of "nam"?'),
        ("loss_terms=[{entropy: 0.1}]", 'is required; write {name: entropy, …} for the component "entropy"'),
        (
            "reinforcement.entropy=0.01",
            "keys below it are weight, band, strength, phase; did you mean reinforcement.entropy.weight=0.01?",
        ),
        ("reinforcement.entropy=true", "did you mean reinforcement.entropy={}?"),
        ("reinforcement.entropy=false", "reinforcement.entropy=null disables it"),
        ("reinforcement.entropy.wieght=0.1", 'no such key; did you mean "weight"?'),
        ("reinforcement=5", "activation_checkpointing, …; did you mean reinforcement.steps=5?"),
        ("policies.judge=3", "keys below it are path, revision"),
        ("policies.judge.tinny={}", 'no such key; did you mean "tiny"?'),
        ("policies.judge.tinny=null", 'policies.judge.tinny: no such key; did you mean "tiny"?'),
        (
            "rollout.dynamic_sampling=true",
            "the name of a component is expected, got True; docs/reference/keys.md has names for rollout.dynamic_",
        ),
        ("reinforcement.learning_rate=1e-4,3e-4", "to compare several values, use `whetstone compare`"),
        ("reinforcement.steps=[1, 2]", "to compare several values, use `whetstone compare`"),
        ("policy.dtype=float32,bfloat16", "to compare several values, use `whetstone compare`"),
        ("policy.path=smollm2-135m", "both are set: policy.tiny=null keeps path, policy.path=null keeps tiny"),
        ("supervised.data={path: x, from_stage: y}", "both are set: supervised.data.from_stage=null keeps path"),
    ],
)
def test_a_value_that_is_almost_right_is_suggested(tmp_path, change, suggestion):
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(tmp_path, MINIMAL), [change])
    assert suggestion in str(caught.value)


def test_key_is_accepted_if_its_condition_is_met(tmp_path):
    changes = [
        "objective.clip_high=0.3",
        "reinforcement.minibatches=2",
        "evaluation.samples=4",
        "evaluation.temperature=1",
    ]
    assert load_recipe(written(tmp_path, MINIMAL), changes).recipe.objective.options == {"clip_high": 0.3}


def test_extending_merges_mappings_and_another_component_replaces_options(tmp_path):
    written(tmp_path, MINIMAL + "objective: {name: clipped}\n", "base.yaml")
    text = "extends: base.yaml\nreinforcement: {tasks_per_step: 5}\nreward: my.module:reward\n"
    recipe = load_recipe(written(tmp_path, text)).recipe
    assert (recipe.reinforcement.steps, recipe.reinforcement.tasks_per_step) == (3, 5)
    assert recipe.reward.name == "my.module:reward"
    jsonl = written(tmp_path, "extends: base.yaml\ntasks: {source: jsonl, path: x}\n", "other.yaml")
    assert load_recipe(jsonl).recipe.tasks.options == {"path": "x"}


def test_null_removes_a_key(tmp_path):
    assert load_recipe(written(tmp_path, MINIMAL), ["reinforcement.steps=null"]).recipe.reinforcement.steps == 100


@pytest.mark.parametrize(
    "name", mostly_slow([*built_in_recipes(), *built_in_methods()], quick=["demo", "gsm8k-tiny", "gspo", "ppo"])
)
def test_resolved_recipe_is_the_same_recipe_and_fits_on_a_screen(tmp_path, name):
    resolved = load_recipe(name)
    dumped = resolved.dump()
    assert load_recipe(written(tmp_path, dumped)).recipe == resolved.recipe
    assert len(dumped.splitlines()) <= 50


def test_invalid_overrides_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="an override has the form key=value"):
        load_recipe(written(tmp_path, MINIMAL), ["reinforcement.steps"])


def test_numbers_in_scientific_notation_are_numbers(tmp_path):
    assert (
        load_recipe(written(tmp_path, MINIMAL), ["reinforcement.learning_rate=2e-5"]).recipe.reinforcement.learning_rate
        == 2e-5
    )


# ten elements, each with ten, and so on: a hundred million
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: \x7f\n", "mine.yaml: not YAML"),
        ("a: &a {b: *a}\n", "mine"),
        ("a: &a [*a]\n", "mine"),
        (BOMB, "aliases expanded"),
        ("[" * 3000, "nested more than 60 deep"),
        ("{" * 3000, "nested more than 60 deep"),
        ("a: " + "[" * 100 + "]" * 100, "nested more than 60 deep"),
        ("a: !!timestamp x\n", "tags are not allowed"),
        ("a: !!int x\n", "mine"),
        ("? {a: b}\n: c\n", "mine"),
        (MINIMAL + "<<: {rewrd: x}\n", 'rewrd: no such key; did you mean "reward"?'),
        (MINIMAL + 'title: "\\ud800"\n', "lone surrogate"),
        (MINIMAL + '"\\ud800": 1\n', "lone surrogate"),
        (MINIMAL + '"two\\nlines": 1\n', "no such key"),
        (MINIMAL.replace("exact_number", "{name: exact_number, x: .inf}"), "reward.x: a finite number is expected"),
        (
            MINIMAL.replace("exact_number", "{name: exact_number, x: [1, .nan]}"),
            "reward.x.1: a finite number is expected",
        ),
        ("extends: " + "a" * 300, "no recipe named"),
        ('extends: "a\\0b"', "no recipe named"),
        (MINIMAL.replace("tiny: {", 'path: "a\\0b", tiny: {'), "set either path"),
        (MINIMAL.replace("tiny: {", "path: " + "a" * 5000 + ", tiny: {"), "set either path"),
    ],
)
def test_any_file_content_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 2000


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a/" + "b" * 300, ".yaml", "/", ""])
def test_impossible_file_name_is_no_recipe(name):
    with pytest.raises(RecipeError, match=r"no such recipe|no recipe named"):
        load_recipe(name)


@pytest.mark.parametrize(
    "override", ["two\nlines", "seed=\x7f", "seed=&a [*a]", "seed=" + "[" * 3000, 'title="\\ud800"']
)
def test_invalid_override_is_refused_in_one_line(tmp_path, override):
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(tmp_path, MINIMAL), [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "odd",
    [
        "? x",
        "?# x",
        "# x",
        "a: b",
        "x\ny",
        "\t",
        " x ",
        "'",
        '"',
        "{",
        "*a",
        "!b",
        "\x85",
        "é",
        "-",
        "null",
        "1e3",
        "on",
        "x" * 200 + " # y",
    ],
)
def test_options_of_any_text_are_quoted_so_that_they_are_read_back(tmp_path, odd):
    changed = load_recipe(written(tmp_path, MINIMAL)).with_changes(
        {"reward": {"name": "exact_number", odd: [odd, {odd: odd}]}}
    )
    (tmp_path / "again.yaml").write_text(changed.dump())
    assert load_recipe(tmp_path / "again.yaml").recipe == changed.recipe


@pytest.mark.parametrize(
    "changes", [{"title": "\ud800"}, {"reward.x": ["\ud800"]}, {"reward": {"name": "x", "\ud800": 1}}]
)
def test_override_without_a_yaml_form_is_refused(tmp_path, changes):
    with pytest.raises(RecipeError, match="lone surrogate") as caught:
        load_recipe(written(tmp_path, MINIMAL)).with_changes(changes)
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training=null", "training: renamed to reinforcement"),
        ("rewrd=null", 'rewrd: no such key; did you mean "reward"?'),
        ("reinforcement.stepz=null", 'reinforcement.stepz: no such key; did you mean "steps"?'),
    ],
)
def test_removed_name_must_be_a_key(override, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        load_recipe("demo", [override])


def test_dotted_name_of_a_custom_component_is_answered_with_a_colon():
    with pytest.raises(RecipeError, match='a component of your own is "my_rewards:correct"'):
        find_part("reward", "my_rewards.correct", {"verdict": object()})


@pytest.mark.parametrize("name", ["mine", "mine.yml", "min.yaml"])
def test_missing_recipe_file_is_answered_with_the_similar_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, MINIMAL)
    with pytest.raises(RecipeError, match=r'did you mean "mine\.yaml"'):
        load_recipe(name)
