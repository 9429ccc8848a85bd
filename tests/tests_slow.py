"""What of a sweep `make test` tries at once, and what it leaves to `make test-slow`. Nothing is left out of both."""

import pytest
from hypothesis import settings


def mostly_slow(values, *, quick):
    """Each value as a parameter of a test; all but those named are marked slow.

    Args:
        values: What to try: plain values, or parameters of pytest.
        quick: The values that `make test` tries, or the ids of the parameters; each must be among `values`.
    """
    parameters = [value if hasattr(value, "marks") else pytest.param(value) for value in values]
    named = [parameter.id if parameter.id is not None else parameter.values[0] for parameter in parameters]
    assert all(name in named for name in quick), f"{[name for name in quick if name not in named]}: not in the sweep"
    return [
        parameter
        if name in quick
        else pytest.param(*parameter.values, marks=[*parameter.marks, pytest.mark.slow], id=parameter.id)
        for parameter, name in zip(parameters, named, strict=True)
    ]


def examples(most, **options):
    """Settings of a property that tries `most` examples in `make test-slow`, and as many as the profile says before."""
    return settings(max_examples=min(most, settings.default.max_examples), deadline=None, **options)
