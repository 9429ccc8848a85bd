"""Tests of the results of the tool and of its description for the model."""

import pytest
from starter_tools import compute

from whetstone.errors import ToolError
from whetstone.tools import tool_from_function


def test_it_computes() -> None:
    assert [compute("12*34"), compute("7 - 9"), compute("-2+5")] == [408, -2, 3]


@pytest.mark.parametrize("expression", ["", "12", "1+2+3", "8/2", "twelve*34"])
def test_what_it_cannot_do_is_said_to_the_model(expression: str) -> None:
    with pytest.raises(ToolError, match="two whole numbers"):
        compute(expression)


def test_the_model_reads_its_name_what_it_does_and_its_argument() -> None:
    spec = tool_from_function(compute).spec
    assert (spec.name, spec.description) == ("compute", "One operation on two whole numbers.")
    assert list(spec.parameters["properties"]) == ["expression"]
