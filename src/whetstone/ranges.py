"""What may an option be? Ranges as types, so that a recipe is held to them and a reader sees them in the signature.

Easy to get wrong: a function called from Python is not checked; a recipe's options are, before anything runs.
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
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


def _is_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"is no JSON Schema: {error.message}") from None
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
"""As the library `regex` reads it."""
JsonSchema = Annotated[dict[str, Any], AfterValidator(_is_schema)]
"""That is one."""
DegreesOfFreedom = Literal[0, 1]
"""1 for the sample deviation, 0 for the population's."""
