"""How does a value become JSON that every reader takes? Numbers that are none are null, and nothing else gets through.

Easy to get wrong: Python writes NaN and Infinity as bare words, which is no JSON: `jq` and browsers refuse the file.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np


def plain(value: Any, *, other: Callable[[Any], Any] | None = None) -> Any:
    """The same in dicts, lists, strings, numbers, booleans and None; NaN and infinities are None.

    Numbers of NumPy and PyTorch, dataclasses, enums, paths and sets are written as what they hold.

    Args:
        other: What becomes of anything else; None: it is refused.

    Raises:
        TypeError: Something in it is none of that; the message says its type.
    """
    if isinstance(value, Enum):
        return plain(value.value, other=other)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), other=other) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(each, other=other) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, other=other) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each, other=other) for each in value), key=repr)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if hasattr(value, "detach") and hasattr(value, "tolist"):  # a tensor, without importing PyTorch for it
        return plain(value.detach().tolist())
    if other is not None:
        return other(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} cannot be written as JSON")


def to_json(value: Any, *, indent: int | None = None, other: Callable[[Any], Any] | None = None) -> str:
    """Strict JSON.

    Args:
        other: As in `plain`.

    Raises:
        TypeError: As `plain`.
    """
    return json.dumps(plain(value, other=other), indent=indent, allow_nan=False)


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    return key if isinstance(key, str) else str(key)
