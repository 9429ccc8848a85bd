"""How is a trajectory shown? Its conversation, turn by turn, with every token and what is known of it.

Easy to get wrong: what models and tools wrote is foreign. It leaves here as plain text, without control characters, cut
where a tool wrote megabytes; an image is one only if it is in the trajectory, and nothing is fetched for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any

from tokenizers import Tokenizer

from whetstone.json_lines import UNREADABLE
from whetstone.tools.plain_text import plain
from whetstone.trajectory import TRAINABLE, Author
from whetstone.trajectory_json import read_provenance

MOST_CHARACTERS = 20_000
"""Of a message, unless all of it is asked for."""
_MOST_CONTEXT = 4_000
"""Tokens of a turn's context; of a longer one the end is shown."""
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_TRAINED = {str(author) for author in TRAINABLE}


def conversation(row: Mapping[str, Any], tokenizer: Tokenizer | None, *, whole: bool = False) -> dict[str, Any]:
    """A trajectory's line as the page shows it: `opening`, `turns` with messages, tokens, calls and credit, and what
    judges said.

    Args:
        tokenizer: None: tokens are shown by their ids.
        whole: All of each message, however long.
    """
    most = 2**40 if whole else MOST_CHARACTERS
    messages = [_message(message, most) for message in row.get("messages") or ()]
    place = int(row.get("opening") or 0)
    score = row.get("score") or {}
    turns = []
    for number, turn in enumerate(row.get("turns") or ()):
        end = place + 1 + int(turn.get("observation") or 0)
        turns.append(
            {
                "message": messages[place] if place < len(messages) else None,
                "observation": messages[place + 1 : end],
                "reward": turn.get("reward"),
                "credit": _nth(score.get("turns"), number),
                "signals": {name: _nth(values, number) for name, values in (score.get("signals") or {}).items()},
                "calls": [[plain(str(value)) if isinstance(value, str) else value for value in call]
                          for call in turn.get("calls") or ()],
                "seconds": turn.get("seconds") or [0.0, 0.0, 0.0],
                "rewritten": bool(turn.get("opens_segment")) and number > 0,
                "aside": bool(turn.get("aside")),
                "agent": plain(str(turn.get("agent") or "")),
                "context": _tokens(turn.get("context") or {}, tokenizer, most=_MOST_CONTEXT),
                "action": _tokens(turn.get("action") or {}, tokenizer),
            }
        )  # fmt: skip
        place = end
    return {
        "opening": messages[: int(row.get("opening") or 0)],
        "turns": turns,
        "judgements": [_judgement(each) for each in score.get("judgements") or ()],
        "removal": row.get("removal"),
        "final": {plain(str(name)): plain(str(value))[:2000] for name, value in (row.get("final") or {}).items()},
        "declared": {plain(str(name)): plain(str(value)) for name, value in (row.get("declared") or {}).items()},
        "greedy": bool(row.get("greedy")),
        "provenance": _provenance(row),
        "has_tokenizer": tokenizer is not None,
    }


def _provenance(row: Mapping[str, Any]) -> str:
    try:
        return str(read_provenance(row))
    except UNREADABLE:
        return ""


def pieces(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """The text of each token by itself; half a letter shows as `�`.

    >>> pieces([5], None)
    ['#5 ']
    """
    if tokenizer is None:
        return [f"#{id} " for id in ids]
    found: dict[int, str] = {}
    for id in set(ids):
        token = tokenizer.id_to_token(id) if id >= 0 else None
        if token is None:
            found[id] = f"#{id} "
        else:
            said = tokenizer.decode([id], skip_special_tokens=False)
            found[id] = plain(token.replace("▁", " ") if "▁" in token else said or token)
    return [found[id] for id in ids]


def _tokens(row: Mapping[str, Any], tokenizer: Tokenizer | None, *, most: int | None = None) -> dict[str, Any]:
    """Columns as the page colours them: texts, trained, and logprobs, entropies, versions where they are known."""
    ids = row.get("ids") or []
    first = max(0, len(ids) - most) if most is not None else 0
    authors = list(islice(_authors(row.get("authors") or ()), len(ids)))[first:]  # a run may claim any length
    logprobs = row.get("logprobs")
    told: dict[str, Any] = {"texts": pieces(ids[first:], tokenizer), "left_out": first}
    for name in ("logprobs", "entropies", "versions"):
        if row.get(name) is not None:
            told[name] = [value if isinstance(value, int | float) else None for value in row[name]][first:]
    drawn = logprobs[first:] if logprobs is not None else [None] * len(authors)
    told["trained"] = [
        author in _TRAINED or (author == Author.INSERTED and logprob is not None)
        for author, logprob in zip(authors, drawn, strict=False)
    ]
    told["authors"] = authors
    return told


def _authors(runs: Sequence[Sequence[Any]]) -> Iterator[str]:
    for author, count in runs:
        yield from repeat(str(author), int(count))


def _message(message: Mapping[str, Any], most: int) -> dict[str, Any]:
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    shown = [_part(part, most) for part in parts]
    calls = message.get("tool_calls") or ()
    functions = [call.get("function") or {} for call in calls]
    return {
        "role": plain(str(message.get("role"))),
        "parts": [part for part in shown if part.get("text") or part.get("image")],
        "calls": [
            {"name": plain(str(each.get("name"))), **_cut(str(each.get("arguments") or ""), most)} for each in functions
        ],
        "malformed": [plain(str(wrong))[:most] for wrong in message.get("malformed") or ()],
    }


def _part(part: Mapping[str, Any], most: int) -> dict[str, Any]:
    if part.get("type") == "image_url":
        url = str((part.get("image_url") or {}).get("url"))
        return {"image": url} if _IMAGE.fullmatch(url) else {"text": f"[image, not in the run: {plain(url[:200])}]"}
    return _cut(str(part.get("text") or ""), most)


def _cut(text: str, most: int) -> dict[str, Any]:
    """Its beginning and end where it is too long, and how much is between."""
    if len(text) <= most:
        return {"text": plain(text)}
    head, tail = text[: most * 3 // 4], text[-most // 4 :]
    return {"text": plain(head), "tail": plain(tail), "left_out": len(text) - len(head) - len(tail)}


def _judgement(row: Mapping[str, Any]) -> dict[str, Any]:
    said = (row.get("said") or {}).items()
    return {
        "question": plain(str(row.get("question"))),
        "said": {plain(str(k)): v if isinstance(v, bool | int | float) else plain(str(v)) for k, v in said},
    }


def _nth(values: Any, number: int) -> Any:
    return values[number] if isinstance(values, list) and number < len(values) else None
