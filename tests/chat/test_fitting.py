"""Which tool-call format a model's template asks for."""

import pytest

from tests_templates import CHATML, GEMMA, LLAMA3, QWEN3
from whetstone.chat import fitting_format


@pytest.mark.parametrize(
    ("template", "format"),
    [
        (None, "hermes"),
        (CHATML, "hermes"),
        (GEMMA, "hermes"),
        (LLAMA3, "hermes"),  # speaks of no tools
        (QWEN3, "hermes"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3"),
        ("{% if tools %}{{ '[TOOL_CALLS]' }}{% endif %}", "mistral"),
        ({"default": CHATML, "tool_use": "<tool_call>"}, "hermes"),
    ],
)
def test_a_template_that_speaks_of_tools_says_how(template, format):
    assert fitting_format(template) == format
