"""Ollama Modelfile of an exported model: Go template, `SYSTEM` with the tools, and stop texts.

Ollama does not read Jinja. The text between two messages depends on their roles only, so it is taken from rendered
conversations, and the Go template chooses it by the previous and the next role.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from whetstone.chat.incremental_tokenizer import Chat
from whetstone.chat.message import ToolSpec

END = "end"
"""Pseudo role after the last message, for the generation prompt."""
_CONVERSATIONS = (
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "tool", "tool", "assistant", "tool"),
)
_MARK = "qz{}zq"


def message_frames(tokenizer: Any, source: str) -> dict[tuple[str, str], str]:
    """Return the text that a template writes between two messages, by the pair of their roles.

    The key `("", role)` is for the text before the first message, and `(role, "end")` for the generation prompt. Pairs
    that the template rejects, such as results without a call, are left out.

    Args:
        tokenizer: Tokenizer that renders the template.
        source: Jinja source of the template.
    """
    frames: dict[tuple[str, str], str] = {}
    for roles in _CONVERSATIONS:
        for count in range(1, len(roles) + 1):
            messages = [{"role": role, "content": _MARK.format(at)} for at, role in enumerate(roles[:count])]
            try:
                text = str(
                    tokenizer.apply_chat_template(
                        messages, add_generation_prompt=True, tokenize=False, chat_template=source
                    )
                )
            except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
                continue
            pairs = zip(("", *roles[:count]), (*roles[:count], END), strict=True)
            for at, pair in enumerate(pairs):
                before, mark, rest = text.partition(_MARK.format(at))
                if not mark and pair[1] != END:
                    break
                frames.setdefault(pair, before)
                text = rest
    return frames


def write_modelfile(
    file: str,
    chat: Chat,
    source: str,
    tools: Sequence[ToolSpec],
    *,
    context_length: int,
    sampling: Mapping[str, float],
) -> str:
    """Return the text of an Ollama Modelfile.

    Args:
        file: Name of the GGUF file in the same folder.
        chat: Chat of the trained model.
        source: Jinja template of the exported model.
        tools: Tools of training; described in `SYSTEM` if the template does not render tools itself.
        context_length: Context length in tokens.
        sampling: Values of `temperature` and `top_p`.
    """
    frames = message_frames(chat.tokenizer, source)
    cases = [
        f'{{{{- if and (eq $previous "{before}") (eq .Role "{role}") }}}}{text}{{{{ end }}}}'
        for (before, role), text in frames.items()
        if role != END
    ]
    ends = [
        f'{{{{- if eq $previous "{before}" }}}}{text}{{{{ end }}}}'
        for (before, role), text in frames.items()
        if role == END
    ]
    template = (
        '{{- $previous := "" }}{{- range .Messages }}'
        + "".join(cases)
        + "{{ .Content }}{{- $previous = .Role }}{{- end }}"
        + "".join(ends)
    )
    lines = [f"FROM ./{file}", f'TEMPLATE """{template}"""']
    if tools and not chat.dialect.shows_tools and chat.knows_system:
        lines.append(f'SYSTEM """{chat.format.describe(tools)}"""')
    lines.append(f"PARAMETER num_ctx {context_length}")
    stops = [str(chat.tokenizer.decode([token])) for token in sorted(chat.stop_ids)]
    lines += [f"PARAMETER stop {json.dumps(text, ensure_ascii=False)}" for text in (*stops, *chat.format.stops)]
    lines += [f"PARAMETER {name} {value:g}" for name, value in sampling.items()]
    return "\n".join(lines) + "\n"
