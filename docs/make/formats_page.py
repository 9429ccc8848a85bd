"""Page of task file formats: columns, reward and environment of each."""

from __future__ import annotations

from whetstone.tasks.formats import FORMATS

_HEAD = """# Files of tasks

    tasks: {source: file, path: HumanEval.jsonl, format: humaneval}
    tasks: {source: file, path: questions.csv, columns: {prompt: question, answer: solution, tags: [topic]}}

A file is JSON lines, one JSON list (`.json`) or a table (`.csv`). A format defines the columns of a published
benchmark; `columns` names those of any other file: `prompt`, and optionally `answer`, `id`, `tags` and `private`
(lists). Other columns are not part of the task, and the model sees only the prompt. `held_out: FILE` names a file of
held-out tasks; otherwise a fraction is held out (`held_out_fraction`). Columns in parentheses are optional.

| format | a row | columns | reward | environment |
| --- | --- | --- | --- | --- |
"""


def formats_page() -> str:
    """Return the page, with one row per format."""
    lines = [
        f"| `{name}` | {one.about} | {one.columns} | {_code(one.reward)} | {_code(one.environment)} |\n"
        for name, one in sorted(FORMATS.items())
    ]
    return _HEAD + "".join(lines)


def _code(name: str) -> str:
    return name if " " in name else f"`{name}`"
