"""Import exported conversations of six formats: the fraction that is read exactly, and reasons for damaged ones.

    python -m benchmarks trace_formats        writes results/raw/trace_formats.json and .md

Experts play 300 episodes of four built-in environments. `trace_writers.py` writes 50 of them in the shape of each
tool: spans, observations and runs with one record per model call, or one conversation per row. An import is exact if
messages, calls, results and tools are those of the episode. In a second export of the same conversations, each sixth is
intact and each other one has a defect, for which the import has to refuse it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from circumstances import circumstances
from trace_writers import SHAPES, Example
from whetstone.assembly import assemble
from whetstone.data import read_conversation
from whetstone.data.row_readers import Row
from whetstone.data.traces.import_conversations import ConversationImporter, ImportOptions, conversation_row
from whetstone.data.traces.records import RefusalReason
from whetstone.data.traces.trace_formats import find_format
from whetstone.recipe import load_recipe
from whetstone.rollout import GroupPlan

RESULTS = Path(__file__).parents[1] / "results"
RECIPES = ("support", "text-to-sql", "multi-hop-search", "demo")
PER_SHAPE = 50
TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 8192}"
)
SECRET = "AKIA" + "IOSFODNN7EXAMPLE"


def play_examples(count: int) -> list[Example]:
    """Return episodes of experts with different messages, the environments in turn."""
    examples: dict[str, Example] = {}
    played = {name: assemble(load_recipe(name, [TINY, "ablations=null", "chat.format=hermes"])) for name in RECIPES}
    for number in range(4 * count):
        name = RECIPES[number % len(RECIPES)]
        components = played[name]
        plan = GroupPlan(components.source.task(number // len(RECIPES)), seed=number)
        episode = asyncio.run(components.build_collector(components.expert_actor()).sample(plan))
        messages = [message.to_openai() for message in episode.messages]
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        tools = [spec.to_openai() for spec in components.offered_tools]
        if episode.turns and messages[0]["role"] in ("system", "user"):
            examples.setdefault(json.dumps(messages), Example(f"{name}-{number}", messages, tools))
        if len(examples) == count:
            return list(examples.values())
    raise RuntimeError(f"only {len(examples)} different episodes in {4 * count}")


def expected_row(example: Example) -> str:
    """Return the row of an example as the reader of data files understands it."""
    columns = {"messages": list(example.messages), "tools": list(example.tools)}
    return json.dumps(conversation_row(read_conversation(Row("example", columns))), sort_keys=True)


def import_files(paths: Sequence[Path]) -> tuple[list[str], ConversationImporter]:
    """Return the rows of an import with detected formats, and the importer with its report."""
    importer = ConversationImporter(ImportOptions())
    outcomes = list(importer.read([(path, find_format(path)) for path in paths]))
    return [json.dumps(json.loads(each.line), sort_keys=True) for each in outcomes if each.line is not None], importer


def write_examples(shape: str, examples: Sequence[Example], folder: Path) -> list[Path]:
    """Write examples with the writers of a format, which get equal parts of them."""
    writers = SHAPES[shape]
    for place, (name, write) in enumerate(writers):
        write(folder / name, examples[place :: len(writers)])
    return [folder / name for name, _ in writers]


def _first_call(example: Example) -> int:
    return next(place for place, message in enumerate(example.messages) if message.get("tool_calls"))


def _without_result(example: Example) -> Example:
    place = _first_call(example) + 1
    return replace(example, messages=[*example.messages[:place], *example.messages[place + 1 :]])


def _with_other_tools(example: Example) -> Example:
    other = {"name": "other", "description": "", "parameters": {"type": "object", "properties": {}}}
    return replace(example, tools=[{"type": "function", "function": other}])


def _without_tools(example: Example) -> Example:
    return replace(example, tools=())


def _with_text(example: Example, text: str) -> Example:
    place = _first_call(example) + 1
    message = {**example.messages[place], "content": f"{example.messages[place]['content']}{text}"}
    return replace(example, messages=[*example.messages[:place], message, *example.messages[place + 1 :]])


def _with_secret(example: Example) -> Example:
    return _with_text(example, f" {SECRET}")


def _cut_off(example: Example) -> Example:
    return _with_text(example, " … [truncated]")


DEFECTS: Mapping[RefusalReason, Callable[[Example], Example]] = {
    RefusalReason.MISSING_RESULT: _without_result,
    RefusalReason.UNDECLARED: _with_other_tools,
    RefusalReason.MISSING_SCHEMA: _without_tools,
    RefusalReason.SECRET: _with_secret,
    RefusalReason.TRUNCATED: _cut_off,
}


def measure_exact(shape: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the number of conversations of a format that are read exactly and that can be trained."""
    with tempfile.TemporaryDirectory() as folder:
        rows, importer = import_files(write_examples(shape, examples, Path(folder)))
    exact = Counter(rows) & Counter(map(expected_row, examples))
    report = importer.report
    return {
        "environments": dict(Counter(each.id.rpartition("-")[0] for each in examples)),
        "conversations": len(examples),
        "records": report.records,
        "trainable": report.trainable,
        "exact": exact.total(),
        "refused": {str(reason): count for reason, count in report.refused.items()},
    }


def measure_defects(shape: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the number of intact conversations that are read, and of defects that are refused for their reason."""
    with_calls = [each for each in examples if len(each.messages) > _first_call(each) + 2]
    kinds = [None, *DEFECTS]
    defects = [kinds[place % len(kinds)] for place in range(len(with_calls))]
    damaged = [each if kind is None else DEFECTS[kind](each) for each, kind in zip(with_calls, defects, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        rows, importer = import_files(write_examples(shape, damaged, Path(folder)))
    counts = Counter(kind for kind in defects if kind is not None)
    refused = importer.report.refused
    intact = [each for each, kind in zip(with_calls, defects, strict=True) if kind is None]
    return {
        "intact": len(intact),
        "read": (Counter(rows) & Counter(map(expected_row, intact))).total(),
        "trainable": importer.report.trainable,
        "defects": {str(kind): [min(refused[kind], count), count] for kind, count in counts.items()},
        "other": {str(kind): count - counts[kind] for kind, count in refused.items() if count > counts[kind]},
    }


def write_page(measured: Mapping[str, Any]) -> str:
    """Return the page of the results."""
    lines = ["# Exported conversations", "", (__doc__ or "").split("\n\n")[2].replace("\n", " ").strip(), ""]
    lines += ["| format | conversations | records | trainable | read exactly |", "| --- | --: | --: | --: | --: |"]
    for shape, each in measured["exact"].items():
        counts = f"{each['conversations']} | {each['records']} | {each['trainable']} | {each['exact']}"
        lines.append(f"| {shape} | {counts} |")
    environments: Counter[str] = Counter()
    for each in measured["exact"].values():
        environments.update(each["environments"])
    total = [sum(each[key] for each in measured["exact"].values()) for key in ("conversations", "trainable", "exact")]
    lines += ["", f"{total[2]} of {total[0]} are read exactly, {total[1]} can be trained.", ""]
    lines += ["Episodes: " + ", ".join(f"{count} of `{name}`" for name, count in environments.items()) + "."]
    lines += ["", "## Defects", ""]
    kinds = list(map(str, DEFECTS))
    lines += ["| format | intact, read | " + " | ".join(kinds) + " | refused for another reason |"]
    lines += ["| --- | --: |" + " --: |" * (len(kinds) + 1)]
    for shape, each in measured["defects"].items():
        counts = " | ".join(f"{each['defects'][kind][0]}/{each['defects'][kind][1]}" for kind in kinds)
        other = ", ".join(f"{kind} ({count})" for kind, count in each["other"].items()) or "0"
        lines.append(f"| {shape} | {each['read']}/{each['intact']} | {counts} | {other} |")
    return "\n".join([*lines, ""])


def main() -> None:
    began = time.perf_counter()
    examples = play_examples(PER_SHAPE * len(SHAPES))
    parts = {shape: examples[place * PER_SHAPE : (place + 1) * PER_SHAPE] for place, shape in enumerate(SHAPES)}
    measured = {
        "exact": {shape: measure_exact(shape, part) for shape, part in parts.items()},
        "defects": {shape: measure_defects(shape, part) for shape, part in parts.items()},
    }
    page = write_page(measured)
    print(page)
    stored = {"name": "trace_formats", **circumstances(began), "measured": measured}
    (RESULTS / "raw" / "trace_formats.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "trace_formats.md").write_text(page)


if __name__ == "__main__":
    main()
