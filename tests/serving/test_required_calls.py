"""`tool_choice`: a required call is guaranteed and has valid arguments, a forbidden call is text, over every API."""

import json

import pytest

from tests_apis import REFUSED, WAYS, ask
from tests_constrained import RandomEngine, closing_tags
from tests_served import HI, Scripted, called, made, played
from tests_templates import real_templates, real_tokenizer
from whetstone.chat import FORMATS, Chat, Message, Text, ToolCall, ToolSpec, fitting_format
from whetstone.chat.call_grammar import CallGrammarError, call_grammar
from whetstone.errors import PolicyError
from whetstone.inference.protocol import EngineAbilities
from whetstone.serving.schemas import Schemas
from whetstone.trajectory import Author

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'whetstone-rl[serve]'")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install jsonschema")

ROOM = {
    "type": "object",
    "properties": {
        "floor": {"type": "integer", "minimum": -2, "maximum": 40},
        "kind": {"enum": ["single", "double"]},
        "smoking": {"type": "boolean"},
        "extras": {"type": "array", "items": {"enum": ["bath", "view"]}, "maxItems": 3},
    },
    "required": ["floor", "kind"],
}
PERSON = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/Name"}, "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    "required": ["age"],
    "$defs": {"Name": {"type": "string"}},
}
TOOLS = [("book_room", ROOM), ("find_person", PERSON), ("stop", {"type": "object", "properties": {}})]
SCHEMAS = dict(TOOLS)
JSON_FORMATS = ["hermes", "llama3", "mistral", "tool_calls", "deepseek_v31", "functionary_v31", "harmony", "react"]
TAG_FORMATS = ["qwen3_coder", "glm", "minimax_m2", "seed"]
OTHER_FORMATS = ["compact", "code", "tags", "lfm2", "gemma4"]
_MADE = {}


def made_with(format):
    if format not in _MADE:
        _MADE[format] = made(f"chat.format={format}", "policy.tiny.context_length=4096")
    return _MADE[format]


def engine_for(chat, seed=0):
    return RandomEngine(chat.tokenizer, seed, tags=closing_tags(chat.format))


def validate(calls):
    for name, arguments in calls:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(read)


@pytest.mark.parametrize("format", [*JSON_FORMATS, *TAG_FORMATS])
@pytest.mark.parametrize("choice", ["required", "book_room"])
def test_required_call_has_valid_arguments_in_every_api(format, choice):
    assembly = made_with(format)

    async def work(served):
        replies = [await ask(served, way, tools=TOOLS, choice=choice, max_tokens=2000) for way in WAYS]
        return replies, [episode.said[0] for episode in served.episodes]

    replies, records = played(assembly, work, engine=engine_for(assembly.chat))
    assert [reply.ended for reply in replies] == ["tool_calls"] * len(WAYS)
    for reply, record in zip(replies, records, strict=True):
        assert reply.calls
        assert not reply.text
        validate(reply.calls)
        if choice != "required":
            assert [name for name, _ in reply.calls] == [choice]
        assert [call.name for call in record.message.tool_calls] == [name for name, _ in reply.calls]
        assert not record.message.malformed


def test_required_call_of_a_model_is_recorded_with_the_log_probs_of_the_masked_distribution():
    assembly = made_with("hermes")

    async def work(served):
        reply = await ask(served, ("chat", False), tools=TOOLS[:1], choice="required", single=True, max_tokens=500)
        (episode,) = served.episodes
        return reply, episode.said[0].action

    reply, action = played(assembly, work)
    assert reply.ended == "tool_calls"
    validate(reply.calls)
    tokenizer = assembly.chat.tokenizer
    written = tokenizer.decode(action.ids, skip_special_tokens=False)
    assert written.startswith('<tool_call>\n{"name": "book_room", "arguments": {"floor": ')
    sampled = [p for p, author in zip(action.logprobs, action.authors, strict=True) if author is Author.POLICY]
    assert 0 < len(sampled) < len(action)
    assert all(p <= 0 for p in sampled)
    assert action.authors[0] is Author.INSERTED
    assert set(action.authors) == {Author.POLICY, Author.INSERTED}


@pytest.mark.parametrize("way", WAYS)
def test_one_call_is_made_if_parallel_calls_are_switched_off(way):
    for format in ("mistral", "tool_calls", "hermes", "qwen3_coder"):
        assembly = made_with(format)

        async def work(served):
            return await ask(served, way, tools=TOOLS, choice="required", single=True)

        async def free(served):
            return await ask(served, way, tools=[("add", {"type": "object"})], choice="auto", single=True)

        for seed in range(3):
            reply = played(assembly, work, engine=engine_for(assembly.chat, seed))
            assert len(reply.calls) == 1
        two = Message("assistant", (), (*called(a=1).tool_calls, *called(a=2).tool_calls))
        assert len(played(assembly, free, engine=Scripted(assembly, two)).calls) == 1


@pytest.mark.parametrize("format", ["hermes", "mistral", "llama3", "qwen3_coder", "compact", "harmony"])
@pytest.mark.parametrize(("tools", "choice"), [(TOOLS, "none"), ((), None)])
def test_forbidden_call_is_text_in_every_api(format, tools, choice):
    assembly = made_with(format)
    line = called("stop")
    written = assembly.chat.tokenizer.decode(assembly.chat.write(line, ())[:-1], skip_special_tokens=False)

    async def work(served):
        replies = [await ask(served, way, tools=tools, choice=choice) for way in WAYS]
        return replies, list(served.episodes)

    replies, episodes = played(assembly, work, engine=Scripted(assembly, *[line] * len(WAYS)))
    assert {reply.calls for reply in replies} == {()}
    assert {reply.ended for reply in replies} == {"stop"}
    assert {reply.text.strip() for reply in replies} == {written.strip()}
    assert not any(one.message.tool_calls or one.message.malformed for episode in episodes for one in episode.said)


@pytest.mark.parametrize("format", ["hermes", "mistral", "qwen3_coder", "harmony"])
def test_conversation_continues_after_a_call_that_was_text(format):
    assembly = made_with(format)

    async def work(served):
        client, messages = served.client(), list(HI)
        for _ in range(2):
            answer = await client.chat.completions.create(model="tiny", messages=messages)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content}, *HI]
        (episode,) = served.episodes
        return episode.trajectory()

    trajectory = played(assembly, work, engine=Scripted(assembly, called("stop"), Message("assistant", (Text("so"),))))
    assert [turn.opens_segment for turn in trajectory.turns] == [True, False]


@pytest.mark.parametrize("format", OTHER_FORMATS)
def test_format_without_a_grammar_is_refused_by_name(format):
    async def work(served):
        for way in WAYS:
            with pytest.raises(
                Exception, match=rf"format {format} cannot guarantee .*; use tool_choice auto"
            ) as raised:
                await ask(served, way, tools=TOOLS, choice="required")
            assert raised.value.status_code == 400

    assembly = made_with(format)
    played(assembly, work, engine=engine_for(assembly.chat))


def test_what_a_grammar_cannot_guarantee_is_refused_with_the_remedy():
    assembly = made_with("hermes")
    engine = engine_for(assembly.chat)
    unsupported = [("pick", {"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]})]
    cases = [
        ({"stop": ["x"], "tools": TOOLS}, "stop: .* leave it out"),
        ({"extra_body": {"logit_bias": {"5": -100}}, "tools": TOOLS}, "logit_bias: .*use values above -100"),
        ({"tools": unsupported}, "tool_choice: this schema cannot be followed"),
    ]

    async def work(served):
        for more, words in cases:
            with pytest.raises(REFUSED, match=words):
                await ask(served, ("chat", False), choice="required", **more)
        served.engine.abilities = EngineAbilities(constraints=False)
        with pytest.raises(REFUSED, match="tool_choice: this engine cannot constrain sampling; use tool_choice auto"):
            await ask(served, ("chat", False), choice="required", tools=TOOLS)

    played(assembly, work, engine=engine)


def test_text_parameter_is_refused_if_its_schema_restricts_the_text():
    chat = made_with("qwen3_coder").chat
    for schema, word in (({"type": "string", "maxLength": 5}, "maxLength"), ({"type": ["string", "integer"]}, "types")):
        tool = ToolSpec("say", "", {"type": "object", "properties": {"text": schema}})
        with pytest.raises(CallGrammarError, match=f'format qwen3_coder .* parameter "text" has .*{word}'):
            call_grammar(chat, [tool], offered=[tool])


def walk(chat, grammar, engine, most=3000):
    """Sample one turn under a grammar; (its tokens, whether it ended)."""
    import asyncio

    from whetstone.inference import Sampling

    constraint = Schemas(chat.tokenizer, chat.stop_ids).call_constraint(grammar)
    sampling = Sampling(most, stop_ids=chat.stop_ids, constraint=constraint)
    answer = asyncio.run(engine.generate((), sampling))
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
    for name, values in arguments:
        text, stop_id = chat.write_turn(Message("assistant", (), (ToolCall(name, json.dumps(values)),)), tools)
        constraint = Schemas(chat.tokenizer, chat.stop_ids).call_constraint(grammar)
        ids = (*chat.encode(text), stop_id)
        for place, token in enumerate(ids):
            allowed = constraint.allowed(ids[:place])
            assert allowed[token] or allowed.sum() == 1, (format, name, text, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(real_templates()))
def test_required_call_is_valid_in_the_template_of_a_real_model(name):
    tokenizer = real_tokenizer(name, real_templates()[name])
    try:
        chat = Chat(tokenizer, FORMATS[fitting_format(tokenizer)]())
    except PolicyError as error:
        pytest.skip(f"the template carries no conversation: {error}")
    tools = tool_specs()
    try:
        grammar = call_grammar(chat, tools, offered=tools)
    except CallGrammarError as error:
        pytest.skip(str(error))
    for seed in range(3):
        tokens, is_over = walk(chat, grammar, engine_for(chat, seed))
        assert is_over
        message = chat.read(tokens, tools, turn=0)
        assert message.tool_calls
        assert not message.malformed
        assert not message.text.strip().replace("<think>", "").replace("</think>", "").strip()
        validate([(call.name, call.arguments) for call in message.tool_calls])
