# ruff: noqa: E501 - tables are lines
"""Page of tool-call formats: parsing, rendering and streaming of each, as measured by the benchmarks."""

from __future__ import annotations

from collections import Counter

from measured import stored

from whetstone.chat import FORMATS

_HEAD = """# Tool-call formats

A tool-call format is the syntax in which a model writes calls, and its parser (vLLM: `--tool-call-parser`). `chat.format: auto`
selects the format whose calls the chat template of the model writes; `chat.format: NAME` selects one.

- **Well-formed text is parsed exactly**, whatever the arguments contain: `arguments` is the text of the model. Text between
  tags is typed by the schema of the parameter: it is the string if string is among the types (also through `anyOf`, `oneOf`,
  `allOf`, `$ref`, a list of types, `enum` or `const`) and the text is not JSON of another declared type.
- **Malformed text is returned to the model as an error** (`malformed`): JSON that is cut or not strict (`NaN`, `1e999`, a
  repeated key), a call without a name, a block that is not closed. It never becomes an answer, and a valid call next to it is
  still executed.
- Calls quoted in a thought are not executed. If the thought is not closed, a turn with calls is malformed.

| column | meaning |
| --- | --- |
| templates | chat templates of real models whose calls this format parses |
| parsed | turns that equal the rendered ones: 49 kinds of values, 10 kinds of turns |
| written | turns that are written as tokens and parsed back |
| streamed | turns whose streamed text is the start of the content and contains no marker |
| cut | turns that are cut within a call and reported as malformed |
| cases | [cases of vLLM's and SGLang's parser tests](../../benchmarks/results/tool_call_cases.md) that pass |

"""
_TAIL = """
Measured by `python -m benchmarks parsed_turns` ([turns that differ](../../benchmarks/results/parsed_turns.md)) and
`python -m benchmarks tool_call_cases`.
"""


def tool_call_formats_page() -> str:
    """Return the page, with one row per format."""
    templates: dict[str, Counter[str]] = {}
    for one in stored("parsed_turns").get("measured", {}).get("templates", {}).values():
        counts = templates.setdefault(one["format"], Counter())
        counts["templates"] += 1
        for key in ("parsed", "rendered", "written", "streamed", "streams", "reported", "cut"):
            counts[key] += one[key]
    families = stored("tool_call_cases").get("measured", {}).get("families", {})
    lines = ["| format | templates | parsed | written | streamed | cut | cases |\n", "| --- |" + " ---: |" * 6 + "\n"]
    for name in sorted(FORMATS):
        counts, cases = templates.get(name, Counter()), families.get(name, {})
        pairs = (("parsed", "rendered"), ("written", "rendered"), ("streamed", "streams"), ("reported", "cut"))
        cells = [f"{counts[one]}/{counts[of]}" if counts[of] else "" for one, of in pairs]
        passed = f"{cases['passed']}/{cases['cases']}" if cases else ""
        lines.append(f"| `{name}` | {counts['templates'] or ''} | {' | '.join(cells)} | {passed} |\n")
    return _HEAD + "".join(lines) + _TAIL
