"""Trajectory view: the conversation by turns, with every token and its statistics.

Note:
    Text of models and tools is untrusted. It is returned as plain text without control characters, and long text is
    cut. An image is shown only if the trajectory contains it; nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any

from tokenizers import Tokenizer

from whetstone.json_lines import UNREADABLE
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import TRAINABLE, Author
from whetstone.trajectory_json import read_provenance

MAX_CHARACTERS = 20_000
"""Maximum characters of a message, unless the whole message is requested."""
_MAX_CONTEXT = 4_000
"""Maximum tokens of a turn's context; of a longer one the end is shown."""
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_TRAINED = {str(author) for author in TRAINABLE}


def convert_trajectory(
    row: Mapping[str, Any], tokenizer: Tokenizer | None, *, is_uncut: bool = False
) -> dict[str, Any]:
    """Convert the line of a trajectory into the JSON of the page.

    It has `opening`, `turns` with messages, tokens, calls and credit, and judgements.

    Args:
        tokenizer: None: tokens are shown by their ids.
        is_uncut: Whether messages are not cut.
    """
    max_characters = 2**40 if is_uncut else MAX_CHARACTERS
    messages = [_message(message, max_characters) for message in row.get("messages") or ()]
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
                "calls": [[sanitize_text(str(value)) if isinstance(value, str) else value for value in call]
                          for call in turn.get("calls") or ()],
                "seconds": turn.get("seconds") or [0.0, 0.0, 0.0],
                "rewritten": bool(turn.get("opens_segment")) and number > 0,
                "aside": bool(turn.get("aside")),
                "agent": sanitize_text(str(turn.get("agent") or "")),
                "context": _tokens(turn.get("context") or {}, tokenizer, max_tokens=_MAX_CONTEXT),
                "action": _tokens(turn.get("action") or {}, tokenizer),
            }
        )  # fmt: skip
        place = end
    return {
        "opening": messages[: int(row.get("opening") or 0)],
        "turns": turns,
        "judgements": [_convert_judgment(each) for each in score.get("judgements") or ()],
        "removal": row.get("removal"),
        "final": {
            sanitize_text(str(name)): sanitize_text(str(value))[:2000]
            for name, value in (row.get("final") or {}).items()
        },
        "declared": {
            sanitize_text(str(name)): sanitize_text(str(value)) for name, value in (row.get("declared") or {}).items()
        },
        "greedy": bool(row.get("greedy")),
        "provenance": _provenance(row),
        "has_tokenizer": tokenizer is not None,
    }


def _provenance(row: Mapping[str, Any]) -> str:
    try:
        return str(read_provenance(row))
    except UNREADABLE:
        return ""


def token_texts(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """Return the text of each token by itself; an incomplete character is shown as `�`.

    >>> token_texts([5], None)
    ['#5 ']
    """
    if tokenizer is None:
        return [f"#{id} " for id in ids]
    texts: dict[int, str] = {}
    for id in set(ids):
        token = tokenizer.id_to_token(id) if id >= 0 else None
        if token is None:
            texts[id] = f"#{id} "
        else:
            decoded = tokenizer.decode([id], skip_special_tokens=False)
            texts[id] = sanitize_text(token.replace("▁", " ") if "▁" in token else decoded or token)
    return [texts[id] for id in ids]


def _tokens(row: Mapping[str, Any], tokenizer: Tokenizer | None, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the tokens of a context or action as columns.

    The columns are `texts` and `trained`, and `logprobs`, `entropies` and `versions` if they are known.
    """
    ids = row.get("ids") or []
    first = max(0, len(ids) - max_tokens) if max_tokens is not None else 0
    authors = list(islice(_authors(row.get("authors") or ()), len(ids)))[first:]  # a run may claim any length
    logprobs = row.get("logprobs")
    columns: dict[str, Any] = {"texts": token_texts(ids[first:], tokenizer), "left_out": first}
    for name in ("logprobs", "entropies", "versions"):
        if row.get(name) is not None:
            columns[name] = [value if isinstance(value, int | float) else None for value in row[name]][first:]
    sampled = logprobs[first:] if logprobs is not None else [None] * len(authors)
    columns["trained"] = [
        author in _TRAINED or (author == Author.INSERTED and logprob is not None)
        for author, logprob in zip(authors, sampled, strict=False)
    ]
    columns["authors"] = authors
    return columns


def _authors(runs: Sequence[Sequence[Any]]) -> Iterator[str]:
    for author, count in runs:
        yield from repeat(str(author), int(count))


def _message(message: Mapping[str, Any], max_characters: int) -> dict[str, Any]:
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    converted = [_part(part, max_characters) for part in parts]
    calls = message.get("tool_calls") or ()
    functions = [call.get("function") or {} for call in calls]
    return {
        "role": sanitize_text(str(message.get("role"))),
        "parts": [part for part in converted if part.get("text") or part.get("image")],
        "calls": [
            {"name": sanitize_text(str(each.get("name"))), **_cut(str(each.get("arguments") or ""), max_characters)}
            for each in functions
        ],
        "malformed": [sanitize_text(str(wrong))[:max_characters] for wrong in message.get("malformed") or ()],
    }


def _part(part: Mapping[str, Any], max_characters: int) -> dict[str, Any]:
    if part.get("type") == "image_url":
        url = str((part.get("image_url") or {}).get("url"))
        return (
            {"image": url}
            if _IMAGE.fullmatch(url)
            else {"text": f"[image, not in the run: {sanitize_text(url[:200])}]"}
        )
    return _cut(str(part.get("text") or ""), max_characters)


def _cut(text: str, max_characters: int) -> dict[str, Any]:
    """Shorten a long text to its start and end, with the number of characters that are left out."""
    if len(text) <= max_characters:
        return {"text": sanitize_text(text)}
    head, tail = text[: max_characters * 3 // 4], text[-max_characters // 4 :]
    return {"text": sanitize_text(head), "tail": sanitize_text(tail), "left_out": len(text) - len(head) - len(tail)}


def _convert_judgment(row: Mapping[str, Any]) -> dict[str, Any]:
    fields = (row.get("said") or {}).items()
    return {
        "question": sanitize_text(str(row.get("question"))),
        "said": {
            sanitize_text(str(k)): v if isinstance(v, bool | int | float) else sanitize_text(str(v)) for k, v in fields
        },
    }


def _nth(values: Any, number: int) -> Any:
    return values[number] if isinstance(values, list) and number < len(values) else None
