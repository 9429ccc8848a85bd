"""Which tool-call format a model's template asks for: the one it writes calls in, whatever it is called."""

import pytest

from tests_slow import mostly_slow
from tests_templates import CHATML, GEMMA, LLAMA3, QWEN3, tokenizer_with
from whetstone.chat import FORMATS, ToolCall, assistant, fitting_format
from whetstone.chat.dialect import TOOL


@pytest.mark.parametrize("template", [None, CHATML, GEMMA, LLAMA3, QWEN3])
def test_one_that_shows_no_tools_is_told_of_them_as_hermes(template):
    assert fitting_format(tokenizer_with(template)) == "hermes"


# code, compact, react and tags are learned from what is said of them; the others are some model's own
OWN = sorted(FORMATS.keys() - {"code", "compact", "react", "tags"})
SAME = {"phi4_mini": "granite", "deepseek_v4": "deepseek_v32"}  # read alike; what is around the calls tells them apart


@pytest.mark.parametrize("name", mostly_slow(OWN, quick=["glm", "kimi_k2"]))
def test_one_that_writes_calls_says_how(name):
    """A template that shows tools, and calls as the format writes them for this tool."""
    call = ToolCall(TOOL.name, '{"text": "TEXT", "count": 3}')
    try:
        written = FORMATS[name]().write(assistant("", call), [TOOL])
    except ValueError:
        pytest.skip("the format cannot express the call")
    shown = repr(written).replace("TEXT", "' ~ m.tool_calls[0].function.arguments.text ~ '")
    if written.count("'") or "\\" in repr(written).replace("\\n", ""):
        pytest.skip("quotes of its own")
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.tool_calls %}{{ " + shown + " }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert fitting_format(tokenizer_with(template)) in (name, SAME.get(name))


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("{% if tools %}{{ tools }} Answer with <|tool_call|>.{% endif %}", "granite"),
        ("{% if tools %}{{ tools }} <TOOLCALL>{% endif %}", "nemotron"),
    ],
)
def test_one_that_shows_tools_and_writes_no_calls_may_speak_of_signs(template, format):
    assert fitting_format(tokenizer_with(template + CHATML)) == format
