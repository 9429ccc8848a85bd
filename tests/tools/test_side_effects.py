"""Effects of tools: how they are declared, and which tools a toolset calls."""

import asyncio
import functools
import json
import sys

import pytest

from support import side_effects
from support.side_effects import CALLS
from support.tool_episodes import played
from whetstone.errors import RecipeError
from whetstone.tools import TOOLS, CallPolicy, Http, OpenApi, ToolCatalog, Toolset, effects
from whetstone.tools.mcp_sdk import load_sdk
from whetstone.tools.mcp_tools import Mcp
from whetstone.tools.side_effects import CALLS_ALL, effect_of_hints


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_a_function_a_method_and_a_class_declare_effects():
    class Account:
        effects = "read"

        async def balance(self) -> int:
            """Balance."""
            return 1

        async def pay(self) -> None:
            """Pay."""

        pay.effects = "write"

    def undeclared() -> None:
        """Nothing is declared."""

    bound = functools.partial(side_effects.writing, expression="1+1")
    assert Toolset([Account, undeclared]).effects == {"balance": "read", "pay": "write", "undeclared": None}
    assert Toolset([bound]).effects == {"pocket_calculator": "write"}
    assert Toolset([side_effects.Shop]).effects == {"look_up": None, "order": "write", "refund": "destructive"}


def test_a_policy_overrides_what_tools_declare():
    toolset = Toolset([side_effects.Shop], calls=CallPolicy(effects={"look_up": "read", "refund": "read"}))
    assert toolset.effects == {"look_up": "read", "order": "write", "refund": "read"}


ODD = type("Odd", (), {"effects": "no", "look": lambda self: None})


@pytest.mark.parametrize("declare", [lambda: effects("writes"), lambda: Toolset([ODD])])
def test_an_effect_that_does_not_exist_is_an_error(declare):
    with pytest.raises(RecipeError, match=r"is not an effect.*use read, write, destructive"):
        declare()


def test_an_effect_of_a_tool_that_does_not_exist_is_an_error():
    class Odd:
        effects = {"refnd": "write"}  # noqa: RUF012

        async def refund(self) -> None:
            """Refund."""

    with pytest.raises(RecipeError, match=r'Odd\.effects: there is no tool "refnd"; did you mean "refund"'):
        Toolset([Odd])


@pytest.mark.parametrize(
    ("policy", "called"),
    [
        (CallPolicy(), [None, "read"]),
        (CallPolicy(calls_unknown=False), ["read"]),
        (CallPolicy(calls_unknown=False, allowed=("pocket_calculator",)), ["read", "write", "destructive"]),
        (CallPolicy(allowed=("refund",)), [None, "read"]),
        (CALLS_ALL, [None, "read", "write", "destructive"]),
    ],
)
def test_toolset_calls_only_what_its_policy_permits(policy, called):
    for tool in (side_effects.undeclared, side_effects.reading, side_effects.writing, side_effects.destroying):
        (answer,) = played(Toolset([tool], calls=policy), ("pocket_calculator", {"expression": "2*3"}))
        effect = getattr(tool, "effects", None)
        assert (answer.record.outcome, answer.text == "6") == (
            ("ok", True) if effect in called else ("not_called", False)
        )
    assert called == CALLS


def test_a_toolset_without_a_policy_calls_no_tool_that_writes():
    (answer,) = played(Toolset([side_effects.writing]), ("pocket_calculator", {"expression": "2*3"}))
    assert answer.text == (
        "error: not called: pocket_calculator (write); permit pocket_calculator with environment.allow_effects or "
        "--allow-effects"
    )
    assert CALLS == []


def test_operations_have_the_effect_of_their_method(tmp_path):
    methods = {"get": "read", "post": "write", "put": "write", "patch": "write", "delete": "destructive"}
    paths = {"/order": {method: {"operationId": f"{method}_order"} for method in methods}}
    (tmp_path / "shop.json").write_text(json.dumps({"openapi": "3.0.0", "paths": paths}))
    service = OpenApi(file=str(tmp_path / "shop.json"), url="http://127.0.0.1:9")
    assert Toolset([service]).effects == {f"{method}_order": effect for method, effect in methods.items()}


@pytest.mark.parametrize(
    ("methods", "effect"), [(["GET"], "read"), (["get", "POST"], "write"), (["GET", "DELETE", "PUT"], "destructive")]
)
def test_http_has_the_worst_effect_of_its_methods(methods, effect):
    assert Toolset([Http(allow=["example.org"], methods=methods)]).effects == {"http": effect}


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        ({}, None),
        ({"title": "A tool"}, None),
        ({"read_only_hint": True}, "read"),
        ({"read_only_hint": True, "destructive_hint": True}, "read"),
        ({"read_only_hint": False}, "destructive"),  # the default of destructiveHint is true
        ({"read_only_hint": False, "destructive_hint": False}, "write"),
        ({"destructive_hint": False}, "write"),
        ({"destructive_hint": True}, "destructive"),
    ],
)
def test_hints_of_mcp_are_effects(hints, effect):
    pytest.importorskip("mcp", reason="pip install mcp")
    assert effect_of_hints(load_sdk().types.ToolAnnotations(**hints)) == effect
    assert effect_of_hints(None) is None


@pytest.mark.slow
def test_effects_pass_through_an_mcp_server():
    pytest.importorskip("mcp", reason="pip install mcp")
    names = ["calculator", "support.side_effects:Shop"]
    code = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from whetstone.cli.main import main; main()"
    server = Mcp(command=[sys.executable, "-c", code, ":".join(sys.path), "mcp", *names], prewarm=0)
    listed = asyncio.run(Toolset([server]).list_effects())
    assert listed == {"calculator": None, "look_up": None, "order": "write", "refund": "destructive"}  # with a state


def test_tools_of_a_catalog_keep_their_effects():
    searched = ToolCatalog(functions=["support.side_effects:writing"])
    assert Toolset([searched]).effects == {
        "find_tools": "read",
        "remove_tools": "read",
        "pocket_calculator": "write",
    }


BY_OPTIONS = {"http", "mcp", "openapi", "python", "shell", "files"}
"""Tools whose effects depend on their options; `mcp` on the server."""


@pytest.mark.parametrize("name", sorted(set(TOOLS) - BY_OPTIONS))
def test_every_tool_of_the_package_declares_its_effects(name):
    assert TOOLS[name].effects == ({"find_tools": "read", "remove_tools": "read"} if name == "catalog" else "read")
