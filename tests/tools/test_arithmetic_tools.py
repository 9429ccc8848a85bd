from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.errors import ToolError
from whetstone.tools import calculator, pocket_calculator
from whetstone.tools.arithmetic_tools import evaluate_expression

NUMBERS = st.integers(0, 999)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from("+-*"), st.sampled_from("+-*"))
def test_it_agrees_with_python_on_integers(a, b, c, first, second):
    expression = f"({a}{first}{b}){second}{c}"
    assert calculator(expression) == str(eval(expression))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("1/4", "0.25"), (".5*100", "50"), ("0.1+0.2", "0.3"), ("-3*-2", "6"), ("2/3", "0.6666666667"), (" 7 ", "7")],
)
def test_results_are_exact_and_short(expression, expected):
    assert calculator(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "2**999999",
        "__import__('os')",
        "1/0",
        "x",
        "",
        "1+",
        "True",
        "(" * 300 + ")" * 300,
        "1 if 1 else 2",
        "1e999",
        "[1]",
        "f(2)",
    ],
)
def test_other_input_is_an_error_that_the_model_can_read(expression):
    with pytest.raises(ToolError):
        calculator(expression)


@pytest.mark.parametrize("expression", ["1+2+3", "(1+2)*3", "7", "-7"])
def test_pocket_calculator_does_one_operation(expression):
    with pytest.raises(ToolError, match="one operation"):
        pocket_calculator(expression)


def test_pocket_calculator_accepts_negative_numbers():
    assert pocket_calculator("-12*34") == "-408"
    assert pocket_calculator("12--34") == "46"


def test_decimals_are_exact():
    assert evaluate_expression("0.1") == Fraction(1, 10)
