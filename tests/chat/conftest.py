"""A tokenizer of each family, built once."""

import pytest

from support.chat_templates import ALL_FAMILIES, build


@pytest.fixture(scope="session")
def tokenizer_of():
    """Family name → tokenizer, each built once."""
    built = {family: build(family) for family in ALL_FAMILIES}
    return built.__getitem__
