"""Helpers for tests of the sandbox: one server per available kind of isolation, and one way to run code."""

import asyncio
import functools
from dataclasses import replace

import pytest

from whetstone.sandbox import Isolation, Limits, Sandbox, list_isolation_layers

QUICK = Limits(wall_seconds=2.0, cpu_seconds=1.0, memory_mb=200, processes=12, folder_mb=16, file_mb=8, files=200)
PATIENT = replace(QUICK, wall_seconds=120, cpu_seconds=120, memory_mb=512, processes=32)
"""Limits of calls that must succeed on a loaded machine, such as the import of a large package."""
MISSING = {offer.isolation: offer.missing for offer in list_isolation_layers()}
needs_isolation = pytest.mark.needs_isolation
"""Mark of a test or parameter that runs untrusted code; `support/fixtures.py` skips it on a machine without one."""


def mark_isolation(values, needing):
    """Return parameters of which those named in `needing` get the mark `needs_isolation`; other marks are kept."""
    marked = []
    for value in values:
        parameter = value if hasattr(value, "marks") else pytest.param(value)
        if parameter.values[0] in needing:
            parameter = pytest.param(*parameter.values, marks=[*parameter.marks, needs_isolation], id=parameter.id)
        marked.append(parameter)
    return marked


@functools.cache
def server(isolation):
    return Sandbox(isolation=isolation, limits=QUICK)


def levels(*wanted):
    """Return the kinds of isolation; missing ones are skipped with the remedy."""
    reasons = {level: f"isolation with {level}: {MISSING[level]}" if MISSING[level] else "" for level in Isolation}
    return [
        pytest.param(level, marks=[pytest.mark.skip(reason=reasons[level])] if reasons[level] else [], id=level)
        for level in wanted or (Isolation.NAMESPACES, Isolation.LANDLOCK)
    ]


def run(isolation, *codes, persistent=True, do="python", limits=None):
    """Return the outcomes of calls of one session in order, or the outcome of a single call."""

    async def calls():
        session = server(isolation).session(persistent=persistent, limits=limits)
        try:
            return [await getattr(session, do)(code) for code in codes]
        finally:
            session.close()

    outcomes = asyncio.run(calls())
    return outcomes[0] if len(outcomes) == 1 else outcomes
