import functools
import json
from typing import Annotated, Literal, Optional

import pytest
from pydantic import BaseModel

from whetstone.errors import RecipeError, ToolError
from whetstone.tools import tool_from_function


def convert_weight(amount: float, unit: Literal["kg", "lb"], precise: bool = False) -> float:
    """Convert a weight to the other unit.

    Args:
        amount: The weight, zero or more.
        unit: The unit `amount` is given in.
        precise: With all digits.
    """
    return amount * 2.2 if unit == "kg" else amount / 2.2


def test_signature_and_docstring_are_the_schema():
    spec = tool_from_function(convert_weight).spec
    assert (spec.name, spec.description) == ("convert_weight", "Convert a weight to the other unit.")
    assert spec.parameters["required"] == ["amount", "unit"]
    assert spec.parameters["properties"] == {
        "amount": {"type": "number", "description": "The weight, zero or more."},
        "unit": {"type": "string", "enum": ["kg", "lb"], "description": "The unit `amount` is given in."},
        "precise": {"type": "boolean", "default": False, "description": "With all digits."},
    }
    assert spec.parameters["additionalProperties"] is False


def test_valid_arguments_are_bound_with_defaults():
    assert tool_from_function(convert_weight).bind('{"amount": 2, "unit": "kg"}') == {
        "amount": 2.0,
        "unit": "kg",
        "precise": False,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "kg"}, "argument amount is missing"),
        ({"amount": "2", "unit": "kg"}, 'argument amount: input should be a valid number, got "2"'),
        ({"amount": 2, "unit": "stone"}, "argument unit: input should be 'kg' or 'lb'"),
        ({"amount": 2, "unit": "kg", "colour": 1}, "there is no argument colour"),
        ([], "must be a JSON object"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(arguments, message):
    with pytest.raises(ToolError) as caught:
        tool_from_function(convert_weight).bind(json.dumps(arguments))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_json_is_an_error_that_the_model_can_read():
    with pytest.raises(ToolError, match="not valid JSON"):
        tool_from_function(convert_weight).bind("{")


def test_function_without_a_schema_is_refused_immediately():
    def untyped(x):
        return x

    with pytest.raises(RecipeError, match="tool untyped: parameter x has no type"):
        tool_from_function(untyped)


def test_callable_object_and_tool_without_arguments_work():
    class Clock:
        """Tell the time."""

        __name__ = "clock"

        def __call__(self) -> str:
            return "noon"

    tool = tool_from_function(Clock())
    assert tool.spec.name == "clock"
    assert tool.spec.parameters["properties"] == {}
    assert tool.bind("{}") == {}


def test_partial_has_the_given_name():
    bound = functools.partial(convert_weight, precise=True)
    bound.__name__ = "weigh"
    assert tool_from_function(bound).spec.name == "weigh"


class Address(BaseModel):
    """Where somebody lives."""

    town: str
    code: int | None = None


def send(
    to: Annotated[str, "Whom."],
    address: Address,
    how: Literal["post", "hand"] = "post",
    copies: Optional[int] = None,  # noqa: UP045
    tags: list[str] = [],  # noqa: B006
) -> str:
    """Send something."""
    return f"{to} {address.town} {how} {copies} {tags}"


def test_annotated_optional_nested_and_lists_are_in_the_schema_and_checked():
    tool = tool_from_function(send)
    properties = tool.spec.parameters["properties"]
    assert properties["to"] == {"type": "string", "description": "Whom."}
    assert properties["how"] == {"type": "string", "enum": ["post", "hand"], "default": "post"}
    assert tool.spec.parameters["required"] == ["to", "address"]
    bound = tool.bind('{"to": "Ada", "address": {"town": "Bern", "code": 3000}, "copies": 2, "tags": ["a"]}')
    assert bound["address"] == Address(town="Bern", code=3000)
    assert (bound["copies"], bound["tags"], bound["how"]) == (2, ["a"], "post")
    for wrong, message in (
        ('{"to": "Ada", "address": {"town": 5}}', "argument address.town"),
        ('{"to": "Ada", "address": {"code": 1}}', "argument address.town is missing"),
        ('{"to": "Ada", "address": {"town": "Bern"}, "how": "fly"}', "argument how"),
        ('{"to": "Ada", "address": {"town": "Bern"}, "copies": "2"}', "argument copies"),
        ('{"to": "Ada", "address": {"town": "Bern"}, "tags": "a"}', "argument tags"),
    ):
        with pytest.raises(ToolError, match=message):
            tool.bind(wrong)


def test_objects_of_a_class_share_one_schema():
    class Counter:
        def add(self, by: int) -> int:
            """Add."""
            return by

    first, second = tool_from_function(Counter().add), tool_from_function(Counter().add)
    assert first.spec is second.spec
    assert first.function.__self__ is not second.function.__self__
    assert list(first.spec.parameters["properties"]) == ["by"]


def test_unsupported_type_is_reported():
    def f(a: "Nowhere") -> str:  # noqa: F821
        return "x"

    with pytest.raises(RecipeError, match="tool f: parameter a: the type cannot be read: name 'Nowhere'"):
        tool_from_function(f)


def test_wrong_arguments_are_reported_briefly():
    arguments = json.dumps({f"{i}{'x' * 500}": 1 for i in range(50)})
    with pytest.raises(ToolError, match=r"; and 47 more$") as caught:
        tool_from_function(convert_weight).bind(arguments)
    assert len(str(caught.value)) < 1000
