"""Players of an evaluation: scripts and people."""

import asyncio

import pytest

from whetstone.assembly.players import build_player, is_player
from whetstone.chat import assistant, user
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.rollout import ModelActor


@pytest.mark.parametrize(
    ("name", "expected"),
    [("expert", True), ("person", True), ("mine:play", True), ("http://host:8000/v1", False), ("runs/demo", False)],
)
def test_names_of_players(name, expected):
    assert is_player(name) is expected


def test_existing_folder_is_a_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "expert").mkdir()
    assert not is_player("expert")


class Components:
    """The chat of an evaluation; a person needs nothing else."""

    chat = None


def ask_person(monkeypatch, line):
    def read(prompt):
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", read)
    actor = build_player(Components(), "person")
    assert isinstance(actor, ModelActor)
    return asyncio.run(actor.model.answer((user("Which?"), assistant("a"), user("And now?"))))


def test_person_writes_a_text_or_a_call(monkeypatch, capsys):
    assert ask_person(monkeypatch, "Rome") == assistant("Rome")
    (call,) = ask_person(monkeypatch, '/call find {"key": 1}').tool_calls
    assert (call.name, call.arguments) == ("find", '{"key": 1}')
    assert capsys.readouterr().err == "user: And now?\n" * 2  # only new messages


def test_person_who_leaves_gives_no_answer(monkeypatch):
    with pytest.raises(InfrastructureError, match="the person left"):
        ask_person(monkeypatch, None)


def test_unknown_function_is_refused():
    with pytest.raises(RecipeError, match="no_such_module"):
        build_player(Components(), "no_such_module:play")
