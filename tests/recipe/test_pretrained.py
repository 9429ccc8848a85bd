"""Defaults of recipes with a pretrained policy: learning rates, truncation, formats."""

import pytest

from support.small import SMALL
from whetstone.assembly import as_reinforcement, assemble
from whetstone.errors import RecipeError
from whetstone.policies import save_policy
from whetstone.recipe import load_recipe
from whetstone.training.single_run import report_low_rates


@pytest.mark.parametrize(
    ("policy", "reinforcement", "supervised"),
    [
        ({"tiny": {}}, 3e-4, 1e-3),
        ({"path": "/a/model"}, 1e-6, 1e-5),
        ({"path": "/a/model", "lora": {"rank": 4}}, 1e-5, 1e-4),
    ],
)
def test_learning_rate_depends_on_the_policy_unless_it_is_set(policy, reinforcement, supervised):
    keys = {"tasks": {"source": "arithmetic"}, "reward": "exact_number", "policy": policy}
    recipe = load_recipe({**keys, "reinforcement": {}, "supervised": {}})
    assert recipe.recipe.reinforcement.learning_rate == pytest.approx(reinforcement)
    assert recipe.recipe.supervised.learning_rate == pytest.approx(supervised)
    assert recipe.with_changes({"reinforcement.learning_rate": 0.5}).recipe.reinforcement.learning_rate == 0.5


def test_unset_rate_follows_the_policy_and_is_stored_with_the_run(tmp_path):
    keys = {
        "tasks": {"source": "arithmetic"},
        "reward": "exact_number",
        "policy": {"path": "/a/model"},
        "reinforcement": {},
    }
    recipe = load_recipe(load_recipe(keys).recipe)  # as in Python, from a recipe's own keys
    assert recipe.with_changes({"policy.lora": {}}).recipe.reinforcement.learning_rate == pytest.approx(1e-5)
    (tmp_path / "recipe.yaml").write_text(recipe.dump())
    written = load_recipe(tmp_path / "recipe.yaml").recipe
    assert written == recipe.recipe
    assert written.reinforcement.model_fields_set >= {"learning_rate"}


def test_rate_too_low_for_a_small_policy_is_reported(tmp_path):
    small = assemble(load_recipe("demo", [*SMALL, "ablations=null"])).policy
    save_policy(small, tmp_path)
    begun = ["ablations=null", "supervised=null", "policy.tiny=null", f"policy.path={tmp_path}"]

    def rate_notes(*more):
        lines, resolved = [], load_recipe("demo", [*begun, *more])
        report_low_rates(assemble(as_reinforcement(resolved)), resolved, lines.append)
        return lines

    assert rate_notes() == []  # the recipe's own rate
    (line,) = rate_notes("reinforcement={steps: 2}", "reinforcement.learning_rate=1e-6")
    assert line.startswith("reinforcement.learning_rate: 1e-06 suits pretrained models")
    assert f"this one has {small.parameters:,}" in line
    assert line.endswith("set a higher one, such as reinforcement.learning_rate=1e-3")
    distilled = ["advantage=null", "objective=null", "reinforcement=null", "distillation={learning_rate: 1e-6}"]
    (line,) = rate_notes(*distilled, f"teacher.path={tmp_path}")  # the components are built from a reinforcement stage
    assert line.startswith("distillation.learning_rate: 1e-06 suits")


def test_answer_length_beyond_the_context_is_reported():
    def length_notes(length):
        lines = []
        assert assemble(load_recipe("demo", [*SMALL, f"rollout.max_new_tokens={length}"]), say=lines.append).policy
        return [line for line in lines if line.startswith("rollout.max_new_tokens")]

    assert length_notes(255) == []
    (line,) = length_notes(256)
    assert line.startswith("rollout.max_new_tokens: 256 never fits into the context of 256 tokens")


@pytest.mark.parametrize("cut", ["top_k=5", "top_p=0.9", "min_p=0.1"])
def test_truncated_sampling_at_another_temperature_is_refused_for_training(cut):
    key = cut.partition("=")[0]
    load_recipe("demo", [f"rollout.{cut}"])
    with pytest.raises(RecipeError, match=rf"rollout\.{key}: the log-probs before .* at temperature 1; it is 0\.7"):
        load_recipe("demo", [f"rollout.{cut}", "rollout.temperature=0.7"])


def test_empty_stop_sequence_is_refused():
    with pytest.raises(RecipeError, match=r"rollout\.stop_strings: an empty string ends every turn immediately"):
        load_recipe("demo", ['rollout.stop_strings=["x", ""]'])
