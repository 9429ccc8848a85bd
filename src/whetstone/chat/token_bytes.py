"""Conversion of single tokens to bytes.

A token can contain a part of a character, which no text expresses: decoded separately it is U+FFFD. The concatenated
bytes of the tokens of an answer are the bytes of its text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Decoder from single tokens of a tokenizer to bytes.

    Byte-level tokenizers (GPT-2) write each byte as a letter. SentencePiece tokenizers write a space as U+2581, and a
    byte of a character that is not in the vocabulary as `<0xE2>`. Tokens of any other tokenizer are decoded one at a
    time.

    Args:
        tokenizer: Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {id: str(token.content) for id, token in tokenizer.added_tokens_decoder.items()}
        steps = _decoders(tokenizer)
        kinds = {str(step.get("type")) for step in steps}
        self._is_byte_level, self._has_bytes = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._strips_start = any(
            (step.get("type") == "Strip" and step.get("content") == " " and step.get("start"))
            or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in steps
        )
        replaced = [(_pattern(step), str(step.get("content", " "))) for step in steps if step.get("type") == "Replace"]
        replaced += [(str(step["replacement"]), " ") for step in steps if step.get("type") == "Metaspace"]
        self._replaced = [(old, new) for old, new in replaced if old]

    def decode_token(self, token: int, *, is_first: bool = False) -> bytes:
        """Return the bytes of a token.

        A special token gives the bytes of its text, such as `<|im_end|>`.

        Args:
            token: Token id.
            is_first: Whether the token starts an answer; decoding then drops its leading space in some tokenizers.
        """
        piece = self._bytes_of(token)
        return piece[1:] if is_first and self._strips_start and piece.startswith(b" ") else piece

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if isinstance(piece, str):
            if self._is_byte_level and all(letter in _BYTES for letter in piece):
                return bytes(_BYTES[letter] for letter in piece)
            if self._has_bytes and (match := _BYTE.fullmatch(piece)):
                return bytes([int(match[1], 16)])
            if self._replaced:
                for old, new in self._replaced:
                    piece = piece.replace(old, new)
                return piece.encode()
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()

    def split_tokens(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token of an answer, in order: [T] ids give T byte strings."""
        return [self.decode_token(token, is_first=place == 0) for place, token in enumerate(tokens)]


def text_offsets(pieces: Sequence[bytes]) -> list[int]:
    """Return, for each token, the number of complete characters before it in the text.

    Args:
        pieces: Bytes of each token, see `TokenBytes.split_tokens`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offsets, count = [], 0
    for piece in pieces:
        offsets.append(count)
        count += len(decoder.decode(piece))
    return offsets


def _decoders(tokenizer: Any) -> list[dict[str, Any]]:
    """Return the decoding steps of a fast tokenizer as dictionaries.

    The result is empty for other tokenizers.
    """
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    if decoder is None:
        return []
    step = json.loads(decoder.__getstate__())
    return list(step["decoders"]) if step.get("type") == "Sequence" else [step]


def _pattern(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    return str(pattern.get("String", "")) if isinstance(pattern, dict) else ""


def _byte_letters() -> dict[str, int]:
    """Return the map from letter to byte that byte-level tokenizers use.

    Printable bytes are represented by themselves, and all others by the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_letters()
