"""Cases of `benchmarks/exact/tool_call_cases.json`: their form, the comparison of results, and the formats on them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tool_call_cases
from tool_call_cases import Outcome, find_differences

CASES = tool_call_cases.load_cases()
STORED = json.loads((tool_call_cases.RESULTS / "raw" / "tool_call_cases.json").read_text(encoding="utf-8"))["measured"]
CALL = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
CALLS = {"type": "array", "items": {**CALL, "properties": {**CALL["properties"], "name": {"minLength": 1}}}}  # type: ignore[dict-item]
CASE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": r"^(vllm|sglang)/[a-z0-9_]+/[a-z0-9-]+$"},
        "family": {"type": "string"},
        "source": {
            "type": "object",
            "properties": {
                "project": {"enum": ["vllm", "sglang"]},
                "file": {"type": "string", "pattern": r"^tests?/.+\.py$"},
                "test": {"type": "string", "minLength": 1},
                "rule": {"type": "string", "minLength": 1},
            },
            "required": ["project", "file"],
            "oneOf": [{"required": ["test"]}, {"required": ["rule"]}],
            "additionalProperties": False,
        },
        "text": {"type": "string", "minLength": 1},
        "thought_end": {"type": "string", "minLength": 1},
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"const": "function"},
                    "function": {"type": "object", "required": ["name", "parameters"]},
                },
                "required": ["type", "function"],
                "additionalProperties": False,
            },
        },
        "expected": {
            "type": "object",
            "properties": {
                "malformed": {"const": True},
                "or_malformed": {"const": True},
                "content": {"type": "string"},
                "content_also": {"type": "array", "items": {"type": "string"}},
                "calls": CALLS,
                "calls_also": {"type": "array", "items": CALLS},
            },
            "required": ["content", "calls"],
            "not": {"required": ["malformed", "or_malformed"]},
            "additionalProperties": False,
        },
        "source_expected": {"type": "object"},
        "note": {"type": "string", "pattern": r"\.$"},
    },
    "required": ["id", "family", "source", "text", "tools", "expected"],
    "dependentRequired": {"source_expected": ["note"], "note": ["source_expected"]},
    "additionalProperties": False,
}


def test_every_case_is_well_formed() -> None:
    validator = Draft202012Validator(CASE)
    problems = {case["id"]: error.message for case in CASES for error in validator.iter_errors(case)}
    assert not problems
    assert all(case["thought_end"] in case["text"] for case in CASES if "thought_end" in case)
    for case in CASES:
        for tool in case["tools"]:
            Draft202012Validator.check_schema(
                json.loads(json.dumps(tool["function"]["parameters"]), object_hook=_without_unknown_types)
            )


def _without_unknown_types(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop names of types that some servers accept and JSON Schema does not have."""
    return {key: value for key, value in schema.items() if (key, value) not in _OTHER_TYPES}


_OTHER_TYPES = [("type", "float"), ("type", "int"), ("type", "list")]


def test_ids_are_unique_and_families_have_ten_cases() -> None:
    assert max(Counter(case["id"] for case in CASES).values()) == 1
    assert len(CASES) >= 600
    assert min(Counter(case["family"] for case in CASES).values()) >= 10
    assert len({case["family"] for case in CASES}) >= 45


def test_no_family_has_the_same_text_and_tools_with_two_expectations() -> None:
    expectations: dict[str, list[Any]] = {}
    for case in CASES:
        key = json.dumps([case["family"], case["text"], case["tools"]])
        expectations.setdefault(key, []).append(case["expected"])
    assert not [key for key, known in expectations.items() if any(one != known[0] for one in known)]


def test_the_failing_cases_are_the_stored_ones() -> None:
    measured, failing = tool_call_cases.measure(CASES)
    assert measured["without_format"] == STORED["without_format"]
    assert set(failing) == set(STORED["failing"])


@pytest.mark.parametrize(
    ("expected", "outcome", "agrees"),
    [
        ({"content": "a", "calls": []}, Outcome(" a\n", []), True),
        ({"content": "a", "calls": []}, Outcome("b", []), False),
        ({"content": "a", "content_also": ["a b"], "calls": []}, Outcome("a\n\nb", []), True),
        ({"content": "", "calls": [["f", {"x": 1}]]}, Outcome("", [["f", {"x": 1.0}]]), True),
        ({"content": "", "calls": [["f", {"x": 1}]]}, Outcome("", [["f", {"x": True}]]), False),
        ({"content": "", "calls": [["f", {"x": 1}]]}, Outcome("", [["f", {"x": "1"}]]), False),
        ({"content": "", "calls": [["f", {}]]}, Outcome("", [["f", {}], ["f", {}]]), False),
        ({"content": "", "calls": [["f", {}]]}, Outcome("", [], ["unclosed"]), False),
        ({"content": "", "calls": [["f", {}]], "or_malformed": True}, Outcome("", [], ["unclosed"]), True),
        ({"content": "", "calls": [["f", {}]], "or_malformed": True}, Outcome("", [["g", {}]], ["unclosed"]), False),
        ({"content": "", "calls": [], "malformed": True}, Outcome("", []), False),
        ({"content": "", "calls": [], "malformed": True}, Outcome("", [["f", {}]], ["unclosed"]), False),
        ({"content": "", "calls": [], "calls_also": [[["f", {}]]], "malformed": True},
         Outcome("", [["f", {}]], ["unclosed"]), True),
        ({"content": "a", "calls": [], "malformed": True}, Outcome("a <tool_call>", [], ["unclosed"]), True),
        ({"content": "a", "calls": [], "malformed": True}, Outcome("", [], ["unclosed"]), False),
        ({"content": "", "calls": []}, Outcome("", [], error="ValueError"), False),
    ],
)  # fmt: skip
def test_results_are_compared_by_the_rules_of_the_file(expected: Any, outcome: Outcome, agrees: bool) -> None:
    named = {
        "calls": _named(expected["calls"]),
        **({"calls_also": [_named(calls) for calls in expected["calls_also"]]} if "calls_also" in expected else {}),
    }
    case = {"expected": {**expected, **named}}
    result = Outcome(outcome.content, _named(outcome.calls), outcome.malformed, outcome.error)
    assert (find_differences(case, result) == []) == agrees


def _named(calls: Any) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', '{"a": ', "[" * 100_000])
def test_arguments_that_are_not_strict_json_stay_text(text: str) -> None:
    assert tool_call_cases.parse_arguments(text) == text


def test_a_result_of_vllm_is_classified_by_how_it_answers_malformed_text() -> None:
    case = {"text": 'Hm. <t>{"a"', "expected": {"malformed": True, "content": "Hm.", "calls": []}}
    classify = tool_call_cases.classify_vllm
    assert classify(case, Outcome('Hm. <t>{"a"', [])) == "as text"
    assert classify(case, Outcome("Hm.", [])) == "dropped"
    assert classify(case, Outcome("Hm.", [{"name": "f", "arguments": {}}])) == "repaired"
    assert classify(case, Outcome("", [], error="ValueError")) == "raises"
