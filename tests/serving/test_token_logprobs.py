"""Log-probs list each sampled token with its bytes: parts of characters, special tokens, and the most likely
alternatives."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support.served_policy import HI, Scripted, build_assembly, played
from whetstone.chat import Message, Text

TEXTS = ["naïve café", "🙂👍🏽", "日本語", "<tool_call> as text", "a\u0301b \n\t", "𝔘𝔫𝔦"]


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def joined(entries):
    return b"".join(bytes(entry.bytes) for entry in entries)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_are_those_of_the_text(assembly, text, streamed):
    """Split each character into tokens of a vocabulary of 300; every token has one entry, including the last one."""
    tokenizer = assembly.chat.tokenizer
    ids = assembly.chat.write(Message("assistant", (Text(text),)), ())
    end = tokenizer.decode([ids[-1]], skip_special_tokens=False)

    async def work(served):
        client = served.client()
        body = {"model": "tiny", "messages": HI, "logprobs": True, "stream": streamed}
        answer = await client.chat.completions.create(**body)
        if streamed:
            chunks = [chunk async for chunk in answer]
            logged = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
            chat = [entry for entries in logged for entry in entries]
        else:
            chat = answer.choices[0].logprobs.content
        body = {"model": "tiny", "input": "hi", "include": ["message.output_text.logprobs"], "stream": streamed}
        answer = await client.responses.create(**body)
        if streamed:
            answer = [event async for event in answer][-1].response
        body = {"model": "tiny", "prompt": "hi", "logprobs": 0, "max_tokens": 100, "stream": streamed}
        completion = await client.completions.create(**body)
        if streamed:
            completion = [chunk async for chunk in completion][-1]
        return chat, answer.output[0].content[0].logprobs, completion.choices[0].logprobs

    line = Message("assistant", (Text(text),))
    chat, response, completion = played(assembly, work, engine=Scripted(assembly, *[line] * 3))
    for entries in (chat, response):
        assert joined(entries) == (text + end).encode()
        assert len(entries) == len(ids)
    assert len(completion.tokens) == len(completion.token_logprobs) == len(completion.text_offset) == len(ids)
    assert completion.text_offset[-1] == len(text)
    assert b"".join(bytes_named(token) for token in completion.tokens) == (text + end).encode()


def bytes_named(token):
    """Return the bytes of a token of `/v1/completions`."""
    if not token.startswith("bytes:"):
        return token.encode()
    return bytes(int(pair, 16) for pair in token.removeprefix("bytes:").split("\\x")[1:])


@pytest.mark.parametrize("most", range(1, 5))
def test_half_a_character_has_its_own_bytes(assembly, most):
    async def work(served):
        answer = await served.client().chat.completions.create(
            model="tiny", messages=HI, logprobs=True, max_tokens=most
        )
        return answer.choices[0]

    choice = played(assembly, work, engine=Scripted(assembly, Message("assistant", (Text("🙂"),))))
    assert joined(choice.logprobs.content) == "🙂".encode()[:most]
    assert choice.finish_reason == "length"
    assert joined(choice.logprobs.content).decode(errors="replace") == choice.message.content


def test_most_likely_tokens_have_their_own_bytes_and_none_is_dropped(assembly):
    """Use a random model, whose tokens are about equally likely, so parts of characters are among the top twenty."""

    async def work(served):
        client = served.client()
        answer = await client.chat.completions.create(
            model="tiny", messages=HI, logprobs=True, top_logprobs=20, max_tokens=30, temperature=2
        )
        completion = await client.completions.create(
            model="tiny", prompt="hi", logprobs=5, max_tokens=30, temperature=2
        )
        return answer.choices[0].logprobs.content, completion.choices[0].logprobs

    entries, completion = played(assembly, work)
    for entry in entries:
        alternatives = [bytes(top.bytes) for top in entry.top_logprobs]
        assert len(alternatives) == len(set(alternatives)) == 20
        assert all(
            piece.decode(errors="replace") == top.token
            for piece, top in zip(alternatives, entry.top_logprobs, strict=True)
        )
    assert {len(tops) for tops in completion.top_logprobs} == {5}


def sentencepiece_tokenizer():
    """Return a tokenizer in the style of Llama 2: U+2581 for a space, bytes for unknown characters."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "H", "e", "l", "o", "▁H", "él", "ö"]
    vocabulary = Tokenizer(models.BPE({piece: id for id, piece in enumerate(pieces)}, [("▁", "H")], byte_fallback=True))
    vocabulary.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    vocabulary.decoder = decoders.Sequence(steps)
    vocabulary.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="</s>")


@pytest.mark.parametrize("text", ["Hello", "Hello Hello", "é 🙂 H", "ö"])
def test_bytes_of_sentencepiece_tokens_are_those_of_the_text(text):
    from whetstone.chat.token_bytes import TokenBytes

    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = TokenBytes(tokenizer).split_tokens(ids)
    assert b"".join(pieces).decode(errors="replace") == tokenizer.decode(ids)
    assert len(pieces) == len(ids)


def test_offset_of_a_token_is_that_of_its_character():
    from whetstone.chat.token_bytes import text_offsets

    assert text_offsets([b"a", "é".encode()[:1], "é".encode()[1:], b"b"]) == [0, 1, 1, 2]
