"""Faults that users of other projects reported for tool-call formats and templates; see `public_reports.md`."""

import html
import json
from itertools import product

import pytest

from support.chat_templates import CHATML, real_templates, real_tokenizer, tokenizer_with
from support.slow import mostly_slow
from whetstone.chat import FORMATS, Chat, ToolCall, ToolSpec, assistant, detect_tool_call_format, tool_result, user
from whetstone.chat.api.requests import CompletionRequest
from whetstone.chat.formats import Parameters
from whetstone.errors import PolicyError
from whetstone.serving.detokenizer import StreamedText

WRITE = ToolSpec(
    "write",
    "Writes a file.",
    {
        "type": "object",
        "properties": {name: {"type": "string", "description": "A text."} for name in ("path", "content")},
    },
)
NAMES = sorted(set(FORMATS) - {"code"})
QUICK = ["compact", "gemma4", "glm", "hermes", "kimi_k2", "lfm2", "llama3", "mistral", "qwen3_coder"]
EACH = pytest.mark.parametrize("name", mostly_slow(NAMES, quick=QUICK))
CALL = ToolCall("write", '{"path": "/tmp/a.py", "content": "x = 1"}')


def calls_of(message):
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def written(name, text, *calls):
    """Return the turn, or None if the format cannot express it."""
    try:
        return FORMATS[name]().write(assistant(text, *calls), [WRITE])
    except ValueError:
        return None


@EACH
def test_pieces_of_any_size_show_the_text_before_a_call_and_nothing_of_the_call(name):
    """Report 1: two pieces, cut at each position."""
    chat = Chat(tokenizer_with(CHATML), FORMATS[name]())
    text = "Let me see. "
    turn = written(name, text, CALL)
    if turn is None:
        text, turn = "", written(name, "", CALL)
    if turn is None:
        pytest.skip("the format refuses this call")
    tokens = chat.encode(turn)
    message = chat.read(tokens, [WRITE], turn=0)
    assert calls_of(message) == calls_of(assistant("", CALL))
    request = CompletionRequest((user("x"),), (WRITE,))
    begins = turn[len(text) :].partition("write")[0].strip()
    for cut in range(1, len(tokens)):
        progress = StreamedText(chat, request, lambda _: None, hidden=False, calls=begins)
        progress.on_tokens(tokens[:cut])
        progress.on_tokens(tokens)
        assert text.startswith(progress.sent_text.rstrip()), (cut, progress.sent_text)


@EACH
@pytest.mark.parametrize("value", ["a &lt; b &amp; c", "&quot;x&quot;", "&#60;", "&amp;amp;"])
def test_character_references_in_an_argument_are_kept(name, value):
    """Report 2."""
    turn = written(
        name, "", ToolCall("write", json.dumps({"path": value, "content": f"{value}\n{html.escape(value)}"}))
    )
    if turn is None:
        pytest.skip("the format refuses this value")
    ((_, got),) = calls_of(FORMATS[name]().read(turn, [WRITE]))
    assert got == {"path": value, "content": f"{value}\n{html.escape(value)}"}


@EACH
def test_arguments_may_precede_the_name(name):
    """Report 3: every format whose calls are JSON objects with a name."""
    turn = written(name, "", CALL) or ""
    start, end = turn.find("{"), turn.rfind("}") + 1
    try:
        members = json.loads(turn[start:end])
    except ValueError:
        pytest.skip("a call of this format is no JSON object")
    if "write" not in members.values():
        pytest.skip("the name of a call of this format is outside of its JSON object")
    other = json.dumps(dict(reversed(members.items())))
    message = FORMATS[name]().read(turn[:start] + other + turn[end:], [WRITE])
    assert (calls_of(message), message.malformed) == (calls_of(assistant("", CALL)), ())


PYTHONIC = ("lfm2", "lfm25", "llama4", "olmo3")
FRAMES = {
    "lfm2": "<|tool_call_start|>[{}]<|tool_call_end|>",
    "lfm25": "<|tool_call_start|>[{}]<|tool_call_end|>",
    "llama4": "[{}]",
    "olmo3": "<function_calls>{}</function_calls>",
}
PYTHON_CALLS = [
    ("write(path='/tmp/a.py', content='# Hello, world!')", {"path": "/tmp/a.py", "content": "# Hello, world!"}),
    ("write(longitude=-74.0046539)", {"longitude": -74.0046539}),
    ("write(size=(800, 600))", {"size": [800, 600]}),
    ('write(command=\'grep -F "]" log.txt\')', {"command": 'grep -F "]" log.txt'}),
    ("write(command='cat > f.py << EOF\nx = 1\nEOF')", {"command": "cat > f.py << EOF\nx = 1\nEOF"}),
    ("write(from=1)", {"from": 1}),
    ("write(class='from=1', import=True, x=\"in='a'\")", {"class": "from=1", "import": True, "x": "in='a'"}),
    ("write(queries=['a, b', 'c'])", {"queries": ["a, b", "c"]}),
    ("write(deep={'k': [1, {'l': None}]})", {"deep": {"k": [1, {"l": None}]}}),
    (" write(x=True)", {"x": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "case"), list(product(PYTHONIC, PYTHON_CALLS)))
def test_python_style_calls_are_read_exactly_or_reported(name, case):
    """Reports 4 and 5. Text that is not Python's syntax is malformed; it is never dropped or changed."""
    text, arguments = case
    message = FORMATS[name]().read(FRAMES[name].format(text), [WRITE])
    if message.malformed:
        assert not message.tool_calls
        assert "\n" in text, message.malformed
        return
    assert calls_of(message) == [("write", arguments)]


@pytest.mark.parametrize("name", PYTHONIC)
def test_parameters_with_names_of_python_keywords_are_written_and_read(name):
    """Report 5."""
    tool = ToolSpec(
        "mail", "", {"type": "object", "properties": {"from": {"type": "string"}, "in": {"type": "string"}}}
    )
    call = ToolCall("mail", '{"from": "a=\'b\'", "in": "x, to=\'y\'"}')
    form = FORMATS[name]()
    message = form.read(form.write(assistant("", call), [tool]), [tool])
    assert (calls_of(message), message.malformed) == (calls_of(assistant("", call)), ())


PARAMETERS = {name: form for name in NAMES if isinstance(form := FORMATS[name](), Parameters)}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("both", [False, True])
def test_a_wrong_closing_tag_does_not_hide_the_next_parameter(name, both):
    """Report 6: the parameter that follows is not silently part of the string before it."""
    form = PARAMETERS[name]
    closing = form.parameter.partition("{value}")[2].strip()
    turn = form.write(assistant("", ToolCall("write", '{"path": "x", "content": "y"}')), [WRITE])
    message = form.read(turn.replace(closing, "</wrong>", 2 if both else 1), [WRITE])
    assert not message.tool_calls
    assert message.malformed


@pytest.mark.parametrize("name", PARAMETERS)
def test_text_like_the_opening_of_another_parameter_is_kept(name):
    """Report 6: if the other parameter is in the call, or the tool does not declare it."""
    form = PARAMETERS[name]
    opening = form.parameter.partition("{value}")[0].strip().replace("{type}", "string")
    for key in ("content", "other"):
        if form.whole_markers:
            continue  # a value of this format contains no marker
        path = f"see {opening.replace('{key}', key)} there"
        try:
            turn = form.write(assistant("", ToolCall("write", json.dumps({"path": path, "content": "y"}))), [WRITE])
        except ValueError:
            continue
        ((_, got),) = calls_of(form.read(turn, [WRITE]))
        assert got == {"path": path, "content": "y"}


REAL = real_templates()
_QUICK_TEMPLATES = ["GLM-4.6", "moonshotai-Kimi-K2", "Qwen3-Coder"]


def chat_of(name):
    tokenizer = real_tokenizer(name, REAL[name])
    try:
        return Chat(tokenizer, FORMATS[detect_tool_call_format(tokenizer)]())
    except PolicyError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", mostly_slow(sorted(REAL), quick=_QUICK_TEMPLATES))
def test_tool_result_is_rendered_for_any_shape_of_content(name):
    """Report 7: the model sees the result, also if the template expects parts."""
    chat = chat_of(name)
    opened = chat.open([user("x")], [WRITE])
    sampled = chat.write(assistant("", CALL), [WRITE])
    following = chat.extend(opened, sampled, [tool_result("15 degrees", call_id="call_0_0")])
    rendered = chat.tokenizer.decode(following.new.ids, skip_special_tokens=False)
    assert rendered.count("15 degrees") == 1


@pytest.mark.parametrize("name", mostly_slow(sorted(REAL), quick=_QUICK_TEMPLATES))
def test_control_tokens_in_a_message_and_a_result_stay_text(name):
    """Report 9: the stop tokens of the template itself, quoted by a user and by a tool."""
    chat = chat_of(name)
    quoted = " ".join(chat.tokenizer.decode([i], skip_special_tokens=False) for i in sorted(chat.stop_ids))
    special = chat._special_ids

    def control_tokens(text):
        opened = chat.open([user(text)], [WRITE])
        sampled = chat.write(assistant("", CALL), [WRITE])
        following = chat.extend(opened, sampled, [tool_result(text, call_id="call_0_0")])
        return [i for i in following.ids if i in special]

    assert control_tokens(f"quoted: {quoted}") == control_tokens("quoted: nothing")
