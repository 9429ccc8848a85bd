"""A trajectory is shown as it was, and nothing in it does anything."""

import orjson

from tests_viewed import episode
from whetstone.chat.message import Image, Message, Text
from whetstone.policies import build_tiny
from whetstone.trajectory import Author, Judgement, Score, Tokens
from whetstone.trajectory_json import encoded_trajectory
from whetstone.viewing.shown import MOST_CHARACTERS, conversation, pieces


def row(trajectory):
    return orjson.loads(encoded_trajectory(trajectory))


def said(content):
    """The row of an episode that was asked this."""
    shown = episode("a", "t")
    object.__setattr__(shown, "opening", (Message("user", content),))
    return row(shown)


def test_turns_have_their_messages_tokens_calls_and_credit():
    told = conversation(row(episode("a", "t", reward=1.0)), None)
    first, last = told["turns"]
    assert [message["parts"][0]["text"] for message in told["opening"]] == ["Compute t"]
    assert first["message"]["calls"] == [{"name": "sum", "text": '{"a": 1}'}]
    assert [message["parts"][0]["text"] for message in first["observation"]] == ["41"]
    assert first["calls"] == [["sum", "ok", 0.1, False, 0.0]]
    assert (first["credit"], last["credit"]) == (0.0, 1.0)
    assert first["seconds"] == [0.5, 0.2, 0.3]
    assert last["message"]["parts"][0]["text"] == "42"


def test_each_token_has_what_is_stored_of_it():
    action = conversation(row(episode("a", "t")), None)["turns"][0]["action"]
    assert action["texts"] == ["#4 ", "#5 "]
    assert action["logprobs"] == [-0.5, -1.5]
    assert action["entropies"] == [0.25, 0.75]
    assert action["versions"] == [7, 7]
    assert action["trained"] == [True, True]
    assert conversation(row(episode("a", "t")), None)["turns"][0]["context"]["trained"] == [False, False, False]


def test_spliced_tokens_are_trained_where_their_log_prob_is_known():
    shown = episode("a", "t")
    tokens = Tokens((1, 2), (Author.INSERTED,) * 2, (-0.1, float("nan")), (-1, -1), (float("nan"),) * 2)
    object.__setattr__(shown.turns[0], "action", tokens)
    assert conversation(row(shown), None)["turns"][0]["action"]["trained"] == [True, False]


def test_the_pieces_of_a_text_are_the_text():
    tokenizer = build_tiny(["Compute 12 + 30"], hidden=8, heads=1, layers=1).tokenizer
    ids = tokenizer.encode("Compute 12 + 30", add_special_tokens=False)
    assert "".join(pieces(ids, tokenizer.backend_tokenizer)) == "Compute 12 + 30"
    assert pieces([10**6], tokenizer.backend_tokenizer) == ["#1000000 "]


def test_terminal_escapes_and_what_turns_the_direction_of_writing_are_gone():
    told = conversation(said((Text("\x1b]0;title\x07a\u202eb\x00"),)), None)
    assert told["opening"][0]["parts"] == [{"text": "a�b�"}]


def test_a_long_output_is_cut_in_the_middle_and_whole_when_it_is_asked_for():
    long = said((Text("begin" + "x" * 10_000_000 + "end"),))
    (part,) = conversation(long, None)["opening"][0]["parts"]
    assert part["text"].startswith("begin")
    assert part["tail"].endswith("end")
    assert len(part["text"]) + len(part["tail"]) == MOST_CHARACTERS
    assert part["left_out"] == 10_000_008 - MOST_CHARACTERS
    (part,) = conversation(long, None, whole=True)["opening"][0]["parts"]
    assert len(part["text"]) == 10_000_008


def test_an_image_of_the_run_is_shown_and_one_from_elsewhere_is_only_named():
    inside, outside = "data:image/png;base64,AAAA", "https://example.org/pixel.png"
    vector = "data:image/svg+xml;base64,AAAA"
    told = conversation(said(tuple(map(Image, (inside, outside, vector)))), None)
    parts = told["opening"][0]["parts"]
    assert parts[0] == {"image": inside}
    assert parts[1] == {"text": f"[image, not in the run: {outside}]"}
    assert "image" not in parts[2]


def test_a_row_of_another_version_is_shown_as_far_as_it_goes():
    told = conversation({"id": "old", "turns": [{"action": {"ids": [1]}}]}, None)
    assert told["turns"][0]["action"]["texts"] == ["#1 "]
    assert told["turns"][0]["message"] is None


def test_what_judges_said_stands_in_it_as_text():
    judged = episode("a", "t")
    said = {"reason": "no \x1b[31msource", "met": False}
    object.__setattr__(judged, "score", Score(0.0, judgements=(Judgement("Is it so?", said),)))
    told = conversation(row(judged), None)["judgements"]
    assert told == [{"question": "Is it so?", "said": {"reason": "no source", "met": False}}]
    assert conversation({"id": "a", "score": {"judgements": [{}]}}, None)["judgements"][0]["said"] == {}
