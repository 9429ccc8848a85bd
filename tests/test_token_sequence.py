"""Sequences with equal ids and different media share nothing; text-only sequences cost nothing more."""

import asyncio

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from support.models import random_model
from whetstone.errors import EngineError, PolicyError
from whetstone.inference import EngineCapabilities, GenerateRequest, LocalEngine, Sampling, SGLangEngine, VLLMEngine
from whetstone.inference.kv_slots import BLOCK as ROW_BLOCK
from whetstone.inference.kv_slots import KVSlots
from whetstone.learning.packing import pack_segments
from whetstone.learning.prefix_tree import build_prefix_trees
from whetstone.learning.token_outputs import TokenForward
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.scaling.routing import BLOCK as ROUTE_BLOCK
from whetstone.scaling.routing import SentPrefixes, hash_prefixes
from whetstone.trajectory import Author, Media, Segment, Tokens, TokenSequence

DIGESTS = st.sampled_from(["cat", "dog", "owl"])


@st.composite
def media_of(draw, length):
    """Sample media that fit into `length` tokens."""
    media, end = [], 0
    while end < length and draw(st.booleans()):
        start = draw(st.integers(end, length - 1))
        media.append(Media(start, draw(st.integers(1, min(6, length - start))), draw(DIGESTS)))
        end = media[-1].end
    return tuple(media)


@st.composite
def sequences(draw, min_size=0, max_size=40):
    ids = draw(st.lists(st.integers(0, 5), min_size=min_size, max_size=max_size))
    return TokenSequence(ids, draw(media_of(len(ids))))


@st.composite
def twins(draw):
    """Sample two sequences of equal ids whose media differ."""
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=120))
    one, other = (TokenSequence(ids, draw(media_of(len(ids)))) for _ in range(2))
    assume(one.media != other.media)
    return one, other


def answered(tokens):
    """Return a segment of a prompt and one token to train."""
    columns = Tokens.concatenate([Tokens.from_ids(tokens, Author.ENVIRONMENT), Tokens.from_ids([7], Author.EXPERT)])
    return Segment("t", 0, columns, (*(False,) * len(tokens), True), (0,) * len(columns))


def first_difference(one, other):
    """Return the number of equal tokens before the first token of which the media differ."""

    def medium(tokens, place):
        return next(((m.digest, place - m.start, m.length) for m in tokens.media if m.start <= place < m.end), None)

    return next(i for i in range(len(one)) if medium(one, i) != medium(other, i))


@given(st.lists(st.integers(0, 2**31)))
def test_keys_of_text_are_the_tuple_of_ids_itself(ids):
    tokens = TokenSequence(ids)
    assert tokens.keys is tokens.ids
    assert TokenSequence(tokens.ids).ids is tokens.ids


@given(twins())
def test_sequences_with_different_media_are_different(pair):
    one, other = pair
    assert one != other
    assert one.keys[: first_difference(one, other)] == other.keys[: first_difference(one, other)]
    assert len({one, other}) == 2


@given(sequences(), sequences())
def test_concatenation_and_slices_keep_media_at_their_tokens(one, other):
    both = one + other
    assert (both.ids, both.keys) == (one.ids + other.ids, one.keys + other.keys)
    assert (both[: len(one)], both[len(one) :]) == (one, other)
    assert both.startswith(one)
    assert both[len(one) :].media == other.media
    assert hash(both) == hash(TokenSequence(both.ids, both.media))


@given(sequences(), sequences())
def test_startswith_compares_ids_and_media(one, other):
    naive = len(other) <= len(one) and one.keys[: len(other)] == other.keys
    assert one.startswith(other) == naive


@given(sequences())
def test_keys_of_media_are_64_bit_integers_and_no_token_ids(tokens):
    inside = {place for m in tokens.media for place in range(m.start, m.end)}
    for place, (token, key) in enumerate(zip(tokens.ids, tokens.keys, strict=True)):
        assert key == token if place not in inside else 2**62 <= key < 2**63


@pytest.mark.parametrize(
    "media", [[Media(0, 3, "cat")], [Media(1, 1, "cat"), Media(0, 1, "dog")], [Media(0, 0, "cat")], [Media(2, 1, "a")]]
)
def test_media_outside_the_tokens_are_refused(media):
    with pytest.raises(ValueError, match="spans must be in order, apart and within"):
        TokenSequence([1, 2], media)


def test_a_slice_that_cuts_a_medium_is_refused():
    with pytest.raises(ValueError, match="cut the media at tokens 1 to 3"):
        TokenSequence([1, 2, 2, 3], [Media(1, 2, "cat")])[:2]


@given(twins(), st.booleans(), st.booleans())
def test_rows_share_no_token_from_the_first_different_medium_on(pair, same_episode, share):
    one, other = pair
    rows = KVSlots(3, share=share)
    row, _ = rows.allocate_slot("a", one.keys, one.keys, len(one))
    row.keys, row.computed_keys = list(one.keys), list(one.keys)
    rows.mark_idle(row)
    taken, copied = rows.allocate_slot("a" if same_episode else "b", other.keys, other.keys, len(other))
    assert len(taken.keys) <= first_difference(one, other)
    assert copied is None or copied[1] <= first_difference(one, other)


@given(twins())
def test_prefix_trees_and_routes_split_at_the_first_different_medium(pair):
    one, other = pair
    place = first_difference(one, other)
    segments = [Tokens.from_ids(each, Author.ENVIRONMENT).sequence.keys for each in pair]
    for node in build_prefix_trees([torch.tensor(keys).numpy() for keys in segments], min_saved_tokens=1):
        assert node.leaf or node.end <= place
    sent = SentPrefixes()
    sent.note(hash_prefixes(one.keys))
    assert sent.count_matched_tokens(hash_prefixes(other.keys)) <= place
    assert sent.count_matched_tokens(hash_prefixes(one.keys)) == len(one) // ROUTE_BLOCK * ROUTE_BLOCK


@given(twins(), st.booleans(), st.integers(1, 300))
def test_packed_segments_keep_their_media_and_share_none_of_another(pair, share, budget):
    batch, computed = [answered(tokens) for tokens in pair], 0
    for micro in pack_segments(batch, token_budget=budget, device=torch.device("cpu"), share=share):
        placed = set()
        for m in micro.media:
            first, *others = micro.positions[m.start : m.end].tolist()
            assert others == list(range(first + 1, first + m.length))
            placed.add((first, m.length, m.digest))
        assert placed == {(m.start, m.length, m.digest) for i in micro.indices for m in pair[i].media}
        computed += len(micro.ids)
    assert computed >= 2 * len(pair[0]) - first_difference(*pair)


class Blind(LocalEngine):
    """Accept media without passing them to the model, to count computed tokens."""

    capabilities = EngineCapabilities(media=True)


@pytest.fixture(scope="module")
def model():
    return random_model("llama")


def test_an_engine_computes_a_prompt_with_another_image_again(model):
    ids = [3] * (3 * ROW_BLOCK)
    cat, dog = (TokenSequence(ids, [Media(ROW_BLOCK, 4, digest)]) for digest in ("cat", "dog"))

    async def cached(engine, tokens, episode):
        before = engine.statistics.cached_tokens
        await engine.generate(GenerateRequest(tokens, Sampling(1), episode))
        return engine.statistics.cached_tokens - before

    async def main():
        engine = Blind(model, context_length=96, rows=4)
        try:
            requests = [(cat, "a"), (cat, "b"), (dog, "c"), (dog, "b"), (TokenSequence(ids), "d")]
            return [await cached(engine, *each) for each in requests]
        finally:
            await engine.close()

    assert asyncio.run(main()) == [0, len(ids) - 1, ROW_BLOCK, len(ids) - 1, ROW_BLOCK]


def test_engines_of_text_refuse_media_in_one_line(model):
    prompt = TokenSequence([1, 2, 3], [Media(1, 1, "cat")])
    engines = [
        LocalEngine(model, context_length=96),
        VLLMEngine(address="http://127.0.0.1:9"),
        SGLangEngine(address="http://127.0.0.1:9"),
        ReplicatedEngine([object()], capabilities=EngineCapabilities(), patience_seconds=1.0),
    ]
    for engine in engines:
        for call in (engine.generate(GenerateRequest(prompt, Sampling(1), "a")), engine.score(prompt)):
            with pytest.raises(EngineError, match="an image at token 1, which this engine does not support") as refused:
                asyncio.run(call)
            assert "\n" not in str(refused.value)


def test_a_learner_of_text_refuses_media_in_one_line(model):
    batch = [answered(TokenSequence([1, 2, 3], [Media(1, 1, "cat")]))]
    (micro,) = pack_segments(batch, token_budget=100, device=torch.device("cpu"))
    with pytest.raises(PolicyError, match=r"an image at token 1 of its batch, and .* reads text only"):
        TokenForward(model)(micro, 1.0)


def test_slices_with_another_step_are_refused():
    tokens = Tokens.from_ids([1, 2, 3, 4], Author.ENVIRONMENT)
    assert tokens[1:3].ids == (2, 3)
    for sequence in (tokens, TokenSequence((1, 2, 3, 4))):
        with pytest.raises(ValueError, match="step 1, got 2"):
            sequence[::2]
