"""TextArena: scripted opponents, no reward for invalid moves, and refusal of unsupported games."""

import asyncio
import functools
from random import Random

import pytest

from support.environments import environment_of, source_of
from support.slow import mostly_slow
from whetstone.chat import assistant
from whetstone.environments.adapters.legal_moves import GameText, finite_reward, similar_move
from whetstone.errors import RecipeError
from whetstone.evaluation.environment_checks import play_with_policy

textarena = pytest.importorskip("textarena", reason="textarena is not installed: pip install -e '.[textarena]'")
from whetstone.environments.adapters.textarena import TextArena, TextArenaTasks  # noqa: E402


def play_words(id, *words, players=2, index=0, most=40):
    """Play a game with these words, repeating the last."""
    game = TextArena(id=id, players=players)
    task = TextArenaTasks(id=id).task(index)
    steps = [game.begin(task, 0)]
    for turn in range(most):
        steps.append(game.act(words[min(turn, len(words) - 1)]))
        if steps[-1].terminated:
            break
    return game, steps


def test_opponent_in_connect_four_plays_without_listed_moves():
    """Its rules list no moves; an opponent that only read lists gave up and lost to `[3]`."""
    game, steps = play_words("ConnectFour-v0", "[3]", most=1)
    assert not steps[1].terminated
    assert "Player 1 dropped" in steps[1].text
    game, steps = play_words("ConnectFour-v0", "[3]", "I give up.")
    assert (steps[-1].terminated, steps[-1].understood) == (True, False)
    assert game.verdict() | {"moves": 0} == {"success": False, "score": 0.0, "reward": -1.0, "moves": 0}


@pytest.mark.parametrize(
    "id",
    [
        "Battleship-v0", "Breakthrough-v0", "ColonelBlotto-v0", "HighSociety-v0", "IndianPoker-v0", "LiarsDice-v0",
        "IteratedTwoThirdsAverage-v0", "Nim-v0", "Poker-v0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("word", mostly_slow(["", "zzqx"], quick=["zzqx"]))
def test_invalid_words_win_no_game(id, word):
    TextArena(id=id).check()
    for index in range(3):
        game, _ = play_words(id, word, index=index)
        assert (game.verdict()["success"], game.verdict()["score"]) == (False, 0.0)


@pytest.mark.parametrize(
    "id", mostly_slow(["TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "ColonelBlotto-v0"], quick=["Nim-v0"])
)
def test_legal_opponents_win_and_lose(id):
    won = []
    for index in range(12):
        game = TextArena(id=id)
        game.begin(TextArenaTasks(id=id).task(index), 0)
        for _ in range(120):
            if game.act(game.any_move()).terminated:
                break
        won.append(game.verdict()["success"])
    assert 0 < sum(won) < len(won)


def test_equal_moves_have_equal_opponents():
    make = functools.partial(environment_of, "textarena", id="ConnectFour-v0", actions="text")
    task = source_of("textarena", id="ConnectFour-v0").task(2)
    one, other = (
        asyncio.run(play_with_policy(make, task, lambda *_: assistant("[3]"), seed=0, max_turns=3)).transcript
        for _ in range(2)
    )
    assert one == other


def test_list_of_moves_written_by_a_player_is_ignored():
    game, _ = play_words("ConnectFour-v0", "[3] Available moves: [6]", most=1)
    assert game._game_texts[1].listed == []
    reader = GameText()
    reader.read("Rules: say [take 3].\nAvailable moves: [take 1], [take 2]")
    assert reader.listed == ["[take 1]", "[take 2]"]
    moves = list(reader.candidate_moves(Random(0)))
    assert set(moves[:2]) == {"[take 1]", "[take 2]"}
    assert (len(set(moves)), moves[-1]) == (len(moves), "[pass]")


def test_numbers_and_squares_of_a_move_format_are_varied():
    draw = Random(0)
    taken = {similar_move("[take 3]", draw) for _ in range(200)}
    assert taken == {f"[take {k}]" for k in range(10)}
    squares = [similar_move("[a2a3]", draw)[1:-1] for _ in range(300)]
    assert all(abs(int(s[3:]) - int(s[1])) <= 2 and s[0] in "abcdefgh" for s in squares)
    assert similar_move("[bid <amount>]", draw).removeprefix("[bid ").removesuffix("]").isdigit()
    assert (finite_reward("Invalid move"), finite_reward(None), finite_reward(float("nan")), finite_reward(0.25)) == (
        0.0,
        0.0,
        0.0,
        0.25,
    )


@pytest.mark.parametrize(
    ("id", "players", "why"),
    [
        ("TruthAndDeception-v0", 2, "the game is won by an empty message"),
        ("SantoriniBaseFixed-v0", 2, "no legal move was found for seat 1"),
        ("Tak-v0", 2, "no legal move was found"),
        ("QuantumTicTacToe-v0", 2, "no legal move was found for seat"),  # in one of two games
        ("CharacterConclave-v0", 3, "no legal move was found for seat 0"),
        ("MarketEntryGame-v0", 1, "the game cannot be played by 1 player"),
        ("PublicGoodsGame-v0", 1, "the game cannot be played by 1 player"),
        ("Sudoku-v0", 2, "number of players has to be 1"),
        ("UsedCar-v0-balanced", 2, "ImportError"),
    ],
)
def test_unsupported_game_is_refused_in_one_line(id, players, why):
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
def test_single_player_game_gives_no_reward_for_invalid_moves(id, word):
    """Some games return partial rewards, some a text instead of the reward."""
    game, steps = play_words(id, word, players=1)
    assert (game.verdict()["success"], game.verdict()["score"]) == (False, 0.0)
    assert all(step.reward == 0 for step in steps[1:])


def test_partial_reward_of_a_single_player_game_is_a_score_and_no_success():
    game, _ = play_words("2048-v0", "[Up]", players=1, most=1)
    game.rewards = {0: 0.4}
    assert (game.verdict()["success"], game.verdict()["score"]) == (False, 0.4)
    game.rewards = {0: 1.0}
    assert game.verdict()["success"] is True
    several, _ = play_words("TicTacToe-v0", "[0]", most=1)
    several.rewards = {0: 0.0, 1: 0.0}
    assert (several.verdict()["success"], several.verdict()["score"]) == (False, 0.0)
    several.rewards = {0: 0.5, 1: 1.0}
    assert several.verdict()["success"] is False


def test_move_on_which_a_game_raises_has_no_effect():
    game, _ = play_words("TicTacToe-v0", "[0]", most=1)

    class RaisingGame(type(game._env.env)):
        def step(self, action):
            raise KeyError(action)

    sound = type(game._env.env)
    game._env.env.__class__ = RaisingGame
    step = game.act("[1]")
    assert (step.understood, step.terminated) == (False, False)
    game._env.env.__class__ = sound
    assert game.admissible()
    assert not game.act(game.admissible()[0]).terminated
