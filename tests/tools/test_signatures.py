"""Every signature that Python allows becomes a tool, or the tool and the parameter are named."""

import asyncio
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import pathlib
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from support.slow import examples
from whetstone.chat import ToolCall, ToolSpec
from whetstone.errors import RecipeError, ToolError
from whetstone.tools import OpenApi, Simulated, Toolset, tool_from_function
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.simulated import Answers


def call(function, arguments, **options):
    """Return the outcome and the text of one call."""
    name = tool_from_function(function).spec.name
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    answer = asyncio.run(Toolset([function], **options).call(ToolCall(name, text)))
    return answer.record.outcome, answer.text


def taking(annotation, default=None):
    """Return a function of one parameter, `value`, that returns its text."""

    def report(value):
        """Report."""
        return repr(value)

    report.__annotations__ = {"value": annotation}
    if default is not None:
        report.__defaults__ = (default,)
    return report


# -- pydantic.Field


def search(query: str = Field(description="What to find."), limit: int = Field(5, ge=1, le=10)) -> str:
    """Search."""
    return f"{query!r} {limit!r}"


def search_annotated(
    query: Annotated[str, Field(description="What to find.")], limit: Annotated[int, Field(ge=1, le=10)] = 5
) -> str:
    """Search."""
    return f"{query!r} {limit!r}"


def search_both(
    query: Annotated[str, Field(description="Hidden.")] = Field(description="What to find."),
    limit: Annotated[int, Field(5, ge=1)] = Field(le=10),
) -> str:
    """Search."""
    return f"{query!r} {limit!r}"


@pytest.mark.parametrize("function", [search, search_annotated, search_both])
def test_field_gives_default_bounds_and_description(function):
    assert tool_from_function(function).spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to find."},
            "limit": {"type": "integer", "default": 5, "minimum": 1, "maximum": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert call(function, {"query": "tea"}) == ("ok", "'tea' 5")
    assert call(function, {"query": "tea", "limit": 10}) == ("ok", "'tea' 10")
    assert call(function, {}) == ("invalid_arguments", f"error: {function.__name__}: argument query is missing")
    assert call(function, {"query": "tea", "limit": 11})[0] == "invalid_arguments"


def test_field_with_a_factory_makes_a_new_default_for_each_call():
    def collect(item: str, into: list[str] = Field(default_factory=lambda: ["first"])) -> list[str]:  # noqa: B008
        into.append(item)
        return into

    assert [call(collect, {"item": "a"})[1] for _ in range(2)] == ['["first", "a"]'] * 2
    assert tool_from_function(collect).spec.parameters["required"] == ["item"]


def test_an_alias_is_the_name_that_the_model_sees():
    def choose(class_: Annotated[str, Field(alias="class")], **others: int) -> str:
        return f"{class_} {others}"

    assert list(tool_from_function(choose).spec.parameters["properties"]) == ["class"]
    assert call(choose, {"class": "a", "b": 1}) == ("ok", "a {'b': 1}")
    assert call(choose, {"class": "a", "class_": 1})[0] == "invalid_arguments"

    def clash(first: int = Field(alias="second"), second: int = 1) -> int:
        return first

    with pytest.raises(RecipeError, match="tool clash: parameter second: another parameter has the alias second"):
        tool_from_function(clash)


def test_a_default_of_none_accepts_null():
    def convert(unit: str = None, size: Annotated[int, Field(ge=2)] = None) -> str:  # noqa: RUF013
        return f"{unit} {size}"

    assert call(convert, {"unit": None, "size": None}) == ("ok", "None None")
    assert call(convert, {"size": 1})[0] == "invalid_arguments"


def test_defaults_that_json_cannot_express_are_left_out_and_the_others_are_json():
    def many(
        limit: float = float("inf"),
        sentinel: Any = object(),  # noqa: B008
        words: set[str] = {"b", "c", "a"},  # noqa: B006
        path: pathlib.Path = pathlib.Path("/tmp"),
    ) -> str:
        return f"{limit}"

    schema = tool_from_function(many).spec.parameters
    json.dumps(schema, allow_nan=False)
    defaults = {name: one.get("default") for name, one in schema["properties"].items()}
    assert defaults == {"limit": None, "sentinel": None, "words": ["a", "b", "c"], "path": "/tmp"}
    assert "default" not in schema["properties"]["limit"]
    assert call(many, {}) == ("ok", "inf")


# -- names and kinds of parameters

NAMES = ["self", "cls", "model_config", "model_fields", "schema", "json", "copy", "dict", "construct", "validate"]
NAMES += [
    "_private",
    "__dunder",
    "p0",
    "p1",
    "function",
    "arguments",
    "tool",
    "name",
    "signature",
    "args",
    "value",
    "π",
]
PYTHON_NAMES = st.sampled_from(NAMES) | st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@examples(60)
@given(
    names=st.lists(
        PYTHON_NAMES.filter(lambda name: name.isidentifier() and not __import__("keyword").iskeyword(name)),
        unique=True,
        max_size=6,
    ),
    kinds=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    has_rest=st.booleans(),
    defaults=st.integers(0, 6),
)
def test_a_parameter_of_any_name_and_kind_receives_its_argument(names, kinds, has_rest, defaults):
    kinds = sorted(kinds[: len(names)])
    written = []
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if kind == 2 and "*" not in written and 2 not in kinds[:index]:
            written.append("*rest: int" if has_rest and "rest" not in names else "*")
        written.append(f"{name}: int" + (" = 7" if index >= len(names) - defaults else ""))
        if kind == 0 and (index + 1 == len(names) or kinds[index + 1] != 0):
            written.append("/")
    scope = {"DICT": dict, "LOCALS": locals}  # parameters may be named `dict` and `locals`
    exec(f"def probe({', '.join(written)}):\n    return DICT(LOCALS())", scope)
    required = names[: max(len(names) - defaults, 0)]
    given_values = {name: float(index) for index, name in enumerate(required)}
    expected = {name: given_values.get(name, 7) for name in names}
    outcome, text = call(scope["probe"], given_values)
    assert outcome == "ok", text
    received = json.loads(text)
    received.pop("rest", None)
    assert received == expected
    assert all(isinstance(value, int) for value in received.values())


def test_positional_variadic_and_named_arguments_arrive():
    def count(first: int, second: int = 2, /, third: int = 3, *rest: int, fourth: int = 4, **others: str) -> str:
        return f"{first} {second} {third} {rest} {fourth} {others}"

    parameters = tool_from_function(count).spec.parameters
    assert list(parameters["properties"]) == ["first", "second", "third", "rest", "fourth"]
    assert parameters["additionalProperties"] == {"type": "string"}
    assert call(count, {"first": 1}) == ("ok", "1 2 3 () 4 {}")
    assert call(count, {"first": 1, "rest": [5, 6.0], "x": "y"}) == ("ok", "1 2 3 (5, 6) 4 {'x': 'y'}")
    wrong = call(count, {"first": 1, "x": 5})
    assert wrong == ("invalid_arguments", "error: count: argument x: input should be a valid string, got 5")


class Options(TypedDict):
    """Options of a search."""

    depth: int
    word: NotRequired[str]


def test_unpacked_keyword_arguments_are_parameters():
    def look(**options: Unpack[Options]) -> str:
        return f"{options}"

    assert tool_from_function(look).spec.parameters["required"] == ["depth"]
    assert call(look, {"depth": 3.0}) == ("ok", "{'depth': 3}")
    assert call(look, {"depth": 3, "word": "x"}) == ("ok", "{'depth': 3, 'word': 'x'}")
    assert call(look, {"depth": 3, "words": "x"})[0] == "invalid_arguments"


# -- types


class Town(BaseModel):
    """A town."""

    name: str
    people: int


@dataclasses.dataclass
class Box:
    """A box."""

    width: int
    labels: list[str] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    """Two numbers."""

    first: int
    second: int = 2


class Color(enum.Enum):
    """A color."""

    RED = "red"


class Level(enum.IntEnum):
    """A level."""

    ONE = 1


Element = typing.TypeVar("Element")
TYPES = [
    (int, 3.0, 3),
    (float, 3, 3.0),
    (bool, True, True),
    (None, None, None),
    (Any, [1.5], [1.5]),
    (object, "x", "x"),
    (datetime.date, "2024-05-06", datetime.date(2024, 5, 6)),
    (datetime.timedelta, "PT5S", datetime.timedelta(seconds=5)),
    (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    (pathlib.Path, "/a/b", pathlib.Path("/a/b")),
    (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
    (bytes, "ab", b"ab"),
    (set[int], [1, 1.0], {1}),
    (frozenset[str], ["a"], frozenset({"a"})),
    (tuple[int, str], [1.0, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (dict[str, int], {"a": 1.0}, {"a": 1}),
    (collections.abc.Mapping[str, int], {"a": 1}, {"a": 1}),
    (collections.abc.Sequence[int], [1.0], [1]),
    (collections.abc.Iterable[int], [1.0], [1]),
    (collections.abc.Collection[int], [1.0], [1]),
    (list[collections.abc.Iterable[int]], [[1.0]], [[1]]),
    (collections.deque[int], [1], collections.deque([1])),
    (Optional[int], None, None),  # noqa: UP045
    (Union[int, str], "12", "12"),  # noqa: UP007
    (int | str, 42.0, 42),
    (str | None, "12", "12"),
    (Literal[1, "a"], 1.0, 1),
    (Color, "red", Color.RED),
    (Level, 1.0, Level.ONE),
    (Town, {"name": "Bern", "people": 5.0}, Town(name="Bern", people=5)),
    (Box, {"width": 2.0}, Box(2)),
    (Pair, [1], Pair(1)),
    (Options, {"depth": 1.0}, {"depth": 1}),
    (list[Options], [{"depth": 1}], [{"depth": 1}]),
    (dict[str, Options | None], {"a": {"depth": 1}}, {"a": {"depth": 1}}),
    (Annotated[int, "A number."], 1.0, 1),
    (Element, 4, 4),
    (list[Element], [4], [4]),
    (typing.AnyStr, "x", "x"),
]


@pytest.mark.parametrize(("annotation", "given_value", "received"), TYPES, ids=[str(row[0]) for row in TYPES])
def test_a_value_of_any_type_is_received_as_that_type(annotation, given_value, received):
    tool = tool_from_function(taking(annotation))
    bound = tool.bind(json.dumps({"value": given_value}))["value"]
    assert bound == received
    assert type(bound) is type(received)
    json.dumps(tool.spec.parameters, allow_nan=False)


@pytest.mark.parametrize(
    "annotation",
    [
        range, slice, type[int], list[type], typing.Self, typing.Never, typing.IO[str], typing.ClassVar[int],
        collections.abc.Callable[[int], int], collections.abc.Iterator[int], collections.abc.Generator[int, None, None],
        Annotated[list[int], Field(ge="x", pattern="(")], "Nowhere", "list[Nowhere]", "1 +",
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_json_cannot_express_names_tool_and_parameter(annotation):
    with pytest.raises(RecipeError, match=r"^tool report: parameter value\b") as caught:
        tool_from_function(taking(annotation))
    assert "\n" not in str(caught.value)


def test_return_type_is_not_read():
    def known(a: int) -> "Nowhere":  # noqa: F821
        return a

    assert call(known, {"a": 1}) == ("ok", "1")


def test_a_forward_reference_to_a_variable_of_the_enclosing_function_is_resolved():
    def make():
        class Local(BaseModel):
            size: int

        def measure(what: "Local") -> int:
            return Local.model_validate(what).size

        return measure

    assert call(make(), {"what": {"size": 3.0}}) == ("ok", "3")


def test_a_builtin_without_a_signature_is_rejected_in_one_line():
    with pytest.raises(RecipeError, match="tool max: the signature cannot be read"):
        tool_from_function(max)


# -- kinds of functions


def fetch(url: str, client: range, times: int = 1) -> str:
    """Fetch a page.

    Args:
        url: The address.
    """
    return f"{url} {client} {times}"


def test_partial_hides_its_arguments_and_keeps_name_and_docstring():
    tool = tool_from_function(functools.partial(fetch, client=range(3)))
    assert (tool.spec.name, tool.spec.description) == ("fetch", "Fetch a page.")
    assert tool.spec.parameters["properties"] == {
        "url": {"type": "string", "description": "The address."},
        "times": {"type": "integer", "default": 1},
    }
    assert call(functools.partial(fetch, client=range(3)), {"url": "a"}) == ("ok", "a range(0, 3) 1")


@dataclasses.dataclass
class Scale:
    """Multiply."""

    factor: int

    async def __call__(self, number: int, /) -> int:
        """Multiply.

        Args:
            number: What to multiply.
        """
        return self.factor * number


def test_an_unhashable_callable_object_is_a_tool_and_keeps_its_state():
    tools = [tool_from_function(Scale(factor), f"times{factor}") for factor in (2, 3)]
    toolset = Toolset(tools)
    answers = [asyncio.run(toolset.call(ToolCall(f"times{factor}", '{"number": 5.0}'))).text for factor in (2, 3)]
    assert answers == ["10", "15"]
    assert tools[0].spec.parameters["properties"]["number"]["description"] == "What to multiply."


class Kinds:
    """A method of every kind."""

    constant = 3

    def plain(self, a: int) -> int:
        """Plain."""
        return a

    @staticmethod
    def static(a: int) -> int:
        """Static."""
        return a

    @classmethod
    def of_class(cls, a: int) -> str:
        """A method of the class."""
        return f"{cls.__name__}{a}"

    bound = functools.partialmethod(plain, 5)
    renamed = plain

    def variadic(*values: int) -> int:
        """Take self as the first of them."""
        return sum(values[1:])

    @property
    def broken(self) -> int:
        """Not a method."""
        raise RuntimeError("evaluated")


def test_every_kind_of_method_is_a_tool_under_its_own_name():
    toolset = Toolset([Kinds])
    calls = {"plain": {"a": 1}, "static": {"a": 2}, "of_class": {"a": 3}, "bound": {}, "renamed": {"a": 4},
             "variadic": {"values": [1, 2]}}  # fmt: skip
    assert [spec.name for spec in toolset.specs] == list(calls)
    texts = [asyncio.run(toolset.call(ToolCall(name, json.dumps(values)))).text for name, values in calls.items()]
    assert texts == ["1", "2", "Kinds3", "5", "4", "3"]


# -- whole numbers, in every shape of tool

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "numbers": {"type": "array", "items": {"type": "integer"}}},
    "required": ["number"],
}
DIALECTS = [None, "http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2020-12/schema"]


def test_a_whole_number_with_a_fraction_is_an_integer_of_a_python_tool():
    def add(number: int, numbers: list[int]) -> int:
        return number + sum(numbers)

    assert call(add, '{"number": 3.0, "numbers": [1e2, 4.0]}') == ("ok", "107")
    assert call(add, '{"number": 3.5, "numbers": []}')[0] == "invalid_arguments"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_whole_number_with_a_fraction_is_an_integer_of_a_declared_tool(dialect):
    async def answer(arguments):
        return arguments

    schema = SCHEMA if dialect is None else {"$schema": dialect, **SCHEMA}
    tool = tool_from_schema(ToolSpec("add", "", schema), answer)
    bound = tool.bind('{"number": 3.0, "numbers": [1e2]}')
    assert json.dumps(bound) == '{"number": 3, "numbers": [100]}'
    with pytest.raises(ToolError, match="is not of type 'integer'"):
        tool.bind('{"number": 3.5}')


def test_a_table_of_answers_knows_one_number_in_both_spellings(tmp_path):
    (tmp_path / "tools.jsonl").write_text(json.dumps({"name": "add", "parameters": SCHEMA}))
    (tmp_path / "answers.jsonl").write_text('{"name": "add", "arguments": {"number": 3.0}, "result": "three"}')
    simulated = Simulated(file=str(tmp_path / "tools.jsonl"), answers=str(tmp_path / "answers.jsonl"))
    for written in ("3", "3.0"):
        assert asyncio.run(Toolset([simulated]).call(ToolCall("add", f'{{"number": {written}}}'))).text == "three"
    assert asyncio.run(Answers(str(tmp_path / "answers.jsonl")).answer("add", {"number": 3})).outcome == "ok"


def test_a_whole_number_in_a_path_is_written_without_its_fraction(tmp_path):
    (tmp_path / "shop.yaml").write_text(
        "openapi: 3.0.1\npaths:\n  /items/{item}:\n    get:\n      operationId: show\n      parameters:\n"
        "      - {name: item, in: path, required: true, schema: {type: integer}}\n"
    )
    (tool,) = OpenApi(file=str(tmp_path / "shop.yaml"), url="http://localhost:9").tools()
    assert tool.bind('{"item": 7.0}') == {"item": 7}
    assert json.dumps(tool.bind('{"item": 7.0}')) == '{"item": 7}'


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "[1e999]"])
def test_a_number_that_json_cannot_express_is_an_error_in_every_shape(number):
    async def answer(arguments):
        return arguments

    for tool in (tool_from_function(taking(Any)), tool_from_schema(ToolSpec("report", "", {"type": "object"}), answer)):
        with pytest.raises(ToolError, match="report: the arguments are not valid JSON"):
            tool.bind(f'{{"value": {number}}}')
