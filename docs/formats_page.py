"""The page of file formats: the columns of each, and what goes with it."""

from __future__ import annotations

from whetstone.tasks.formats import FORMATS

_HEAD = """# Files of tasks

    tasks: {source: file, path: HumanEval.jsonl, format: humaneval}
    tasks: {source: file, path: questions.csv, columns: {prompt: question, answer: solution, tags: [topic]}}

JSON lines, one JSON list (`.json`) or a table (`.csv`). A format knows the columns of a benchmark as it is published;
`columns` names those of any other file: `prompt`, and what there is of `answer`, `id`, `tags` and `private` (lists).
What is not named stays out of the task, and nothing but the prompt reaches the model. `held_out: FILE` holds another
file out; else a share is (`held_out_fraction`). Columns in parentheses may be missing.

| format | a row | columns | reward | environment |
| --- | --- | --- | --- | --- |
"""


def formats_page() -> str:
    """A line for each format."""
    lines = [
        f"| `{name}` | {one.about} | {one.columns} | {_code(one.reward)} | {_code(one.environment)} |\n"
        for name, one in sorted(FORMATS.items())
    ]
    return _HEAD + "".join(lines)


def _code(name: str) -> str:
    return name if " " in name else f"`{name}`"
