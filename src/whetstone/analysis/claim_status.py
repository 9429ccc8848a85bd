"""Names of the result of testing a published claim."""

HELD, IN_PART, NOT_HELD, NOT_TRIED = "held", "held in part", "not held at this scale", "not tried"
VERDICTS = (HELD, IN_PART, NOT_HELD, NOT_TRIED)
"""All results, best first."""
