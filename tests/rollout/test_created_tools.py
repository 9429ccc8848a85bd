"""Functions of solved episodes become tools of later episodes; those that fail are removed."""

import json

import pytest

from support.episodes import collected, in_order, step_outcome
from support.sandbox import needs_isolation
from whetstone.chat import ToolCall, assistant
from whetstone.environments import ToolEnvironment
from whetstone.rollout import MethodComponents
from whetstone.rollout.environment_wrappers import CreatedTools
from whetstone.rollout.environment_wrappers.created_tools import CreatedTool, find_reusable_functions
from whetstone.rollout.strategies import Independent
from whetstone.tools import Python

TIMES = 'def times(a: int, b: int = 1):\n    """Multiply."""\n    return a * b'


def run(code):
    return assistant("", ToolCall("python", json.dumps({"code": code})))


def use(name, **arguments):
    return assistant("", ToolCall(name, json.dumps(arguments)))


def play(created, *messages):
    group = collected(
        Independent(group_size=1),
        in_order(*messages),
        method=MethodComponents(environment_wrapper=created),
        environment=lambda: ToolEnvironment(tools=[Python()]),
    )
    created.observe(step_outcome(group))
    return group.trajectories[0]


@needs_isolation
def test_function_of_a_solved_episode_is_a_tool_of_the_next_one():
    created = CreatedTools()
    play(created, run(f"{TIMES}\ntimes(12, 34)"), assistant("408"))
    assert [(each.name, each.uses) for each in created.functions.values()] == [("times", 1)]
    later = play(created, use("times", a=12, b=34), assistant("408"))
    assert later.turns[0].observation[0].text.strip() == "408"
    assert later.turns[0].message.tool_calls[0].name == "times"  # the sampled call
    assert [each.uses for each in created.functions.values()] == [2]


@needs_isolation
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (f"{TIMES}\ntimes(12, 34)", "7"),  # not solved
        (f"{TIMES}\n408", "408"),  # never called
        (f"{TIMES}\ntimes(1, 2, 3)", "408"),  # raised an error
        ("scale = 34\ndef times(a):\n    return a * scale\ntimes(12)", "408"),  # needs the rest of the program
        ("def times(*a):\n    return a\ntimes(12)", "408"),  # arguments cannot be passed by name
    ],
)
def test_nothing_is_kept_of_other_functions(code, answer):
    created = CreatedTools()
    play(created, run(code), assistant(answer))
    assert created.functions == {}


@needs_isolation
def test_function_that_fails_more_often_than_it_succeeds_is_removed():
    created = CreatedTools()
    play(created, run(f"{TIMES}\ntimes(12, 34)"), assistant("408"))
    play(created, use("times", a=12, b="x", c=3), assistant("408"))
    assert [(each.uses, each.failures) for each in created.functions.values()] == [(1, 1)]
    play(created, use("times", a={}, b={}), assistant("408"))
    assert created.functions == {}


@needs_isolation
def test_equal_functions_are_one_and_the_state_is_restored():
    created = CreatedTools()
    play(created, run(f"{TIMES}\ntimes(12, 34)"), assistant("408"))
    renamed = TIMES.replace("times", "product").replace('    """Multiply."""\n', "")
    play(created, run(f"{renamed}\nproduct(12, 34)"), assistant("408"))
    assert [(each.name, each.uses) for each in created.functions.values()] == [("times", 2)]
    other = CreatedTools()
    other.load_state(json.loads(json.dumps(created.state())))
    assert other.functions == created.functions
    assert other.metrics() == {"functions": 1.0, "uses": 2.0}


def test_signature_becomes_the_schema():
    spec = CreatedTool("times", TIMES).to_spec()
    assert (spec.name, spec.description) == ("times", "Multiply.")
    assert spec.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_most_successful_functions_are_offered_and_hide_others_of_their_name():
    created = CreatedTools(offered=2, capacity=3)
    sources = [f"def f{k % 3}(a):\n    return a + {k}" for k in range(5)]
    tools = [CreatedTool(f"f{k % 3}", source, uses=k + 1) for k, source in enumerate(sources)]
    created.functions = {str(k): tool for k, tool in enumerate(tools)}
    assert created.select_tools() == {"f1": tools[4], "f0": tools[3]}
    created.observe(step_outcome())
    assert [each.uses for each in created.functions.values()] == [3, 4, 5]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(x):\n    import math\n    return [math.sqrt(y) for y in x]", ["f"]),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)", ["f"]),
        ("def f(x):\n    def g(y):\n        return x + y\n    return g(1)", ["f"]),
        ("def f(x):\n    global y\n    y = x", []),
        ("def f(x):\n    return g(x)\ndef g(x):\n    return x", ["g"]),
        ("@cache\ndef f(x):\n    return x", []),
        ("def _f(x):\n    return x", []),
        ("def f(x): return '" + "x" * 3000 + "'", []),
        ("def f(x", []),
    ],
)
def test_reusable_functions_need_nothing_of_their_program(code, names):
    assert list(find_reusable_functions(code)) == names


def test_environment_without_the_tool_offers_nothing():
    created = CreatedTools()
    created.functions = {"x": CreatedTool("times", TIMES)}
    group = collected(
        Independent(group_size=1),
        in_order(use("times", a=12, b=34), assistant("408")),
        method=MethodComponents(environment_wrapper=created),
    )
    assert group.trajectories[0].turns[0].calls[0].outcome == "unknown_tool"
