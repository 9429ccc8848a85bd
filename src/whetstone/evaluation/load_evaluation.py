"""Loads a saved evaluation; None in JSON becomes NaN again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter

from whetstone.evaluation.results import Evaluation

_MAY_BE_NONE = frozenset({"well_formed_calls", "tool_productivity", "calibration"})
_ADAPTER = TypeAdapter(Evaluation)


def load_evaluation(written: Mapping[str, Any]) -> Evaluation:
    """Parse the output of `Evaluation.to_json`; fields that older versions lack have their defaults.

    Raises:
        ValueError: The mapping is not a saved evaluation.
    """
    known = {field.name: written[field.name] for field in fields(Evaluation) if field.name in written}
    values = {
        name: None if value is None and name in _MAY_BE_NONE else _with_nan(value) for name, value in known.items()
    }
    return _ADAPTER.validate_python(values)


def _with_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_nan(each) for each in value]
    return math.nan if value is None else value
