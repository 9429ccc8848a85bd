"""Worlds of other packages: the real package behind each, where it is installed."""

import asyncio
import functools
import itertools
import os
import random
import sys
import time
from fractions import Fraction

import pytest

from tests_slow import mostly_slow
from tests_worlds import contract, environment_of, source_of
from whetstone.chat import assistant
from whetstone.environments.adapters.own_random import OwnRandom
from whetstone.environments.dependencies import Need, package, program
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.checks import CheckStatus
from whetstone.evaluation.contract import RandomPolicy, check_contract, play
from whetstone.plugins import OptionError
from whetstone.tasks import Expert
from whetstone.trajectory import Task


def needs(*names):
    for need in names:
        if not need.met:
            pytest.skip(f"{need.name} is not installed: {need.command}")


async def tried(looked_at):
    return [check async for check in check_contract(looked_at)]


def keeps_its_promises(name, *, episodes, concurrent=16, **options):
    looked_at = contract(name, episodes=episodes, **options)
    looked_at.needs_process, looked_at.concurrent, looked_at.max_turns = False, concurrent, 30
    checks = asyncio.run(tried(looked_at))
    assert [check for check in checks if check.verdict is CheckStatus.FAIL] == []
    return looked_at.found


def test_a_need_that_is_not_met_names_the_command():
    assert not Need("package", "no_such_package", "pip install it").met
    assert not program("no-such-program", "no-such").met
    assert package("json", "none").met


def test_own_chance_is_in_place_inside_and_nowhere_else():
    one, other = OwnRandom(1), OwnRandom(1)
    outside = random.Random(5)
    random.seed(5)
    drawn = []
    for own in (one, other):
        for _ in range(3):
            with own.in_place():
                drawn.append(random.random())
            assert random.random() == outside.random()
    assert drawn[:3] == drawn[3:]


# ------------------------------------------------------------ Gymnasium


def test_any_gymnasium_environment_keeps_our_promises():
    needs(package("gymnasium", "gymnasium"))
    assert keeps_its_promises("gymnasium", id="FrozenLake-v1", episodes=12)["held_out"] == 50
    assert keeps_its_promises("gymnasium", id="CartPole-v1", episodes=6)["random"] < 1


def test_gymnasium_steps_are_those_of_the_package():
    needs(package("gymnasium", "gymnasium"))
    import gymnasium

    raw = gymnasium.make("CartPole-v1")
    observation, _ = raw.reset(seed=11)
    task = Task("c", "", {"id": "CartPole-v1", "seed": 11})
    actions = ["1", "0", "0", "1", "1"]
    left = iter(map(assistant, actions))
    make = functools.partial(environment_of, "gymnasium", id="CartPole-v1", actions="text")
    played = asyncio.run(play(make, task, lambda *_: next(left), seed=0, max_turns=5))
    for action, turn in zip(actions, played.trajectory.turns, strict=True):
        observation, reward, *_ = raw.step(int(action))
        assert turn.reward == reward
        assert [float(x) for x in turn.observation[0].text.split()] == pytest.approx(observation.tolist(), abs=6e-4)


def test_a_cut_is_not_an_end():
    needs(package("gymnasium", "gymnasium"))
    make = functools.partial(
        environment_of, "gymnasium", id="MountainCar-v0", options={"max_episode_steps": 3}, actions="text"
    )
    task = source_of("gymnasium", id="MountainCar-v0").task(0)
    played = asyncio.run(play(make, task, lambda *_: assistant("0"), seed=0))
    assert played.trajectory.ended == "truncated"
    assert len(played.actions) == 3


def moved(id, *said, **options):
    """What an environment of Gymnasium says of these actions."""
    needs(package("gymnasium", "gymnasium"))
    left = iter(said)
    make = functools.partial(environment_of, "gymnasium", id=id, actions="text", **options)
    task = source_of("gymnasium", id=id).task(0)
    return asyncio.run(play(make, task, lambda *_: assistant(next(left)), seed=0, max_turns=len(said))).trajectory


@pytest.mark.parametrize(
    "id",
    mostly_slow(
        ["Acrobot-v1", "MountainCar-v0", "CliffWalking-v1", "Taxi-v4", "CartPole-v1"], quick=["CliffWalking-v1"]
    ),
)
@pytest.mark.parametrize("said", [[""], ["zzqx"] * 30, ["0"], ["0", *["I give up."] * 30], ["0"] * 7])
def test_an_episode_that_is_not_over_is_no_success_whatever_its_threshold(id, said):
    """A threshold of −100 is above what forty steps cost, and far above what none costs."""
    final = moved(id, *said).final
    assert final["success"] is False
    assert final["score"] <= len(said) / 475


def test_a_time_that_was_cut_is_not_the_whole_time():
    short = moved("MountainCar-v0", *["0"] * 3, options={"max_episode_steps": 3}, success_at=-110)
    assert (short.ended, short.final["return"], short.final["success"]) == ("truncated", -3.0, False)
    whole = moved("Pendulum-v1", *["0"] * 200, success_at=-2000)
    assert (whole.ended, whole.final["success"]) == ("truncated", True)
    assert moved("Pendulum-v1", *["0"] * 199, success_at=-2000).final["success"] is False


def test_where_the_goal_alone_ends_it_an_end_is_a_success():
    up, right, down = "0", "1", "2"
    there = moved("CliffWalking-v1", up, *[right] * 11, down)
    assert (there.ended, there.final["return"], there.final["success"]) == ("terminated", -13.0, True)


def test_the_share_of_a_threshold_that_was_reached_is_the_score():
    fallen = moved("CartPole-v1", *["1"] * 40)
    assert fallen.ended == "terminated"
    assert fallen.final["score"] == pytest.approx(fallen.final["return"] / 475)
    assert fallen.final["success"] is False
    assert moved("CartPole-v1", *["1"] * 40, success_at=5).final["success"] is True


def test_where_nothing_could_be_a_success_one_is_asked_for():
    needs(package("gymnasium", "gymnasium"))
    with pytest.raises(RecipeError, match=r"Pendulum-v1 has no threshold of its own.*say success_at"):
        environment_of("gymnasium", id="Pendulum-v1").check()
    environment_of("gymnasium", id="Pendulum-v1", success_at=-300).check()
    for id in ("CliffWalking-v1", "Blackjack-v1", "FrozenLake-v1", "CartPole-v1"):
        environment_of("gymnasium", id=id).check()


@pytest.mark.parametrize("said", ["7", "-1", "0.5", "up", "", "1 2", "nan", "9" * 400])
def test_an_action_that_is_none_is_told_and_costs_no_step(said):
    needs(package("gymnasium", "gymnasium"))
    make = functools.partial(environment_of, "gymnasium", id="FrozenLake-v1", actions="text")
    task = source_of("gymnasium", id="FrozenLake-v1").task(0)
    played = asyncio.run(play(make, task, lambda *_: assistant(said), seed=0, max_turns=1))
    assert "no such action" in played.trajectory.turns[0].observation[0].text
    assert played.trajectory.final["steps"] == 0


def test_boxes_of_numbers_are_actions_too():
    needs(package("gymnasium", "gymnasium"))
    import gymnasium

    from whetstone.environments.adapters.gymnasium import read_action

    box = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    assert read_action(box, "[0.5, -1]").tolist() == [0.5, -1.0]
    assert read_action(box, "0.5 -1.5") is None
    assert read_action(gymnasium.spaces.MultiDiscrete([3, 2]), "2 1").tolist() == [2, 1]
    assert read_action(gymnasium.spaces.Discrete(3, start=1), "3") == 3


def test_minigrid_is_told_in_words():
    needs(package("minigrid", "gymnasium"))
    source = source_of("gymnasium", id="BabyAI-GoToRedBallGrey-v0")
    make = functools.partial(environment_of, "gymnasium", id="BabyAI-GoToRedBallGrey-v0", actions="text")
    played = asyncio.run(play(make, source.task(0), RandomPolicy(0).action, seed=0, max_turns=20))
    text = played.trajectory.opening[0].text
    assert "go to the red ball. You see" in text
    assert "Actions: left, right, forward" in text


def test_an_environment_that_is_none_is_refused_with_the_nearest():
    needs(package("gymnasium", "gymnasium"))
    with pytest.raises(RecipeError, match="FrozenLake"):
        environment_of("gymnasium", id="FrozenLakes-v1").check()
    assert not isinstance(source_of("gymnasium", id="FrozenLake-v1"), Expert)  # so a warm-up is refused


def test_a_task_of_another_environment_is_refused():
    needs(package("gymnasium", "gymnasium"))

    async def other():
        environment = environment_of("gymnasium", id="CartPole-v1")
        try:
            await environment.reset(source_of("gymnasium", id="FrozenLake-v1").task(0), seed=0)
        finally:
            await environment.close()

    with pytest.raises(TaskError, match="is of FrozenLake-v1, not of CartPole-v1"):
        asyncio.run(other())


# ------------------------------------------------------------ text worlds


@pytest.mark.parametrize("text", mostly_slow(["facts", "full"], quick=[]))
def test_textworld_keeps_our_promises_and_its_own_solution_solves_it(text):
    needs(package("textworld", "textworld"))
    found = keeps_its_promises(
        "textworld", episodes=6 if text == "facts" else 3, concurrent=12, text=text, games=100, levels=[1, 2]
    )
    assert found["expert"] == 1.0
    with pytest.raises(OptionError, match="100 or more"):
        source_of("textworld", games=5)


@pytest.mark.slow
def test_textworld_games_begun_at_once_in_threads_are_all_whole():
    """Its parser is one for all; unguarded, a soak of some thousand episodes met a game that could not be read."""
    needs(package("textworld", "textworld"))
    before = sys.getswitchinterval()
    source = source_of("textworld", text="facts", levels=[1], games=100)
    tasks = [source.task(index) for index in range(8)]
    make = functools.partial(environment_of, "textworld", text="facts", actions="text")

    async def opening(task):
        environment = make()
        try:
            return (await environment.reset(task, seed=0)).messages[0].text
        finally:
            await environment.close()

    async def all_at_once():
        alone = [await opening(task) for task in tasks]
        beside = await asyncio.gather(*(opening(tasks[k % 8]) for k in range(240)))
        return alone, beside

    sys.setswitchinterval(1e-5)
    try:
        alone, beside = asyncio.run(all_at_once())
    finally:
        sys.setswitchinterval(before)
    assert beside == [alone[k % 8] for k in range(240)]


@pytest.mark.slow
def test_scienceworld_is_played_in_a_process_and_its_gold_path_solves_it():
    needs(package("scienceworld", "scienceworld"), program("java", "default-jre-headless"))
    source = source_of("scienceworld", variations=30)
    task = source.task(0)
    policy = lambda said, tools, admissible: source.demonstrate(task, said, tools)  # noqa: E731
    make = functools.partial(environment_of, "scienceworld", actions="text")
    one = asyncio.run(play(make, task, policy, seed=0))
    other = asyncio.run(play(make, task, policy, seed=0))
    assert one.trajectory.final["success"] is True
    assert other.transcript == one.transcript
    lost = asyncio.run(play(make, task, lambda *_: assistant("focus on agent"), seed=0, max_turns=2))
    assert 0 <= lost.trajectory.final["score"] < 1
    with pytest.raises(TaskError, match="no task boyl"):
        asyncio.run(play(make, Task("x", "", {"task": "boyl", "variation": 0}), policy, seed=0))


@pytest.mark.slow
@pytest.mark.slow
def test_scienceworld_allows_the_steps_that_its_own_solution_takes():
    """`boil` takes up to 182 commands, `inclined-plane-friction-named-surfaces` up to 325."""
    needs(package("scienceworld", "scienceworld"), program("java", "default-jre-headless"))
    from whetstone.environments.adapters import scienceworld

    for name in scienceworld._task_names():
        last = scienceworld.variations_of(name) - 1
        longest = max(len(scienceworld._gold_path(name, k, "easy")) for k in {0, last})
        assert longest <= scienceworld.steps_of(name)
    source = source_of("scienceworld", tasks=["boil"], variations=30)
    make = functools.partial(environment_of, "scienceworld", actions="text")
    tasks = [source.task(index) for index in range(12)]
    task = max(tasks, key=lambda t: len(scienceworld._gold_path("boil", t.private["variation"], "easy")))
    episode = play(make, task, lambda s, t, a: source.demonstrate(task, s, t), seed=0, max_turns=400)
    played = asyncio.run(episode)
    assert len(played.actions) > 100
    assert (played.trajectory.ended, played.trajectory.final["success"]) == ("terminated", True)


def test_a_variation_of_scienceworld_that_is_none_is_refused_and_nothing_of_before_is_left():
    """It was played in the state of the episode before: behind a solved one any command was a success."""
    needs(package("scienceworld", "scienceworld"), program("java", "default-jre-headless"))
    source = source_of("scienceworld", tasks=["find-plant"], variations=30)
    task = source.task(0)
    policy = lambda said, tools, admissible: source.demonstrate(task, said, tools)  # noqa: E731
    make = functools.partial(environment_of, "scienceworld", actions="text")
    assert asyncio.run(play(make, task, policy, seed=0, max_turns=100)).trajectory.final["success"] is True
    for name, variation in (("boil", 30), ("melt", 400), ("find-plant", -1)):
        with pytest.raises(TaskError, match=f"{name} has variations 0 to"):
            asyncio.run(play(make, Task("x", "", {"task": name, "variation": variation}), policy, seed=0))
    again = asyncio.run(play(make, task, lambda *_: assistant("zzqx"), seed=0, max_turns=3)).trajectory
    assert (again.final["success"], again.final["score"]) == (False, 0.0)


@pytest.mark.slow
def test_tasks_of_scienceworld_draw_from_the_variations_there_are():
    needs(package("scienceworld", "scienceworld"), program("java", "default-jre-headless"))
    source = source_of("scienceworld", tasks=["boil", "identify-life-stages-2"])
    drawn = [source.task(index).private for index in range(200)]
    assert max(private["variation"] for private in drawn if private["task"] == "boil") == 29
    assert {p["variation"] for p in drawn if p["task"] != "boil"} <= set(range(10))
    with pytest.raises(TaskError, match='did you mean "boil"'):
        source_of("scienceworld", tasks=["boyl"]).task(0)
    with pytest.raises(OptionError, match="one or more"):
        source_of("scienceworld", variations=0)


@pytest.mark.slow
def test_jericho_plays_a_story(tmp_path):
    needs(package("jericho", "jericho"), package("textworld", "textworld"))
    from whetstone.environments.adapters.textworld import game_file

    story = game_file("full", 3, 2, 3, 2)
    make = functools.partial(environment_of, "jericho", story=story, actions="text")
    played = asyncio.run(play(make, Task("j", ""), lambda *_: assistant("look"), seed=0, max_turns=3))
    assert "-=" in played.trajectory.turns[-1].observation[0].text
    assert played.trajectory.final["success"] is False
    with pytest.raises(RecipeError, match="there is no story"):
        environment_of("jericho", story=str(tmp_path / "none.z8")).check()


# ------------------------------------------------------------ games of several


@pytest.mark.slow
def test_textarena_keeps_our_promises():
    needs(package("textarena", "textarena"))
    found = keeps_its_promises("textarena", id="TicTacToe-v0", episodes=16)
    assert 0 < found["random"] < 1
    with pytest.raises(RecipeError, match="TicTacToe-v0"):
        environment_of("textarena", id="TicTacToes-v0").check()


@pytest.mark.slow
def test_openspiel_keeps_our_promises_and_search_never_loses():
    needs(package("pyspiel", "openspiel"))
    found = keeps_its_promises("openspiel", id="tic_tac_toe", episodes=30, success_at=0)
    assert found["expert"] == 1.0
    keeps_promises_of_chance = contract("openspiel", id="kuhn_poker", episodes=20)
    checks = {
        c.name: c for c in asyncio.run(tried(keeps_promises_of_chance)) if c.name in ("same again", "side by side")
    }
    assert {c.verdict for c in checks.values()} == {CheckStatus.PASS}
    with pytest.raises(RecipeError, match="tic_tac_toe"):
        environment_of("openspiel", id="tictactoe").check()


def spiel(id, **options):
    """A game of OpenSpiel, begun."""
    needs(package("pyspiel", "openspiel"))
    from whetstone.environments.adapters.openspiel import OpenSpiel

    game = OpenSpiel(id=id, **options)
    game.begin(Task("t", "", {"seed": 3, "seat": 0}), 0)
    return game


@pytest.mark.parametrize("id", mostly_slow(["go", "chess", "amazons", "shogi", "hex"], quick=["hex"]))
def test_a_search_is_bounded_whatever_the_game(id):
    """Eight half-moves ahead took half a minute in chess and never came back in Go."""
    game = spiel(id, opponent="search")
    began = time.monotonic()
    first = game.solve()
    assert game.act(first).understood
    assert time.monotonic() - began < 8
    assert spiel(id, opponent="search").solve() == first


def test_a_search_wins_at_once_where_it_can_and_holds_out_where_it_cannot():
    game = spiel("tic_tac_toe")
    for action in (4, 0, 1, 2):  # the agent in the middle and above it, the other in two corners
        game._state.apply_action(action)
    assert game.solve() == "x(2,1)"
    game = spiel("nim(pile_sizes=1;2;3)")  # lost for whoever is first; a move is made all the same
    assert game.solve() in game.admissible()


@pytest.mark.parametrize("id", ["kuhn_poker", "hanabi", "pig", "dark_hex", "catch", "euchre"])
def test_a_search_is_refused_where_it_cannot_play(id):
    needs(package("pyspiel", "openspiel"))
    with pytest.raises(RecipeError, match=f"openspiel: {id}: opponent: search is for two players"):
        environment_of("openspiel", id=id, opponent="search").check()
    source = source_of("openspiel", id=id)
    with pytest.raises(TaskError, match=f"openspiel: {id} has no answer of its own to show"):
        source.demonstrate(source.task(0), (), ())


def test_a_draw_is_no_success_unless_the_recipe_says_so():
    found = []
    for options in ({}, {"success_at": 0}):
        game = spiel("tic_tac_toe", **options)
        for action in (0, 1, 2, 4, 3, 5, 7, 6, 8):
            game._state.apply_action(action)
        assert (game._state.is_terminal(), game.verdict()["return"]) == (True, 0.0)
        found.append(game.verdict()["success"])
    assert found == [False, True]


@pytest.mark.parametrize(
    ("id", "success_at", "said"),
    [
        ("hanabi", None, "say success_at: a return above 0, up to 25"),
        ("hanabi", 0.0, "every game is a success at 0"),
        ("hanabi", 26.0, "none is a success at 26"),
        ("solitaire", None, "say success_at"),
        ("crossword", 1.0, "crossword cannot be played move by move: LegalActions"),
        ("crossword", None, "crossword cannot be played move by move: LegalActions"),
        ("start_at", None, "openspiel: start_at: Missing parameter"),
    ],
)
def test_games_of_openspiel_without_a_success_are_refused(id, success_at, said):
    needs(package("pyspiel", "openspiel"))
    with pytest.raises(RecipeError, match=said):
        environment_of("openspiel", id=id, success_at=success_at).check()


def test_a_listed_move_of_openspiel_is_taken_and_moves_with_blanks_stand_apart():
    game = spiel("morpion_solitaire", success_at=10)  # its moves end in a blank
    opening = game.begin(Task("t", "", {"seed": 3}), 0).text
    assert opening.endswith("moves:\n" + "\n".join(game.admissible()))
    assert all(move == move.strip() for move in game.admissible())
    assert game.act(f"  {game.admissible()[0]}  ").understood
    assert "\nmoves: x(0,0) x(0,1)" in spiel("tic_tac_toe")._seen()


@pytest.mark.slow
def test_reasoning_gym_judges_by_its_own_verifier():
    needs(package("reasoning_gym", "reasoning"))
    source = source_of("reasoning_gym", datasets=["leg_counting", "spell_backward"])
    make = functools.partial(environment_of, "reasoning_gym", actions="text")
    for index in range(12):
        task = source.task(index)
        right = asyncio.run(play(make, task, lambda s, t, a, task=task: source.demonstrate(task, s, t), seed=0))
        wrong = asyncio.run(play(make, task, lambda *_: assistant("no idea"), seed=0))
        assert (right.trajectory.final["success"], wrong.trajectory.final["success"]) == (True, False)
    with pytest.raises(RecipeError, match="leg_counting"):
        source_of("reasoning_gym", datasets=["leg_countin"])
    with pytest.raises(RecipeError, match="reasoning_gym: leg_counting"):
        source_of("reasoning_gym", datasets=["leg_counting"], options={"no_such": 1})


def judged(dataset, *said, options=None):
    """What reasoning-gym's first question is worth with these answers, and whether each was understood."""
    needs(package("reasoning_gym", "reasoning"))
    from whetstone.environments.adapters.reasoning_gym import ReasoningGym

    source = source_of("reasoning_gym", datasets=[dataset], options=options)
    task, game = source.task(0), ReasoningGym()
    own = source.demonstrate(task, (), ()).text
    found = []
    for answer in (own, *said):
        game.begin(task, 0)
        understood = game.act(answer).understood
        found.append((understood, game.verdict()["score"]))
    assert found[0] == (True, 1.0)
    return found[1:]


MARKED = "__import__('pathlib').Path({path!r}).touch()"


@pytest.mark.parametrize("dataset", ["n_queens", "countdown", "string_insertion", "polynomial_multiplication"])
def test_no_verifier_of_reasoning_gym_runs_what_was_said(dataset, tmp_path):
    """Nine of them did: with `eval`, or as an expression of SymPy's, which comes to the same."""
    mark = tmp_path / "ran"
    said = [
        MARKED.format(path=str(mark)),
        f"open({str(mark)!r}, 'w')",
        "entry['answer']",
        "[c for c in entry]",
        "oracle_answer",
    ]
    assert judged(dataset, *said) == [(True, 0.0)] * len(said)
    assert not mark.exists()


@pytest.mark.slow
def test_a_verifier_that_is_late_has_no_right_answer_before_it(monkeypatch):
    from whetstone.environments.adapters import reasoning_gym

    monkeypatch.setattr(reasoning_gym, "_SECONDS", 4.0)
    began = time.monotonic()
    assert judged("countdown", "9**9**9", "(" * 5000, "1/0") == [(False, 0.0), (True, 0.0), (True, 0.0)]
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_verifiers_of_reasoning_gym_do_not_hold_up_other_episodes():
    needs(package("reasoning_gym", "reasoning"))
    task = source_of("reasoning_gym", datasets=["countdown"]).task(0)
    make = functools.partial(environment_of, "reasoning_gym", actions="text")
    beats = []

    async def beating():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.05)

    async def both():
        heart = asyncio.create_task(beating())
        played = await play(make, task, lambda *_: assistant("9**9**9"), seed=0)
        heart.cancel()
        return played.trajectory

    assert asyncio.run(both()).final["score"] == 0.0
    assert max(later - before for before, later in itertools.pairwise(beats)) < 2


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("complex_arithmetic", ["nan", "nan+nanj", "inf"]),
        ("game_of_life_halting", ["x", "0", "no idea"]),
        ("puzzle24", ["8 + 2 + 5 + 9", "9 + 10 + 2 + 3", "24", "zzqx"]),
        ("prime_factorization", ["The answer is 3.", "", "null", "²"]),
        ("boxnet", ["null", "1", "[1]", "-0"]),
        ("calendar_arithmetic", ["1" + "0" * 400, "1e999"]),
        ("spell_backward", ["zzqx", " ", "\x00", "😀"]),
        ("advanced_geometry", ["zzqx", "[", "I do not know."]),
    ],
)
def test_odd_answers_of_reasoning_gym_are_wrong_and_no_fault(dataset, said):
    if dataset != "boxnet":
        assert [score for _, score in judged(dataset, *said)] == [0.0] * len(said)
        return
    needs(package("reasoning_gym", "reasoning"))  # it has no answer of its own that it takes
    from whetstone.environments.adapters.reasoning_gym import ReasoningGym

    game = ReasoningGym()
    for answer in said:
        game.begin(source_of("reasoning_gym", datasets=[dataset]).task(0), 0)
        game.act(answer)
        assert game.verdict() == {"success": False, "score": 0.0}


def test_a_small_probability_is_not_nothing():
    needs(package("reasoning_gym", "reasoning"))
    from whetstone.environments.adapters.reasoning_gym import question, scored

    rare = next(
        one
        for one in (question("coin_flip", seed, '{"min_trials": 12, "max_trials": 15}') for seed in range(200))
        if float(Fraction(one.entry["answer"])) < 1e-4
    )
    assert scored(rare, str(rare.entry["answer"])) == 1.0
    assert scored(rare, "0") == 0.0


def test_generators_whose_verifiers_cannot_be_trusted_are_refused(monkeypatch):
    needs(package("reasoning_gym", "reasoning"))
    from whetstone.environments.adapters import reasoning_gym

    with pytest.raises(RecipeError, match="composite: name the generators"):
        source_of("reasoning_gym", datasets=["composite"], options={"datasets": [{"name": "n_queens"}]})
    monkeypatch.setattr(reasoning_gym, "_EXPRESSIONS", ())
    with pytest.raises(RecipeError, match="countdown: its verifier runs what is said as code"):
        source_of("reasoning_gym", datasets=["countdown"])
    monkeypatch.setattr(reasoning_gym, "_OURS", {})
    with pytest.raises(RecipeError, match="game_of_life_halting: its verifier takes any words"):
        source_of("reasoning_gym", datasets=["game_of_life_halting"])


# ------------------------------------------------------------ foreign code in a child


@pytest.mark.slow
def test_a_child_computes_and_can_do_little_else(tmp_path):
    from whetstone.environments.adapters.in_child import called_in_child

    def raises():
        raise KeyError("x")

    mark = tmp_path / "mark"
    assert called_in_child(lambda: [1, "a", None], seconds=20) == [1, "a", None]
    assert called_in_child(raises, seconds=20) is None
    assert called_in_child(lambda: "x" * (2 << 30), seconds=20) is None
    assert called_in_child(lambda: os._exit(3), seconds=20) is None
    assert called_in_child(lambda: object(), seconds=20) is None
    called_in_child(lambda: mark.write_text("much"), seconds=20)
    assert not mark.exists() or mark.read_text() == ""
    began = time.monotonic()
    assert called_in_child(lambda: 9**9**9, seconds=0.5) is None
    assert time.monotonic() - began < 10


def test_a_seed_a_generator_of_reasoning_gym_fails_on_is_passed_over(monkeypatch):
    reasoning_gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym: pip install -e '.[reasoning]'")
    from whetstone.environments.adapters.reasoning_gym import ReasoningGymTasks

    create, made = reasoning_gym.create_dataset, []

    def now_and_then(name, *, seed, **options):
        made.append(seed)
        if len(made) > 1 and len(made) % 3:
            raise KeyError("Integer")
        return create(name, seed=seed, **options)

    monkeypatch.setattr(reasoning_gym, "create_dataset", now_and_then)
    source = ReasoningGymTasks(datasets=["leg_counting"], seed=77)
    tasks = [source.task(k) for k in range(4)]
    assert len({task.private["seed"] for task in tasks}) == 4
    monkeypatch.setattr(reasoning_gym, "create_dataset", lambda name, **_: {}["Integer"])
    with pytest.raises(RecipeError, match="leg_counting makes no question: KeyError"):
        source.task(99)
