"""Values written as Java and JavaScript literals, as in the function-calling leaderboard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.tasks.literals import format_literal, java_value, javascript_value


@pytest.mark.parametrize(
    ("text", "kind", "elements", "value"),
    [
        ("12", "integer", "", 12),
        ("12L", "integer", "", "12L"),
        ("-5l", "long", "", -5),
        ("5", "long", "", "5"),
        ("1.5e3F", "float", "", 1500.0),
        ("1.5", "float", "", "1.5"),
        ("2", "double", "", 2.0),
        ("true", "boolean", "", True),
        ("True", "boolean", "", "True"),
        ("mapController", "any", "", "mapController"),
        ("new int[]{1, 2,3}", "Array", "integer", [1, 2, 3]),
        ('new Object[]{1, "a", true, 2L}', "Array", "", [1, "a", True, 2]),
        ("numbers", "Array", "integer", "numbers"),
        ("new ArrayList<>(Arrays.asList(1, 2))", "ArrayList", "integer", [1, 2]),
        ('new ArrayList<String>() {{ add("a"); add("b"); }}', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<>()", "ArrayList", "String", []),
        ('new HashMap<String, Object>() {{ put("a", 1); put("b", "x"); }}', "HashMap", "", {"a": 1, "b": "x"}),
        ("new HashMap<>()", "HashMap", "", {}),
        ("options", "HashMap", "", "options"),
    ],
)
def test_java_is_parsed_as_its_type_or_stays_text(text, kind, elements, value):
    read = java_value(text, kind, elements)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "kind", "elements", "value"),
    [
        ("'a b'", "String", "", "a b"),
        ("a", "String", "", "a"),
        ("12n", "Bigint", "", 12),
        ("4", "float", "", 4.0),
        ("1e3", "float", "", "1e3"),
        ("false", "Boolean", "", False),
        ("[1, 'x', true, y]", "array", "", [1, "x", True, "y"]),
        ("new Array(1.5, 2)", "array", "float", [1.5, 2.0]),
        ("[[1, 2], [3, 4]]", "array", "array", [[1, 2], [3, 4]]),
        ("[]", "array", "String", []),
        ("items", "array", "String", "items"),
        ("{a: 1, 'b': [1, 2], c: x}", "dict", "", {"a": 1, "b": [1, 2], "c": "x"}),
        ("{}", "dict", "", {}),
        ("response", "dict", "", "response"),
    ],
)
def test_javascript_is_parsed_as_its_type_or_stays_text(text, kind, elements, value):
    read = javascript_value(text, kind, elements)
    assert (read, type(read)) == (value, type(value))


SIMPLE = st.integers(-9, 9) | st.booleans() | st.text("abc", min_size=1, max_size=4)


@pytest.mark.slow
@given(st.lists(SIMPLE, max_size=4), st.dictionaries(st.text("abc", min_size=1), SIMPLE, max_size=3))
def test_written_literals_are_read_back(values, pairs):
    assert javascript_value(format_literal("javascript", values, "array"), "array") == values
    assert javascript_value(format_literal("javascript", pairs, "dict"), "dict") == pairs
    assert java_value(format_literal("java", values, "Array"), "Array") == values
    assert java_value(format_literal("java", values, "ArrayList"), "ArrayList") == values
    assert java_value(format_literal("java", pairs, "HashMap"), "HashMap") == pairs
