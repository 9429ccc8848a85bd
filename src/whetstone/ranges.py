"""What may an option be? Ranges as types, so that a recipe is held to them and a reader sees them in the signature.

Easy to get wrong: a function called from Python is not checked; a recipe's options are, before anything runs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

Positive = Annotated[float, Gt(0)]
"""Above 0."""
NotNegative = Annotated[float, Ge(0)]
"""0 or more."""
Share = Annotated[float, Ge(0), Le(1)]
"""From 0 to 1."""
PositiveShare = Annotated[float, Gt(0), Le(1)]
"""Above 0, at most 1."""
Count = Annotated[int, Ge(1)]
"""1 or more."""
DegreesOfFreedom = Literal[0, 1]
"""1 for the sample deviation, 0 for the population's."""
