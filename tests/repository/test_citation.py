"""The entry for a bibliography names the release of the package."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_citation_has_the_required_fields_and_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # required by the format
    assert citation["authors"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
