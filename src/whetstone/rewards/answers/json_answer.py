"""Reward for a final answer that is JSON of a given schema and value."""

from __future__ import annotations

import json
from collections.abc import Mapping

import jsonschema

from whetstone.bounded_types import JsonSchema
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import same_value
from whetstone.trajectory import Score, Task, Trajectory


async def json_answer(trajectory: Trajectory, task: Task, *, schema: JsonSchema | None = None) -> Score:
    """Return 1 if the final answer is JSON that fits a schema and equals the task's value, if there is one; else 0.

    The value is `task.private["value"]`. Values are compared with their types: true is not 1.

    Args:
        schema: JSON Schema; null: `task.private["schema"]`, or any JSON without that.

    Raises:
        ValueError: If the schema is invalid.
    """
    wanted: Mapping[str, object] = schema if schema is not None else task.private.get("schema", {})
    try:
        jsonschema.validators.validator_for(wanted).check_schema(wanted)
    except jsonschema.SchemaError as error:
        raise ValueError(f"the schema is not a valid JSON Schema: {error.message}") from None
    answer, parses, fits, right = final_answer(trajectory), False, False, False
    if answer is not None:
        try:
            value = json.loads(_bare(answer))
            parses = True
            jsonschema.validate(value, dict(wanted))
            fits = True
            right = "value" not in task.private or same_value(value, task.private["value"])
        except (ValueError, RecursionError, jsonschema.ValidationError):
            pass
    return Score(float(right), {"parses": float(parses), "fits": float(fits), "correct": float(right)}, success=right)


def _bare(text: str) -> str:
    """Strip a code fence that surrounds the whole text."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        return bare.removesuffix("```").removeprefix("```json").removeprefix("```")
    return bare
