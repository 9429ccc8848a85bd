"""Grammars of required calls accept the calls that a chat writes, and each text that they permit is a valid call."""

import asyncio
import json

import pytest

from support.chat_templates import real_templates, real_tokenizer
from support.constrained_decoding import JSON_FORMATS, TAG_FORMATS, TOOLS, engine_for, made_with, validate
from whetstone.chat import FORMATS, Chat, Message, ToolCall, ToolSpec, detect_tool_call_format
from whetstone.chat.call_grammar import CallGrammarError, call_grammar, format_name
from whetstone.errors import PolicyError
from whetstone.inference import GenerateRequest, Sampling
from whetstone.serving.constrained_decoding import Schemas
from whetstone.trajectory import TokenSequence

pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'whetstone-rl[serve]'")
pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install jsonschema")


def test_text_parameter_is_refused_if_its_schema_restricts_the_text():
    chat = made_with("qwen3_coder").chat
    for schema, word in (({"type": "string", "maxLength": 5}, "maxLength"), ({"type": ["string", "integer"]}, "types")):
        tool = ToolSpec("say", "", {"type": "object", "properties": {"text": schema}})
        with pytest.raises(CallGrammarError, match=f'format qwen3_coder .* parameter "text" has .*{word}'):
            call_grammar(chat, [tool], offered=[tool])


REFUSED = ("lfm2", "lfm25", "gemma4", "minimax_m3", "deepseek_v3", "deepseek_v4", "seed", "minicpm", "command_r_plus")
"""Formats of which some template is refused for `TOOLS`; each message names the reason."""


def test_unknown_format_of_a_string_is_an_annotation_unless_it_is_data():
    chat = made_with("hermes").chat
    properties = {"format": {"type": "string", "format": "password"}, "kind": {"const": {"format": "pdf"}}}
    tool = ToolSpec("say", "", {"type": "object", "properties": properties, "required": ["format", "kind"]})
    grammar = call_grammar(chat, [tool], offered=[tool])
    constraint = Schemas(chat.tokenizer, chat.stop_ids).call_constraint(grammar)
    call = ToolCall("say", json.dumps({"format": "x", "kind": {"format": "pdf"}}))
    ids = chat.encode(chat.write_turn(Message("assistant", (), (call,)), [tool])[0])
    assert all(constraint.allowed(ids[:place])[token] for place, token in enumerate(ids))


def walk(chat, schemas, grammar, engine, most=3000):
    """Sample one turn under a grammar; (its tokens, whether it ended)."""
    constraint = schemas.call_constraint(grammar)
    sampling = Sampling(most, stop_ids=chat.stop_ids, constraint=constraint)
    answer = asyncio.run(engine.generate(GenerateRequest(TokenSequence(), sampling, "a")))
    return answer.tokens, answer.finish == "stop"


def tool_specs():
    return [ToolSpec(name, "A tool.", schema) for name, schema in TOOLS]


@pytest.mark.parametrize("format", [*JSON_FORMATS, *TAG_FORMATS])
def test_grammar_accepts_the_calls_that_the_chat_writes(format):
    """A call with other valid arguments is allowed token by token, so the grammar is not narrower than it must be."""
    chat, tools = made_with(format).chat, tool_specs()
    grammar = call_grammar(chat, tools, offered=tools)
    arguments = [
        ("book_room", {"floor": 3, "kind": "single"}),
        ("book_room", {"floor": -2, "kind": "double", "smoking": False, "extras": ["bath", "view"]}),
        ("find_person", {"name": "Åsa", "age": None}),
        ("find_person", {"age": 12}),
        ("stop", {}),
    ]
    schemas = Schemas(chat.tokenizer, chat.stop_ids)
    for name, values in arguments:
        text, stop_id = chat.write_turn(Message("assistant", (), (ToolCall(name, json.dumps(values)),)), tools)
        constraint = schemas.call_constraint(grammar)
        ids = (*chat.encode(text), stop_id)
        for place, token in enumerate(ids):
            allowed = constraint.allowed(ids[:place])
            assert allowed[token] or allowed.sum() == 1, (format, name, text, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(real_templates()))
def test_required_call_is_valid_in_the_template_of_a_real_model(name):
    tokenizer = real_tokenizer(name, real_templates()[name])
    try:
        chat = Chat(tokenizer, FORMATS[detect_tool_call_format(tokenizer)]())
    except PolicyError as error:
        pytest.skip(f"the template carries no conversation: {error}")
    tools = tool_specs()
    try:
        grammar = call_grammar(chat, tools, offered=tools)
    except CallGrammarError as error:
        assert format_name(chat.format) in REFUSED
        pytest.skip(str(error))
    schemas = Schemas(tokenizer, chat.stop_ids)
    for seed in range(3):
        tokens, is_over = walk(chat, schemas, grammar, engine_for(chat, seed))
        assert is_over
        message = chat.read(tokens, tools, turn=0)
        assert message.tool_calls
        assert not message.malformed
        assert not message.text.strip().replace("<think>", "").replace("</think>", "").strip()
        validate([(call.name, call.arguments) for call in message.tool_calls])
