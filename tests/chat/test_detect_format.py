"""Detection of the tool-call format of a chat template from the calls that it renders."""

import pytest

from support.chat_templates import CHATML, GEMMA, LLAMA3, QWEN3, tokenizer_with
from support.slow import mostly_slow
from whetstone.chat import FORMATS, ToolCall, assistant, detect_tool_call_format
from whetstone.chat.template_probe import TOOL


@pytest.mark.parametrize("template", [None, CHATML, GEMMA, LLAMA3, QWEN3])
def test_template_without_tools_has_the_hermes_format(template):
    assert detect_tool_call_format(tokenizer_with(template)) == "hermes"


# code, compact, react and tags are described in the prompt; the others are formats of models
OWN = sorted(FORMATS.keys() - {"code", "compact", "react", "tags"})
SAME = {
    "phi4_mini": "granite",
    "deepseek_v4": "deepseek_v32",
}  # parsed equally; the text around the calls distinguishes them


@pytest.mark.parametrize("name", mostly_slow(OWN, quick=["glm", "kimi_k2"]))
def test_template_that_renders_calls_has_their_format(name):
    """Check a template that renders tools, and calls as the format writes them for this tool."""
    call = ToolCall(TOOL.name, '{"text": "TEXT", "count": 3}')
    try:
        written = FORMATS[name]().write(assistant("", call), [TOOL])
    except ValueError:
        pytest.skip("the format cannot express the call")
    rendered = repr(written).replace("TEXT", "' ~ m.tool_calls[0].function.arguments.text ~ '")
    if written.count("'") or "\\" in repr(written).replace("\\n", ""):
        pytest.skip("quotes of its own")
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.tool_calls %}{{ " + rendered + " }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert detect_tool_call_format(tokenizer_with(template)) in (name, SAME.get(name))


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("{% if tools %}{{ tools }} Answer with <|tool_call|>.{% endif %}", "granite"),
        ("{% if tools %}{{ tools }} <TOOLCALL>{% endif %}", "nemotron"),
    ],
)
def test_template_without_calls_is_detected_by_its_markers(template, format):
    assert detect_tool_call_format(tokenizer_with(template + CHATML)) == format
