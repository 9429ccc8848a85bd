"""Sandboxed rendering of untrusted Jinja chat templates, with limits of time and memory.

A template is a program. Jinja's sandbox isolates it from Python's internals, but does not limit its time and memory:
`range` in `range`, a text doubled forty times, `{{ 'a' * 10**10 }}`. Here the size of values is checked before and
after each operation, and the elapsed time at each iteration of a loop, each call and each piece of output.

Note:
    The output for a harmless template must be identical to that of Transformers, so the environment is configured in
    the same way. One operation is allowed in addition: a list may be appended to and popped from.
"""

from __future__ import annotations

import functools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_MOST_SECONDS = 5.0
"""Seconds of elapsed time that a rendering may take, and then of processor time; common templates take a few
milliseconds."""
_MOST_MADE = 256 << 20
"""Maximum number of characters and elements created in one rendering."""
_LARGEST = 16 << 20
"""Maximum size of one value: its characters, and its elements by their weight."""
_WEIGHT = 64
"""Weight of an element, or of a bit of a number, in characters."""
_LARGEST_NUMBER = 100_000
"""Maximum number in an argument: a width, a count."""
_LONGEST_TEMPLATE = 1 << 20
OWN_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "functions", "datetime"})
"""Variables that every template receives."""
_CLOCKS = frozenset({"datetime", "strftime_now"})
_WIDE = re.compile(r"\d{6}|\*")
"""Pattern of widths in formats, including those from an argument."""


class ChatTemplate:
    """Compiled chat template that renders conversations within limits of time and memory.

    Create it with `compile_template`, which caches compiled templates.

    Args:
        source: Jinja source of a model's template.

    Raises:
        TemplateError: If the Jinja is invalid, or longer than 1 MiB.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _LONGEST_TEMPLATE:
            raise TemplateError(f"it is longer than {_LONGEST_TEMPLATE} characters")
        self._environment = _Measured()
        with _as_template_errors():
            tree = self._environment.parse(source)
            self._asks = {node.name for node in tree.find_all(nodes.Name)}
            self.reads = frozenset(meta.find_undeclared_variables(tree) - self._environment.globals.keys())
            """Names of the variables that the template reads and does not define."""
            measured = _Measuring().visit(tree)
            measured.set_environment(self._environment)
            code = self._environment.compile(measured)
            shared = self._environment.make_globals(None)
            self._template = self._environment.template_class.from_code(self._environment, code, shared)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        special: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render a conversation to the text that the model reads.

        Args:
            messages: Messages in the OpenAI format, or as the template expects them.
            add_generation_prompt: Whether to add the generation prompt (the header of the model's next turn).
            special: Special tokens by the names that templates use (`bos_token`), and additional template variables.
            tools: Available tools in the OpenAI format; None if there are none.

        Raises:
            TemplateError: If the template fails, rejects the conversation, or exceeds its limit of time or memory.
        """
        self._environment.begin()
        with _as_template_errors():
            return self._template.render(
                **special,
                messages=_copied(messages),
                tools=_copied(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._own_names(tools),
            )

    @property
    def tells_time(self) -> bool:
        """Whether the rendered text can depend on the current time, because the template reads a clock."""
        return not self._asks.isdisjoint(_CLOCKS)

    def _own_names(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
        """Return variables that few templates read: `functions` (the tools as JSON text) and `datetime` (the date)."""
        own: dict[str, str] = {}
        if "functions" in self._asks:
            own["functions"] = json.dumps(tools or [], ensure_ascii=False)
        if "datetime" in self._asks:
            own["datetime"] = datetime.now().strftime("%Y-%m-%d")
        return own


@functools.lru_cache(maxsize=4)
def compile_template(source: str) -> ChatTemplate:
    """Return the compiled template of a Jinja source; the last four templates are cached.

    Compiling a long template takes half a second.

    Raises:
        TemplateError: If the Jinja is invalid.
    """
    return ChatTemplate(source)


def _copied(value: Any) -> Any:
    """Return a deep copy of nested lists and mappings, so that a template cannot change the caller's values."""
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list | tuple) else value


class _as_template_errors:
    """Context manager that converts every exception of a template into `TemplateError`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, TemplateError):
            raise TemplateError(f"{type(error).__name__}: {error}") from error


class _Spent(threading.local):
    """Resources that the current rendering of a thread has used, and its deadlines."""

    size: int = 0
    """Number of characters, and of weighted elements, created by the rendering."""
    soonest: float = math.inf
    """Time of the monotonic clock, in seconds, before which the rendering is not stopped."""
    until: float | None = None
    """Deadline by the processor time of the thread, in seconds; None: not set before `soonest`."""


class _Measured(ImmutableSandboxedEnvironment):
    """Jinja environment with the settings of Transformers, and limits on every operation."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _to_json
        self.filters = {name: self._measured_filter(function) for name, function in self.filters.items()}
        self.globals["raise_exception"] = _raised
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        self.globals["dict"] = lambda *args, **named: dict(*args, **named)
        self.globals["namespace"] = _Names
        del self.globals["lipsum"]
        self._own = (self.check_output, self.tick, self.join_values, self.count_size)
        self._spent = _Spent()

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may access an attribute: as in Jinja's sandbox, plus `append` and `pop` of lists.

        Kimi-K2's template calls both. They are harmless because templates receive copies.
        """
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def begin(self) -> None:
        """Reset the counters and deadlines of this thread before a rendering."""
        self._spent.size = 0
        self._spent.soonest, self._spent.until = time.monotonic() + _MOST_SECONDS, None

    def tick(self) -> bool:
        """Raise `TemplateError` if the time limit has passed; otherwise return True.

        Compiled templates call it at each iteration of a loop and at each call.
        """
        spent = self._spent
        if time.monotonic() <= spent.soonest:
            return True
        # on a busy machine little of the elapsed time was the template's; processor time is slow to read
        now = time.thread_time()
        spent.until = spent.until or now + _MOST_SECONDS
        if now > spent.until:
            raise TemplateError(f"it takes longer than {_MOST_SECONDS:g} s")
        return True

    def count_size(self, value: Any) -> Any:
        """Add the size of a new value to the total, and return the value.

        Raises:
            TemplateError: If the rendering has created more than the limit.
        """
        self._spent.size += _size(value)
        if self._spent.size > _MOST_MADE:
            raise TemplateError(f"it makes more than {_MOST_MADE} characters")
        return value

    def check_output(self, value: Any) -> str:
        """Return a piece of output as text, after checking the time and size limits."""
        self.tick()
        _size(value)
        return str(self.count_size(str(value)))

    def join_values(self, *values: Any) -> str:
        """Concatenate values as text: the operator `a ~ b` of Jinja."""
        return "".join(map(self.check_output, values))

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """Call a function of the template within the limits.

        Overrides `SandboxedEnvironment.call`.
        """
        if __obj in __self._own:
            return __obj(*args)
        __self.tick()
        subject = getattr(__obj, "__self__", None)
        if isinstance(subject, str):
            _check_growth(subject, (*args, *named.values()), formats=__obj.__name__ in ("format", "format_map"))
        else:
            _check_numbers((*args, *named.values()))
        return __self.count_size(super().call(__context, __obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate `+`, `*`, `**` or `%` within the limits.

        Overrides `SandboxedEnvironment.call_binop`.
        """
        self.tick()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and not isinstance(other, int | float) and one * (_size(other) or 1) > _LARGEST:
                    raise TemplateError("it makes a value that is too large")
        elif operator == "**" and not (abs(left) <= _LARGEST_NUMBER and abs(right) <= 64):
            raise TemplateError("it makes a number that is too large")
        elif operator == "%" and isinstance(left, str):
            _check_growth(left, right if isinstance(right, tuple) else (right,), formats=True)
        return self.count_size(super().call_binop(context, operator, left, right))

    def _measured_filter(self, function: Callable[..., Any]) -> Callable[..., Any]:
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # context or environment come first

        @functools.wraps(function)
        def measured(*args: Any, **named: Any) -> Any:
            self.tick()
            subject, *others = (*args[passed:], *named.values())
            _check_growth(subject, others, formats=function.__name__ == "do_format")
            return self.count_size(function(*args, **named))

        return measured


class _Measuring(NodeTransformer):
    """Syntax-tree transformer that inserts time and size checks into a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_measure("tick", node), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_measure("tick", node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_measure("tick", node), lineno=node.lineno))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            _measure("check_output", each, nodes.Const(each.data) if isinstance(each, nodes.TemplateData) else each)
            for each in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _measure("join_values", node, *node.nodes)

    def _collection(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _measure("count_size", node, node)

    visit_List = visit_Tuple = visit_Dict = _collection


class _Generation(Extension):
    """Jinja extension `{% generation %}`, which marks the model's text for loss masks.

    Only its content is rendered.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between `{% generation %}` and `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """Implementation of `namespace()` in templates.

    Names that start with an underscore are rejected.
    """

    def __init__(*args: Any, **named: Any) -> None:
        own, *rest = args
        values = dict(*rest, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(f"a variable is called {name[:60]!r}; names must not start with an underscore")


def _measure(what: str, at: nodes.Node, *values: Any) -> nodes.Call:
    return nodes.Call(
        nodes.EnvironmentAttribute(what, lineno=at.lineno), list(values), [], None, None, lineno=at.lineno
    )


def _raised(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _size(value: Any) -> int:
    """Return the size of a value: its characters, plus a weight of 64 per element or bit of a number.

    Parts that occur several times count each time.

    Raises:
        TemplateError: If the size exceeds 16 MiB.
    """
    size, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, int):
            size += one.bit_length() * _WEIGHT
        elif isinstance(one, Mapping):
            size += len(one) * _WEIGHT
            left += (*one.keys(), *one.values())
        elif isinstance(one, list | tuple | set):
            size += len(one) * _WEIGHT
            left += one
        if size > _LARGEST or len(left) > _LARGEST:
            raise TemplateError("it makes a value that is too large")
    return size


def _check_growth(subject: Any, others: Sequence[Any], *, formats: bool) -> None:
    """Raise `TemplateError` if an operation on a text or list could create a value that is too large.

    Args:
        subject: Text or list on which the method or filter operates.
        others: Arguments of the operation.
        formats: Whether the operation formats text, so that widths in `subject` matter.
    """
    _check_numbers(others)
    if formats and isinstance(subject, str) and _WIDE.search(subject):
        raise TemplateError(f"the format {subject[:40]!r} may be too wide")
    if _extent(subject) * max((_extent(other) for other in others), default=1) > 12 * _LARGEST:
        raise TemplateError("it makes a value that is too large")


def _check_numbers(values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, int | float) and abs(value) > _LARGEST_NUMBER:
            raise TemplateError(f"an argument is too large: {value:.6g}")


def _extent(value: Any) -> int:
    if isinstance(value, str | list | tuple | dict | range):
        return len(value) + 1
    if isinstance(value, Iterator):  # from `map` and `select`: no longer than a range may be
        return _LARGEST_NUMBER
    return 1 + abs(int(value)) if isinstance(value, int) else 1
