"""Encoding and decoding of the Protocol Buffers messages of the Tinker API.

The client sends `ForwardBackwardRequest` as Protocol Buffers, and reads `ForwardBackwardOutput` and `SampleResponse` in
the same format. All other bodies are JSON.

Source: https://protobuf.dev/programming-guides/encoding/; the field numbers are those of the package `tinker` 0.38.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whetstone.chat.api.requests import RefusedError

FLOAT32, INT64 = 1, 2
"""Numbers of the data types."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DTYPES: dict[int, Any] = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8")}

Fields = dict[int, list[int | bytes]]
"""Values of a message by field number, in order; those of 4 or 8 bytes are bytes."""


@dataclass(frozen=True, slots=True)
class TrainingDatum:
    """Example of a `forward_backward` request."""

    ids: tuple[int, ...]
    """[N] input tokens."""
    inputs: Mapping[str, np.ndarray]
    """Inputs of the loss by name, such as `target_tokens` and `weights`."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """Decoded `forward_backward` request."""

    model_id: str
    """Id of the training client's model."""
    seq_id: int
    """Position of the request among those of the model, from 1."""
    loss: str
    """Name of the loss."""
    config: Mapping[str, float | str] = field(default_factory=dict)
    """Options of the loss."""
    forward_only: bool = False
    """Whether no gradient is computed."""
    data: Sequence[TrainingDatum] = ()
    """Examples."""
    problem: str = ""
    """Why the examples or options cannot be read; empty if they can."""


def decode_message(body: bytes, fields: Fields | None = None) -> Fields:
    """Decode the fields of one message; nested messages stay bytes.

    Args:
        body: Encoded message.
        fields: Dictionary that receives the fields, those before a malformed one included; None: a new one.

    Raises:
        ValueError: If the body is not a message.
    """
    fields = {} if fields is None else fields
    place = 0
    while place < len(body):
        tag, place = _read_varint(body, place)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, place = _read_varint(body, place)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
            if kind == _BYTES:
                size, place = _read_varint(body, place)
            if size < 0 or place + size > len(body):
                raise ValueError(f"field {number} at byte {place}: is malformed or cut off")
            value, place = body[place : place + size], place + size
        fields.setdefault(number, []).append(value)
    return fields


def encode_field(number: int, value: int | float | bytes | str) -> bytes:
    """Encode one field: an integer as varint, a float as double, bytes and text with their length."""
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    written = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(written)) + written


def decode_training_request(body: bytes) -> TrainingRequest:
    """Decode a `forward_backward` request.

    A request that cannot be read after its model and position keeps its place in the order of the client, with
    `problem`.

    Raises:
        RefusedError: If the body has no model or position.
    """
    fields: Fields = {}
    problem = ""
    try:
        decode_message(body, fields)
    except ValueError as error:
        problem = f"the body is no request of tinker 0.38: {error}"
    try:
        head = (_text(fields, 1), _integer(fields, 2), _text(fields, 4))
    except ValueError as error:
        problem, head = problem or f"the body is no request of tinker 0.38: {error}", ("", 0, "")
    if not head[0] or head[1] < 1:
        raise RefusedError(f"forward_backward: {problem or 'the body has no model_id and seq_id'}")
    if problem:
        return TrainingRequest(*head, problem=problem)
    try:
        config: dict[str, float | str] = {}
        for entry in map(decode_message, _all(fields, 5)):
            config[_text(entry, 1)] = _double(entry, 2)
        for entry in map(decode_message, _all(fields, 7)):
            value = decode_message(_first(entry, 2))
            config[_text(entry, 1)] = _text(value, 2) if 2 in value else _double(value, 1)
        data = [_datum(decode_message(each)) for each in _all(fields, 3)]
        return TrainingRequest(*head, config, bool(_integer(fields, 6)), data)
    except (ValueError, KeyError, struct.error, RefusedError) as error:
        return TrainingRequest(*head, problem=str(error))


def encode_training_output(logprobs: Sequence[np.ndarray], metrics: Mapping[str, float]) -> bytes:
    """Encode a `ForwardBackwardOutput`.

    Args:
        logprobs: [N] log-probs of the targets of each example.
        metrics: Metrics by name, such as `loss:sum`.
    """
    offsets = np.cumsum([0, *(4 * len(each) for each in logprobs)]).astype("<i8").tobytes()
    data = b"".join(each.astype("<f4").tobytes() for each in logprobs)
    tensor = encode_field(1, data) + encode_field(2, offsets) + encode_field(3, FLOAT32)
    record = encode_field(2, encode_field(1, "logprobs") + encode_field(2, tensor)) + encode_field(3, len(logprobs))
    parts = [encode_field(1, "ArrayRecord"), encode_field(2, record)]
    parts += [encode_field(3, encode_field(1, name) + encode_field(2, float(value))) for name, value in metrics.items()]
    return b"".join(parts)


def encode_sample_response(
    sequences: Sequence[tuple[Sequence[int], Sequence[float], bool]], prompt_logprobs: Sequence[float] | None
) -> bytes:
    """Encode a `SampleResponse`.

    Args:
        sequences: Tokens, log-probs and whether the sequence ended by a stop, of each sample.
        prompt_logprobs: [T] log-probs of the prompt, NaN for its first token; None: not requested.
    """
    parts = []
    for ids, logprobs, is_stopped in sequences:
        written = encode_field(1, int(not is_stopped)) + encode_field(2, np.asarray(ids, "<i4").tobytes())
        parts.append(encode_field(1, written + encode_field(3, np.asarray(logprobs, "<f4").tobytes())))
    if prompt_logprobs is not None:
        parts.append(encode_field(2, np.asarray(prompt_logprobs, "<f4").tobytes()))
    return b"".join(parts)


def _datum(fields: Fields) -> TrainingDatum:
    ids: list[int] = []
    for chunk in map(decode_message, _all(fields, 1)):
        if 1 not in chunk:
            raise RefusedError("images and audio are not supported; send encoded text only")
        ids += np.frombuffer(_first(decode_message(_first(chunk, 1)), 1), "<i4").tolist()
    inputs = {}
    for entry in map(decode_message, _all(fields, 2)):
        inputs[_text(entry, 1)] = _tensor(_text(entry, 1), decode_message(_first(entry, 2)))
    return TrainingDatum(tuple(ids), inputs)


def _tensor(name: str, fields: Fields) -> np.ndarray:
    if 2 in fields:
        raise RefusedError(f"{name} is a sparse tensor, which is not supported; send a dense one")
    shape: list[int] = []
    for each in fields.get(4, ()):  # packed or not
        place = 0
        while isinstance(each, bytes) and place < len(each):
            size, place = _read_varint(each, place)
            shape.append(size)
        if isinstance(each, int):
            shape.append(each)
    flat: np.ndarray = np.frombuffer(_first(fields, 1), _DTYPES[_integer(fields, 3)])
    return flat.reshape(shape) if shape else flat


def _all(fields: Fields, number: int) -> list[bytes]:
    values = fields.get(number, [])
    if not all(isinstance(value, bytes) for value in values):
        raise ValueError(f"field {number}: is a number instead of a message")
    return [value for value in values if isinstance(value, bytes)]


def _first(fields: Fields, number: int) -> bytes:
    return next(iter(_all(fields, number)), b"")


def _text(fields: Fields, number: int) -> str:
    return _first(fields, number).decode()


def _integer(fields: Fields, number: int) -> int:
    (value,) = fields.get(number, [0])[-1:]
    if not isinstance(value, int):
        raise ValueError(f"field {number}: is no integer")
    return value


def _double(fields: Fields, number: int) -> float:
    written = _first(fields, number)
    return float(struct.unpack("<d", written)[0]) if written else 0.0


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _read_varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(body) or shift > 63:
            raise ValueError(f"byte {place}: a number is malformed or cut off")
        value |= (body[place] & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if body[place - 1] < 0x80:
            return value, place
