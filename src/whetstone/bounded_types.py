"""Bounded types for options: a recipe is validated against them, and the signature shows them.

Note:
    A direct call from Python is not validated; the options of a recipe are, before anything runs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema
import regex
from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator


def _compiles(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern


def _is_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"is not a JSON Schema: {error.message}") from None
    return schema


Positive = Annotated[float, Gt(0)]
"""Above 0."""
NotNegative = Annotated[float, Ge(0)]
"""0 or more."""
Share = Annotated[float, Ge(0), Le(1)]
"""From 0 to 1."""
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
"""From 0 to below 1."""
PositiveShare = Annotated[float, Gt(0), Le(1)]
"""Above 0, at most 1."""
Count = Annotated[int, Ge(1)]
"""1 or more."""
RegularExpression = Annotated[str, AfterValidator(_compiles)]
"""A pattern of the library `regex`."""
JsonSchema = Annotated[dict[str, Any], AfterValidator(_is_schema)]
"""A valid JSON Schema."""
DegreesOfFreedom = Literal[0, 1]
"""1 for the sample deviation, 0 for the population deviation."""
