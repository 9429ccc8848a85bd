"""Page of tools: built-in tools, tool-call formats, and the sandbox for untrusted code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from docstring_parser import parse

from whetstone.chat import FORMATS, Message, ToolCall, ToolSpec
from whetstone.chat.protocol import ToolCallFormat
from whetstone.sandbox import Ending, Isolation, Limits
from whetstone.tools import TOOLS
from whetstone.tools.protocol import LIFETIME

TOP = """# Tools

*Generated from the docstrings by `make docs`; edit them there.*

A recipe lists the tools of an episode, each as a name or as a mapping with options:

```yaml
environment:
  tools:
    - calculator
    - {name: python, persistence: reset, limits: {wall_seconds: 5, memory_mb: 256}}
    - {name: search, corpus: docs/}
    - {name: sql, url: shop.sqlite}
    - {name: mcp, command: [npx, some-mcp-server]}
    - my_shop:price           # a custom typed function
    - my_shop:Basket          # a class: its public methods are tools; one object per episode
```

Every signature of Python becomes a tool: descriptions, defaults and bounds of `pydantic.Field` apply, parameters can
have any name and kind (positional-only, `*args`, `**kwargs`), and arguments that a `functools.partial` sets are hidden
from the model. A type that JSON cannot express is an error that names the tool and the parameter. A value of any type
is returned as JSON, with the same text in every process: dataclasses, pydantic models, enums, dates, sets (sorted),
arrays, tables, tensors and generators; bytes that are not UTF-8 in base64, NaN as null. An object that shows only its
address is an error.

Arguments are validated strictly against the signature. Invalid arguments, errors and timeouts are returned to the model
as errors and counted (`CallRecord.outcome`); a result that is too long is cut in the middle. Calls of one turn run
concurrently, except those to one sandbox. A backend that fails (connection, timeout, HTTP 429 and 5xx) is retried, then
the episode is repeated; see [failing tools, retries and rate limits](../guide/tool-failures.md).
Results are sanitized: control characters are removed, and special tokens of the chat template are split, so that
no tool can end its turn and start another.

A `functools.partial` is a tool if a variable of a module holds it: `my_shop:cheap` for
`cheap = functools.partial(price, table=CHEAP)`. Its name is that of the function; set `cheap.__name__ = "cheap"` if a
recipe has two of one function.

A class can have `open(episode)` and `close()`, sync or async, and `tools()` if its tools are not its public methods.
`stateless`, `replayable` and `declared` are guarantees for forks and resumed episodes (`tools/protocol.py`).

A tool that changes something outside of the episode, such as a refund, declares its effect; Whetstone asks before it
calls such a tool for real ([tools with side effects](../guide/side-effects.md)).

If an MCP server over HTTP restarts, or its session expires, the episodes that called it are repeated in a new session.
An HTTP status such as 502 is an infrastructure failure unless the server still lists its tools. A process that fails to
start twice, before it ever responded, is not started again.

`whetstone mcp calculator notes my_shop:price` serves these tools as an MCP server.

## Call tools from code

With `max_tool_calls`, the code of `python` can call the other tools of the episode (programmatic tool calling, code as
action), such as a search in a loop:

```yaml
environment:
  name: knapsack
  tools: [{name: python, max_tool_calls: 20}]
```

```py
weights = [tools.inspect(item) for item in range(1, 7)]  # positional or keyword arguments; a call returns its text
```

- **Which tools?** All tools of the episode except `python`, `shell` and `files`, as functions of the object `tools`.
- **What if a call fails?** The code gets a `ToolCallError` with the text that the model would read.
- **Are effects and budgets enforced?** Yes: a call passes the checks, retries and rate limits of a call of the model.
- **How many calls?** `max_tool_calls` per call of `python`, one at a time. `wall_seconds` excludes the time of the
  tools.
- **Is each call recorded?** Yes: name, arguments, outcome and result (`CallRecord.inner`). `Trajectory.calls` contains
  these calls, so that rewards, costs and metrics count them.
- **Can episodes be forked and replayed?** Yes: the same code makes the same calls.
- **What ends the episode?** A tool that stops it, or a backend that fails. The rest of the code does not run.

With `persistence: reset`, a call of `python` or `shell` depends on nothing but itself (`stateless`): methods that undo
calls (`rollout.context_rewrites: [rollback]`, CLEANER) and episodes that continue after recorded turns need no replay.

## Large tool catalogs (tool retrieval)

`catalog` shows a model only some of many tools; it searches the rest with `find_tools`. A generated catalog of 500
similar tools, with requests that use other words than their descriptions:

```yaml
environment:
  tools: [{name: catalog, generated: 500, expansion: clauses}]   # or file: tools.jsonl
tasks: {source: tool_requests}
reward: {name: verdict, pays: score}
policy: {tiny: {context_length: 4096}}   # a search result has five declarations of tools
rollout: {max_new_tokens: 64}
reinforcement: {steps: 100}
```

- **How are tools searched?** By words (BM25), by vectors (`embedding:`), or by both, combined by reciprocal rank.
- **How do I add example requests?** A line of the file has `"requests": ["call off the bill"]` in addition to the tool.
- **How are queries expanded?** `expansion: clauses` also searches each clause of a request that needs several tools.
  A function `module:function` returns other queries, such as those that a model writes.
- **How good is the search?** The verdict of a task with the needed tools (`private: {tools: [NAME, ...]}`) has
  `recall_at_k`, `sufficiency_at_k` and `called`, which become components of the reward `verdict`: `reward/recall_at_k`
  in the metrics. With `pays: score`, the reward is the recall: a ranking feedback for DPO or any other method.
- **What if two tools share a name?** One line names the file and the second tool; nothing starts.

## The sandbox

`python`, `shell` and `files` run in processes that are isolated from the machine. `sandbox: auto` selects the strongest
available layer; `whetstone doctor` prints it, and the remedy if a stronger one is not available:

| `sandbox:` | |
| --- | --- |
"""

TRIED = """
If control groups are writable, memory and number of processes of a session are limited in total, too. Processes that a
call leaves running are killed after its response. All resources of a session are released with it, even if the whole
program is killed. A sandbox is reused by another session only when no process and no file is left in it.

| attack | result |
| --- | --- |
| an endless loop, a sleep without end, signals blocked | `timeout` or `cpu`; the error mentions the new interpreter |
| unlimited memory | a `MemoryError` in the same interpreter; or `memory` |
| unlimited forks or descriptors | an error of the system for the code; its processes are killed |
| unlimited output | `output`; the middle is cut |
| filling the disk, a million files | the folder is full; `disk` if it has no dedicated file system |
| files of the machine, its environment, links and `..` out of the folder | not visible |
| writing to the interpreter or the system | read-only |
| loopback, the network, names, sockets of the machine | refused |
| `ptrace`, `/proc` of others, killing the supervisor or the host | refused, or not visible |
| a fault, `os._exit`, responses that are forged, endless or not JSON | `crashed`, or text of this call |
| daemons | killed with the call |
| first process of a session dead, silent or sending garbage | `crashed`; the error mentions the new session |
| the server of sessions dies | calls in flight are infrastructure failures; the next session starts another server |
| bytes that are not text, escape sequences, special tokens | shown as text |

Limits of one session (`limits:`):

| limit | default | |
| --- | --- | --- |
"""

_FORMATS = """## Tool-call formats

`chat: {format: …}`. A custom format is one class (`chat/protocol.py`). Each section ends with a call of the tool
`search` with the argument `query`, as the format writes it. [Tool-call formats](tool-call-formats.md) has the
measurements of each format.

"""
_TOOL = ToolSpec("search", "", {"type": "object", "properties": {"query": {"type": "string"}}})
_CALL = ToolCall("search", '{"query": "Oslo"}')
"""Call that each tool-call format writes on the page."""


def tools_page() -> str:
    """Return the whole page."""
    lines = [TOP]
    layers = _attribute_docs(Isolation)
    lines += [f"| `{layer}` | {layers[layer.name]} |\n" for layer in Isolation]
    lines.append(TRIED)
    limits = _attribute_docs(Limits)
    for name, default in ((field.name, field.default) for field in dataclasses.fields(Limits)):
        lines.append(f"| `{name}` | `{default}` | {limits[name]} |\n")
    lines.append("\nOutcome of a call:\n\n| outcome | |\n| --- | --- |\n")
    endings = _attribute_docs(Ending)
    lines += [f"| `{ending}` | {endings.get(ending.name, 'The call completed.')} |\n" for ending in Ending]
    lines.append("\n## Built-in tools\n\n")
    tools: dict[str, Any] = TOOLS
    for name, part in sorted(tools.items()):
        lines.append(_class(name, part) if inspect.isclass(part) else _function(name, part))
    lines.append(_FORMATS)
    lines += [_format(name, make) for name, make in sorted(FORMATS.items())]
    return "".join(lines).rstrip() + "\n"


def _format(name: str, make: Callable[[], ToolCallFormat]) -> str:
    """Return the section of a tool-call format: its description and a call, as the format writes it.

    A format of a family is a class with options, so its object has the description, not the function that makes it.
    """
    form = make()
    text = inspect.getdoc(type(form)) or ""
    source = re.search(r"\nSources?:.*", text, re.DOTALL)
    module = "" if isinstance(make, partial) else _first_paragraphs(inspect.getdoc(inspect.getmodule(make)) or "")
    written = form.write(Message("assistant", (), (_CALL,)), (_TOOL,)).strip("\n")
    parts = [_body(text), module, f"````text\n{written}\n````", source[0].strip() if source else ""]
    return "\n\n".join([f"### `{name}`", *filter(None, parts)]) + "\n\n"


def _function(name: str, function: Callable[..., Any]) -> str:
    return f"### `{name}`\n\n{_body(inspect.getdoc(function) or '')}\n\n"


def _class(name: str, part: type) -> str:
    text = inspect.getdoc(part) or ""
    lines = [f"### `{name}`\n\n", _body(text), "\n\n"]
    descriptions = {p.arg_name: " ".join((p.description or "").split()) for p in parse(text).params}
    options = {k: p for k, p in inspect.signature(part).parameters.items() if p.kind is p.KEYWORD_ONLY}
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        for key, p in options.items():
            default = "needed" if p.default is p.empty else f"`{list(p.default) if p.default == () else p.default}`"
            lines.append(f"| `{key}` | {default} | {descriptions.get(key, '').replace('|', chr(92) + '|')} |\n")
        lines.append("\n")
    for method, function in vars(part).items():
        if (
            inspect.isfunction(function)
            and not method.startswith("_")
            and method not in LIFETIME | {"charge", "permits"}
        ):
            parameters = ", ".join(
                str(p).partition(":")[0] for p in list(inspect.signature(function).parameters.values())[1:]
            )
            first = (inspect.getdoc(function) or "").partition("\n")[0]
            lines.append(f"- `{method.removesuffix('_passage')}({parameters})`: {first}\n")
    return "".join(lines).rstrip() + "\n\n"


def _body(text: str) -> str:
    return re.split(r"\n(?:Args|Raises|Sources?):", text)[0].rstrip()


def _first_paragraphs(text: str) -> str:
    """Return the text of a module docstring without its first paragraph."""
    return "\n\n".join(text.split("\n\n")[1:])


def _attribute_docs(part: type) -> dict[str, str]:
    """Return the attribute doc of each field."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for field, below in pairwise(node.body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", None)
            if isinstance(target, ast.Name):
                docs[target.id] = " ".join(str(below.value.value).split())
    return docs
