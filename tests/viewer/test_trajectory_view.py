"""A trajectory is shown unchanged, and nothing in it is executed."""

import orjson

from support.viewed_runs import episode
from whetstone.chat.message import Image, Message, Text
from whetstone.policies import build_tiny
from whetstone.trajectory import Author, Judgement, Score, Tokens
from whetstone.trajectory_json import encode_trajectory
from whetstone.viewer.trajectory_view import MAX_CHARACTERS, convert_trajectory, token_texts


def row(trajectory):
    return orjson.loads(encode_trajectory(trajectory))


def row_with_prompt(content):
    """Return the row of an episode with this prompt."""
    trajectory = episode("a", "t")
    object.__setattr__(trajectory, "opening", (Message("user", content),))
    return row(trajectory)


def test_turns_have_messages_tokens_calls_and_credit():
    view = convert_trajectory(row(episode("a", "t", reward=1.0)), None)
    first, last = view["turns"]
    assert [message["parts"][0]["text"] for message in view["opening"]] == ["Compute t"]
    assert first["message"]["calls"] == [{"name": "sum", "text": '{"a": 1}'}]
    assert [message["parts"][0]["text"] for message in first["observation"]] == ["41"]
    assert first["calls"] == [["sum", "ok", 0.1, False, 0.0]]
    assert (first["credit"], last["credit"]) == (0.0, 1.0)
    assert first["seconds"] == [0.5, 0.2, 0.3]
    assert last["message"]["parts"][0]["text"] == "42"


def test_each_token_has_its_stored_fields():
    action = convert_trajectory(row(episode("a", "t")), None)["turns"][0]["action"]
    assert action["texts"] == ["#4 ", "#5 "]
    assert action["logprobs"] == [-0.5, -1.5]
    assert action["entropies"] == [0.25, 0.75]
    assert action["versions"] == [7, 7]
    assert action["trained"] == [True, True]
    assert convert_trajectory(row(episode("a", "t")), None)["turns"][0]["context"]["trained"] == [False, False, False]


def test_spliced_tokens_are_trained_if_their_log_prob_is_known():
    trajectory = episode("a", "t")
    tokens = Tokens((1, 2), (Author.INSERTED,) * 2, (-0.1, float("nan")), (-1, -1), (float("nan"),) * 2)
    object.__setattr__(trajectory.turns[0], "action", tokens)
    assert convert_trajectory(row(trajectory), None)["turns"][0]["action"]["trained"] == [True, False]


def test_pieces_of_a_text_add_up_to_the_text():
    tokenizer = build_tiny(["Compute 12 + 30"], hidden=8, heads=1, layers=1).tokenizer
    ids = tokenizer.encode("Compute 12 + 30", add_special_tokens=False)
    assert "".join(token_texts(ids, tokenizer.backend_tokenizer)) == "Compute 12 + 30"
    assert token_texts([10**6], tokenizer.backend_tokenizer) == ["#1000000 "]


def test_terminal_escapes_and_direction_marks_are_removed():
    view = convert_trajectory(row_with_prompt((Text("\x1b]0;title\x07a\u202eb\x00"),)), None)
    assert view["opening"][0]["parts"] == [{"text": "a�b�"}]


def test_long_output_is_abbreviated_and_complete_on_request():
    long = row_with_prompt((Text("begin" + "x" * 10_000_000 + "end"),))
    (part,) = convert_trajectory(long, None)["opening"][0]["parts"]
    assert part["text"].startswith("begin")
    assert part["tail"].endswith("end")
    assert len(part["text"]) + len(part["tail"]) == MAX_CHARACTERS
    assert part["left_out"] == 10_000_008 - MAX_CHARACTERS
    (part,) = convert_trajectory(long, None, is_uncut=True)["opening"][0]["parts"]
    assert len(part["text"]) == 10_000_008


def test_image_of_the_run_is_shown_and_a_remote_one_only_named():
    inside, outside = "data:image/png;base64,AAAA", "https://example.org/pixel.png"
    vector = "data:image/svg+xml;base64,AAAA"
    view = convert_trajectory(row_with_prompt(tuple(map(Image, (inside, outside, vector)))), None)
    parts = view["opening"][0]["parts"]
    assert parts[0] == {"image": inside}
    assert parts[1] == {"text": f"[image, not in the run: {outside}]"}
    assert "image" not in parts[2]


def test_row_of_another_version_is_shown_with_its_fields():
    view = convert_trajectory({"id": "old", "turns": [{"action": {"ids": [1]}}]}, None)
    assert view["turns"][0]["action"]["texts"] == ["#1 "]
    assert view["turns"][0]["message"] is None


def test_judgements_are_shown_as_text():
    judged = episode("a", "t")
    judgement = {"reason": "no \x1b[31msource", "met": False}
    object.__setattr__(judged, "score", Score(0.0, judgements=(Judgement("Is it so?", judgement),)))
    judgements = convert_trajectory(row(judged), None)["judgements"]
    assert judgements == [{"question": "Is it so?", "said": {"reason": "no source", "met": False}}]
    assert convert_trajectory({"id": "a", "score": {"judgements": [{}]}}, None)["judgements"][0]["said"] == {}
