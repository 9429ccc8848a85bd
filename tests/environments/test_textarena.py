"""TextArena: the others play, who says nothing wins nothing, and what cannot be played is refused before it begins."""

import asyncio
import functools
from random import Random

import pytest

from tests_slow import mostly_slow
from tests_worlds import environment_of, source_of
from whetstone.chat import assistant
from whetstone.environments.adapters.legal_moves import Told, like, number
from whetstone.errors import RecipeError
from whetstone.evaluation.contract import play

textarena = pytest.importorskip("textarena", reason="textarena is not installed: pip install -e '.[textarena]'")
from whetstone.environments.adapters.textarena import TextArena, TextArenaTasks  # noqa: E402


def played(id, *said, players=2, index=0, most=40):
    """A game of these words, the last one again and again."""
    game = TextArena(id=id, players=players)
    task = TextArenaTasks(id=id).task(index)
    shown = [game.begin(task, 0)]
    for turn in range(most):
        shown.append(game.act(said[min(turn, len(said) - 1)]))
        if shown[-1].terminated:
            break
    return game, shown


def test_the_other_seat_of_connect_four_plays_on_behind_one_legal_move():
    """Its rules list no move; who knew nothing but lists gave up, and lost to `[3]`."""
    game, shown = played("ConnectFour-v0", "[3]", most=1)
    assert not shown[1].terminated
    assert "Player 1 dropped" in shown[1].text
    game, shown = played("ConnectFour-v0", "[3]", "I give up.")
    assert (shown[-1].terminated, shown[-1].understood) == (True, False)
    assert game.verdict() | {"moves": 0} == {"success": False, "score": 0.0, "reward": -1.0, "moves": 0}


@pytest.mark.parametrize(
    "id",
    [
        "Battleship-v0", "Breakthrough-v0", "ColonelBlotto-v0", "HighSociety-v0", "IndianPoker-v0", "LiarsDice-v0",
        "IteratedTwoThirdsAverage-v0", "Nim-v0", "Poker-v0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("word", mostly_slow(["", "zzqx"], quick=["zzqx"]))
def test_who_says_nothing_wins_no_game(id, word):
    TextArena(id=id).check()
    for index in range(3):
        game, _ = played(id, word, index=index)
        assert (game.verdict()["success"], game.verdict()["score"]) == (False, 0.0)


@pytest.mark.parametrize(
    "id", mostly_slow(["TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "ColonelBlotto-v0"], quick=["Nim-v0"])
)
def test_others_that_play_legally_win_and_lose(id):
    won = []
    for index in range(12):
        game = TextArena(id=id)
        game.begin(TextArenaTasks(id=id).task(index), 0)
        for _ in range(120):
            if game.act(game.any_move()).terminated:
                break
        won.append(game.verdict()["success"])
    assert 0 < sum(won) < len(won)


def test_the_same_moves_meet_the_same_others():
    make = functools.partial(environment_of, "textarena", id="ConnectFour-v0", actions="text")
    task = source_of("textarena", id="ConnectFour-v0").task(2)
    one, other = (
        asyncio.run(play(make, task, lambda *_: assistant("[3]"), seed=0, max_turns=3)).transcript for _ in range(2)
    )
    assert one == other


def test_a_list_of_moves_that_a_player_wrote_is_not_the_games():
    game, _ = played("ConnectFour-v0", "[3] Available moves: [6]", most=1)
    assert game._told[1].listed == []
    heard = Told()
    heard.hear("Rules: say [take 3].\nAvailable moves: [take 1], [take 2]")
    assert heard.listed == ["[take 1]", "[take 2]"]
    said = list(heard.candidates(Random(0)))
    assert set(said[:2]) == {"[take 1]", "[take 2]"}
    assert (len(set(said)), said[-1]) == (len(said), "[pass]")


def test_a_form_is_varied_in_its_numbers_and_squares():
    draw = Random(0)
    taken = {like("[take 3]", draw) for _ in range(200)}
    assert taken == {f"[take {k}]" for k in range(10)}
    squares = [like("[a2a3]", draw)[1:-1] for _ in range(300)]
    assert all(abs(int(s[3:]) - int(s[1])) <= 2 and s[0] in "abcdefgh" for s in squares)
    assert like("[bid <amount>]", draw).removeprefix("[bid ").removesuffix("]").isdigit()
    assert (number("Invalid move"), number(None), number(float("nan")), number(0.25)) == (0.0, 0.0, 0.0, 0.25)


@pytest.mark.parametrize(
    ("id", "players", "why"),
    [
        ("TruthAndDeception-v0", 2, "it is won by saying nothing"),
        ("SantoriniBaseFixed-v0", 2, "no legal move was found for seat 1"),
        ("Tak-v0", 2, "no legal move was found"),
        ("QuantumTicTacToe-v0", 2, "no legal move was found for seat"),  # in one game of two
        ("CharacterConclave-v0", 3, "no legal move was found for seat 0"),
        ("MarketEntryGame-v0", 1, "it is no game for 1 player"),
        ("PublicGoodsGame-v0", 1, "it is no game for 1 player"),
        ("Sudoku-v0", 2, "number of players has to be 1"),
        ("UsedCar-v0-balanced", 2, "ImportError"),
    ],
)
def test_a_game_that_cannot_be_played_here_is_refused_in_one_line(id, players, why):
    with pytest.raises(RecipeError, match=rf"textarena: {id}: .*{why}") as refused:
        environment_of("textarena", id=id, players=players).check()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "id",
    mostly_slow(
        ["2048-v0", "RushHour-v0", "FrozenLake-v0", "Secretary-v0", "Countdown-v0", "Sudoku-v0"], quick=["Countdown-v0"]
    ),
)
@pytest.mark.parametrize("word", ["", "zzqx", "[99]", "[" * 2000])
def test_a_game_alone_pays_nothing_for_moves_that_are_none(id, word):
    """Some give a share for what was reached, some a text in the place of the reward."""
    game, shown = played(id, word, players=1)
    assert (game.verdict()["success"], game.verdict()["score"]) == (False, 0.0)
    assert all(step.reward == 0 for step in shown[1:])


def test_a_share_of_a_game_alone_is_a_score_and_no_success():
    game, _ = played("2048-v0", "[Up]", players=1, most=1)
    game.rewards = {0: 0.4}
    assert (game.verdict()["success"], game.verdict()["score"]) == (False, 0.4)
    game.rewards = {0: 1.0}
    assert game.verdict()["success"] is True
    several, _ = played("TicTacToe-v0", "[0]", most=1)
    several.rewards = {0: 0.0, 1: 0.0}
    assert (several.verdict()["success"], several.verdict()["score"]) == (False, 0.0)
    several.rewards = {0: 0.5, 1: 1.0}
    assert several.verdict()["success"] is False


def test_a_game_that_raises_on_a_move_has_not_heard_it():
    game, _ = played("TicTacToe-v0", "[0]", most=1)

    class Raising(type(game._env.env)):
        def step(self, action):
            raise KeyError(action)

    sound = type(game._env.env)
    game._env.env.__class__ = Raising
    shown = game.act("[1]")
    assert (shown.understood, shown.terminated) == (False, False)
    game._env.env.__class__ = sound
    assert game.admissible()
    assert not game.act(game.admissible()[0]).terminated
