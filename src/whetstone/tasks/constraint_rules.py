"""Constraints on a text as rules that code checks: content, format, language and length; and conflicts among them.

A constraint is a mapping with a `kind`: `include`, `exclude`, `starts_with`, `ends_with` (`word`); `bullets`,
`sentences` (`count`); `words` (`low`, `high`); `case` (`value`: `lower` or `upper`).

Source: A Multi-Dimensional Constraint Framework (Ye et al. 2025), arXiv:2505.07591: categories, four levels and
    detection of conflicts; IFEval (Zhou et al. 2023), arXiv:2311.07911: verifiable instructions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

CATEGORIES = {
    "content": ("include", "exclude"),
    "format": ("bullets", "starts_with", "ends_with"),
    "language": ("case",),
    "length": ("words", "sentences"),
}
"""Kinds of constraints by category."""
_FIELDS = {
    **dict.fromkeys(("include", "exclude", "starts_with", "ends_with"), ("word",)),
    **dict.fromkeys(("bullets", "sentences"), ("count",)),
    "words": ("low", "high"),
    "case": ("value",),
}
_SENTENCES = {
    "include": "It contains the word “{word}”.",
    "exclude": "It does not contain the word “{word}”.",
    "starts_with": "Its first word is “{word}”.",
    "ends_with": "Its last word is “{word}”.",
    "bullets": "It has exactly {count} lines that start with “- ”.",
    "sentences": "It has exactly {count} sentences.",
    "words": "It has {low} to {high} words.",
    "case": "All letters are {value} case.",
}
Constraint = Mapping[str, Any]


def check_constraint(constraint: Constraint, text: str) -> bool:
    """Return whether a text satisfies a constraint. A text without words satisfies none.

    Words are sequences of letters, compared without case; sentences are separated by `.`, `!` and `?`.

    Raises:
        ValueError: If there is no such kind, or a field is missing.
    """
    kind = _read_kind(constraint)
    words = _split_words(text)
    if not words:
        return False
    if kind in ("include", "exclude"):
        return (str(constraint["word"]).lower() in words) == (kind == "include")
    if kind in ("starts_with", "ends_with"):
        return words[0 if kind == "starts_with" else -1] == str(constraint["word"]).lower()
    if kind == "bullets":
        bullets = sum(line.startswith("- ") and bool(_split_words(line)) for line in text.splitlines())
        return bool(bullets == constraint["count"])
    if kind == "sentences":
        return bool(sum(bool(_split_words(part)) for part in re.split(r"[.!?]+", text)) == constraint["count"])
    if kind == "words":
        return bool(constraint["low"] <= len(words) <= constraint["high"])
    return text == (text.lower() if constraint["value"] == "lower" else text.upper())


def describe_constraint(constraint: Constraint) -> str:
    """Return a constraint as a sentence of the prompt."""
    return _SENTENCES[_read_kind(constraint)].format(**constraint)


def find_conflict(constraints: Sequence[Constraint]) -> str | None:
    """Return why no text satisfies all constraints; None if there is one, which `write_example` returns.

    Raises:
        ValueError: If a constraint is invalid.
    """
    by_kind: dict[str, list[Constraint]] = {}
    for each in constraints:
        by_kind.setdefault(_read_kind(each), []).append(each)
    for kind in ("starts_with", "ends_with", "bullets", "sentences", "case"):
        values = {str(each[_FIELDS[kind][0]]).lower() for each in by_kind.get(kind, ())}
        if len(values) > 1:
            return f"{kind} requires {' and '.join(sorted(values))}"
    required = _list_required(by_kind)
    for each in by_kind.get("exclude", ()):
        if each["word"].lower() in required:
            return f"the word {each['word']} is required and excluded"
    low = max([each["low"] for each in by_kind.get("words", ())], default=0)
    high = min([each["high"] for each in by_kind.get("words", ())], default=10**6)
    least = _count_least(by_kind, required)
    if max(low, least) > high:
        return f"at most {high} words, and at least {max(low, least)} are required"
    if any(each["count"] < 1 for kind in ("bullets", "sentences") for each in by_kind.get(kind, ())):
        return "a count is below 1"
    return None


def write_example(constraints: Sequence[Constraint]) -> str:
    """Return a text that satisfies all constraints.

    Raises:
        ValueError: If they contradict each other.
    """
    conflict = find_conflict(constraints)
    if conflict is not None:
        raise ValueError(f"no text satisfies all constraints: {conflict}")
    by_kind: dict[str, list[Constraint]] = {}
    for each in constraints:
        by_kind.setdefault(_read_kind(each), []).append(each)
    required = _list_required(by_kind)
    count = max([_count_least(by_kind, required), *(each["low"] for each in by_kind.get("words", ()))])
    first, last = (by_kind.get(kind, [{"word": ""}])[0]["word"].lower() for kind in ("starts_with", "ends_with"))
    excluded = {each["word"].lower() for each in by_kind.get("exclude", ())}
    filler = next(word for length in range(1, 99) if (word := "a" * length) not in excluded)
    ends = [word for word in (first, last) if word]
    if first and first == last and count == 1:
        ends = [first]
    middle = [word for word in required if word not in ends]
    middle += [filler] * (count - len(middle) - len(ends))
    words = [*([first] if first else []), *middle, *([last] if last and len(ends) > bool(first) else [])]
    sentences = by_kind.get("sentences", [{"count": 1}])[0]["count"]
    marked = [f"{word}." if k < sentences - 1 or k == len(words) - 1 else word for k, word in enumerate(words)]
    bullets = by_kind.get("bullets", [{"count": 0}])[0]["count"]
    lines = [*([word] for word in marked[: bullets - 1]), marked[bullets - 1 :]] if bullets else [marked]
    text = "\n".join(("- " if bullets else "") + " ".join(line) for line in lines)
    return text.upper() if any(each["value"] == "upper" for each in by_kind.get("case", ())) else text


def _list_required(by_kind: Mapping[str, Sequence[Constraint]]) -> list[str]:
    kinds = ("starts_with", "include", "ends_with")
    return list(dict.fromkeys(each["word"].lower() for kind in kinds for each in by_kind.get(kind, ())))


def _count_least(by_kind: Mapping[str, Sequence[Constraint]], required: Sequence[str]) -> int:
    """Return the least number of words of a text that satisfies all constraints but `words`."""
    least = [1, *(each["count"] for kind in ("bullets", "sentences") for each in by_kind.get(kind, ()))]
    first, last = (by_kind.get(kind, [{"word": ""}])[0]["word"].lower() for kind in ("starts_with", "ends_with"))
    return max(*map(int, least), len(required) + (first == last != "" and len(required) > 1))


def _split_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


def _read_kind(constraint: Constraint) -> str:
    kind = str(constraint.get("kind"))
    if kind not in _FIELDS:
        raise ValueError(f"no constraint {kind!r}; the kinds are {', '.join(_FIELDS)}")
    for name in _FIELDS[kind]:
        if name not in constraint:
            raise ValueError(f"the constraint {kind} has no {name}")
    return kind
