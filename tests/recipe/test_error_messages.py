"""Messages for values of a wrong type name the keys or components that are expected instead."""

from typing import ForwardRef

import pytest

from whetstone.errors import RecipeError
from whetstone.recipe import Recipe, load_recipe
from whetstone.recipe.settings_base import Settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.lora=true", "a mapping is expected, got True; keys below it are rank, alpha"),
        ("rollout.dynamic_sampling=true", "the name of a component is expected, got True; docs/reference/keys.md has"),
        ("loss_terms=[3]", "loss_terms.0: the name of a component is expected, got 3; docs/reference/keys.md has"),
        ("rollout.trajectory_filters=true", "a list of names of components is expected, got True; docs/reference/"),
        ("rollout.stop_strings=true", "a list is expected, got True"),
        ("policies={a: 3}", "policies.a: a mapping is expected, got 3; keys below it are path, revision"),
        ("policies={a: {pth: x}}", 'policies.a.pth: no such key; did you mean "path"?'),
        ("evaluation=null", "null does not disable evaluations, which every run has; the shortest is"),
    ],
)
def test_value_of_a_wrong_type_is_answered_with_what_is_expected(override, message):
    with pytest.raises(RecipeError) as raised:
        load_recipe("demo", [override])
    assert message in str(raised.value)


def test_types_of_all_settings_are_resolved():
    def classes(base):
        return [base, *(below for each in base.__subclasses__() for below in classes(each))]

    fields = [(each, name, field) for each in classes(Settings) for name, field in each.model_fields.items()]
    assert any(each is Recipe for each, _, _ in fields)
    assert [(each, name) for each, name, field in fields if isinstance(field.annotation, ForwardRef)] == []
