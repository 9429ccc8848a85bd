"""Is the final answer JSON of the shape asked for, and what it should say?"""

from __future__ import annotations

import json
from collections.abc import Mapping

import jsonschema

from whetstone.ranges import JsonSchema
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import same_value
from whetstone.trajectory import Score, Task, Trajectory


async def json_answer(trajectory: Trajectory, task: Task, *, schema: JsonSchema | None = None) -> Score:
    """1 where the final answer is JSON that fits the schema and, where the task says a value, is that value; else 0.

    Args:
        schema: A JSON Schema; null: that in `task.private["schema"]`, or any.

    Values are compared with their types: true is not 1. The value is `task.private["value"]`.

    Raises:
        ValueError: The schema is none.
    """
    wanted: Mapping[str, object] = schema if schema is not None else task.private.get("schema", {})
    try:
        jsonschema.validators.validator_for(wanted).check_schema(wanted)
    except jsonschema.SchemaError as error:
        raise ValueError(f"the schema is none: {error.message}") from None
    said, parses, fits, right = final_answer(trajectory), False, False, False
    if said is not None:
        try:
            value = json.loads(_bare(said))
            parses = True
            jsonschema.validate(value, dict(wanted))
            fits = True
            right = "value" not in task.private or same_value(value, task.private["value"])
        except (ValueError, RecursionError, jsonschema.ValidationError):
            pass
    return Score(float(right), {"parses": float(parses), "fits": float(fits), "correct": float(right)}, success=right)


def _bare(text: str) -> str:
    """Without a fence around all of it."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        return bare.removesuffix("```").removeprefix("```json").removeprefix("```")
    return bare
