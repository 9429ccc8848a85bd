"""Adapters of other packages, tested with the real package if it is installed."""

import asyncio
import functools
import itertools
import os
import random
import sys
import time
from fractions import Fraction

import pytest

from support.environments import contract, environment_of, source_of
from support.slow import mostly_slow
from whetstone.chat import assistant
from whetstone.environments.adapters.isolated_rng import IsolatedRandom
from whetstone.environments.dependencies import Requirement, require_package, require_program
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.check_result import CheckStatus
from whetstone.evaluation.environment_checks import RandomPolicy, check_contract, play_with_policy
from whetstone.plugins import OptionError
from whetstone.tasks import Expert
from whetstone.trajectory import Task


def needs(*names):
    for need in names:
        if not need.is_installed:
            pytest.skip(f"{need.name} is not installed: {need.command}")


async def run_check(looked_at):
    return [check async for check in check_contract(looked_at)]


def assert_contract(name, *, episodes, concurrent=16, **options):
    looked_at = contract(name, episodes=episodes, **options)
    looked_at.needs_process, looked_at.concurrent, looked_at.max_turns = False, concurrent, 30
    checks = asyncio.run(run_check(looked_at))
    assert [check for check in checks if check.verdict is CheckStatus.FAIL] == []
    return looked_at.numbers


def test_missing_package_names_the_command_to_install():
    assert not Requirement("package", "no_such_package", "pip install it").is_installed
    assert not require_program("no-such-program", "no-such").is_installed
    assert require_package("json", "none").is_installed


def test_isolated_random_state_applies_only_inside_the_context():
    one, other = IsolatedRandom(1), IsolatedRandom(1)
    outside = random.Random(5)
    random.seed(5)
    sampled = []
    for own in (one, other):
        for _ in range(3):
            with own.in_place():
                sampled.append(random.random())
            assert random.random() == outside.random()
    assert sampled[:3] == sampled[3:]


# ------------------------------------------------------------ Gymnasium


def test_gymnasium_environments_meet_the_contract():
    needs(require_package("gymnasium", "gymnasium"))
    assert assert_contract("gymnasium", id="FrozenLake-v1", episodes=12)["held_out"] == 50
    assert assert_contract("gymnasium", id="CartPole-v1", episodes=6)["random"] < 1


def test_gymnasium_steps_equal_those_of_the_package():
    needs(require_package("gymnasium", "gymnasium"))
    import gymnasium

    raw = gymnasium.make("CartPole-v1")
    observation, _ = raw.reset(seed=11)
    task = Task("c", "", {"id": "CartPole-v1", "seed": 11})
    actions = ["1", "0", "0", "1", "1"]
    left = iter(map(assistant, actions))
    make = functools.partial(environment_of, "gymnasium", id="CartPole-v1", actions="text")
    played = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=5))
    for action, turn in zip(actions, played.trajectory.turns, strict=True):
        observation, reward, *_ = raw.step(int(action))
        assert turn.reward == reward
        assert [float(x) for x in turn.observation[0].text.split()] == pytest.approx(observation.tolist(), abs=6e-4)


def test_truncation_is_not_termination():
    needs(require_package("gymnasium", "gymnasium"))
    make = functools.partial(
        environment_of, "gymnasium", id="MountainCar-v0", options={"max_episode_steps": 3}, actions="text"
    )
    task = source_of("gymnasium", id="MountainCar-v0").task(0)
    played = asyncio.run(play_with_policy(make, task, lambda *_: assistant("0"), seed=0))
    assert played.trajectory.ended == "truncated"
    assert len(played.actions) == 3


def play_actions(id, *actions, **options):
    """Play these actions in an environment of Gymnasium and return the trajectory."""
    needs(require_package("gymnasium", "gymnasium"))
    left = iter(actions)
    make = functools.partial(environment_of, "gymnasium", id=id, actions="text", **options)
    task = source_of("gymnasium", id=id).task(0)
    return asyncio.run(
        play_with_policy(make, task, lambda *_: assistant(next(left)), seed=0, max_turns=len(actions))
    ).trajectory


@pytest.mark.parametrize(
    "id",
    mostly_slow(
        ["Acrobot-v1", "MountainCar-v0", "CliffWalking-v1", "Taxi-v4", "CartPole-v1"], quick=["CliffWalking-v1"]
    ),
)
@pytest.mark.parametrize("actions", [[""], ["zzqx"] * 30, ["0"], ["0", *["I give up."] * 30], ["0"] * 7])
def test_unfinished_episode_is_no_success_for_any_threshold(id, actions):
    """Use a threshold of −100, which is above the return of forty steps, and far above that of none."""
    final = play_actions(id, *actions).final
    assert final["success"] is False
    assert final["score"] <= len(actions) / 475


def test_interrupted_episode_is_not_a_complete_one():
    short = play_actions("MountainCar-v0", *["0"] * 3, options={"max_episode_steps": 3}, success_at=-110)
    assert (short.ended, short.final["return"], short.final["success"]) == ("truncated", -3.0, False)
    complete = play_actions("Pendulum-v1", *["0"] * 200, success_at=-2000)
    assert (complete.ended, complete.final["success"]) == ("truncated", True)
    assert play_actions("Pendulum-v1", *["0"] * 199, success_at=-2000).final["success"] is False


def test_termination_is_a_success_if_only_the_goal_terminates():
    up, right, down = "0", "1", "2"
    at_goal = play_actions("CliffWalking-v1", up, *[right] * 11, down)
    assert (at_goal.ended, at_goal.final["return"], at_goal.final["success"]) == ("terminated", -13.0, True)


def test_score_is_the_fraction_of_the_threshold():
    fallen = play_actions("CartPole-v1", *["1"] * 40)
    assert fallen.ended == "terminated"
    assert fallen.final["score"] == pytest.approx(fallen.final["return"] / 475)
    assert fallen.final["success"] is False
    assert play_actions("CartPole-v1", *["1"] * 40, success_at=5).final["success"] is True


def test_environment_without_a_threshold_requires_success_at():
    needs(require_package("gymnasium", "gymnasium"))
    with pytest.raises(RecipeError, match=r"Pendulum-v1 has no reward threshold, .*set success_at"):
        environment_of("gymnasium", id="Pendulum-v1").check()
    environment_of("gymnasium", id="Pendulum-v1", success_at=-300).check()
    for id in ("CliffWalking-v1", "Blackjack-v1", "FrozenLake-v1", "CartPole-v1"):
        environment_of("gymnasium", id=id).check()


@pytest.mark.parametrize("action", ["7", "-1", "0.5", "up", "", "1 2", "nan", "9" * 400])
def test_invalid_action_is_answered_and_is_not_a_step(action):
    needs(require_package("gymnasium", "gymnasium"))
    make = functools.partial(environment_of, "gymnasium", id="FrozenLake-v1", actions="text")
    task = source_of("gymnasium", id="FrozenLake-v1").task(0)
    played = asyncio.run(play_with_policy(make, task, lambda *_: assistant(action), seed=0, max_turns=1))
    assert "no such action" in played.trajectory.turns[0].observation[0].text
    assert played.trajectory.final["steps"] == 0


def test_actions_of_boxes_are_read():
    needs(require_package("gymnasium", "gymnasium"))
    import gymnasium

    from whetstone.environments.adapters.gymnasium import read_action

    box = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    assert read_action(box, "[0.5, -1]").tolist() == [0.5, -1.0]
    assert read_action(box, "0.5 -1.5") is None
    assert read_action(gymnasium.spaces.MultiDiscrete([3, 2]), "2 1").tolist() == [2, 1]
    assert read_action(gymnasium.spaces.Discrete(3, start=1), "3") == 3


def test_minigrid_observations_are_text():
    needs(require_package("minigrid", "gymnasium"))
    source = source_of("gymnasium", id="BabyAI-GoToRedBallGrey-v0")
    make = functools.partial(environment_of, "gymnasium", id="BabyAI-GoToRedBallGrey-v0", actions="text")
    played = asyncio.run(play_with_policy(make, source.task(0), RandomPolicy(0).choose_action, seed=0, max_turns=20))
    text = played.trajectory.opening[0].text
    assert "go to the red ball. You see" in text
    assert "Actions: left, right, forward" in text


def test_unknown_environment_is_refused_with_the_nearest():
    needs(require_package("gymnasium", "gymnasium"))
    with pytest.raises(RecipeError, match="FrozenLake"):
        environment_of("gymnasium", id="FrozenLakes-v1").check()
    assert not isinstance(source_of("gymnasium", id="FrozenLake-v1"), Expert)  # so a warm-up is refused


def test_task_of_another_environment_is_refused():
    needs(require_package("gymnasium", "gymnasium"))

    async def other():
        environment = environment_of("gymnasium", id="CartPole-v1")
        try:
            await environment.reset(source_of("gymnasium", id="FrozenLake-v1").task(0), seed=0)
        finally:
            await environment.close()

    with pytest.raises(TaskError, match="belongs to FrozenLake-v1, not to CartPole-v1"):
        asyncio.run(other())


# ------------------------------------------------------------ text worlds


@pytest.mark.parametrize("text", mostly_slow(["facts", "full"], quick=[]))
def test_textworld_meets_the_contract_and_its_solution_succeeds(text):
    needs(require_package("textworld", "textworld"))
    success_rates = assert_contract(
        "textworld", episodes=6 if text == "facts" else 3, concurrent=12, text=text, games=100, levels=[1, 2]
    )
    assert success_rates["expert"] == 1.0
    with pytest.raises(OptionError, match="100 or more"):
        source_of("textworld", games=5)


@pytest.mark.slow
def test_concurrent_textworld_games_in_threads_are_complete():
    """All games share one parser; without a lock, one of some thousand episodes could not be read."""
    needs(require_package("textworld", "textworld"))
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
        concurrent = await asyncio.gather(*(opening(tasks[k % 8]) for k in range(240)))
        return alone, concurrent

    sys.setswitchinterval(1e-5)
    try:
        alone, concurrent = asyncio.run(all_at_once())
    finally:
        sys.setswitchinterval(before)
    assert concurrent == [alone[k % 8] for k in range(240)]


@pytest.mark.slow
def test_scienceworld_runs_in_a_process_and_its_gold_path_succeeds():
    needs(require_package("scienceworld", "scienceworld"), require_program("java", "default-jre-headless"))
    source = source_of("scienceworld", variations=30)
    task = source.task(0)
    policy = lambda messages, tools, admissible: source.demonstrate(task, messages, tools)  # noqa: E731
    make = functools.partial(environment_of, "scienceworld", actions="text")
    one = asyncio.run(play_with_policy(make, task, policy, seed=0))
    other = asyncio.run(play_with_policy(make, task, policy, seed=0))
    assert one.trajectory.final["success"] is True
    assert other.transcript == one.transcript
    lost = asyncio.run(play_with_policy(make, task, lambda *_: assistant("focus on agent"), seed=0, max_turns=2))
    assert 0 <= lost.trajectory.final["score"] < 1
    with pytest.raises(TaskError, match="no task named boyl"):
        asyncio.run(play_with_policy(make, Task("x", "", {"task": "boyl", "variation": 0}), policy, seed=0))


@pytest.mark.slow
def test_scienceworld_step_limit_exceeds_the_length_of_its_solutions():
    """Play `boil` with up to 182 commands, `inclined-plane-friction-named-surfaces` with up to 325."""
    needs(require_package("scienceworld", "scienceworld"), require_program("java", "default-jre-headless"))
    from whetstone.environments.adapters import scienceworld

    for name in {*scienceworld._task_names()[::6], "boil", "inclined-plane-friction-named-surfaces"}:
        last = scienceworld.count_variations(name) - 1
        longest = max(len(scienceworld._gold_path(name, k, "easy")) for k in {0, last})
        assert longest <= scienceworld.max_commands(name)
    source = source_of("scienceworld", tasks=["boil"], variations=30)
    make = functools.partial(environment_of, "scienceworld", actions="text")
    tasks = [source.task(index) for index in range(12)]
    task = max(tasks, key=lambda t: len(scienceworld._gold_path("boil", t.private["variation"], "easy")))
    episode = play_with_policy(make, task, lambda s, t, a: source.demonstrate(task, s, t), seed=0, max_turns=400)
    played = asyncio.run(episode)
    assert len(played.actions) > 100
    assert (played.trajectory.ended, played.trajectory.final["success"]) == ("terminated", True)


def test_invalid_variation_of_scienceworld_is_refused_and_leaves_no_state():
    """An invalid variation kept the state of the previous episode: after a solved one every command was a success."""
    needs(require_package("scienceworld", "scienceworld"), require_program("java", "default-jre-headless"))
    source = source_of("scienceworld", tasks=["find-plant"], variations=30)
    task = source.task(0)
    policy = lambda messages, tools, admissible: source.demonstrate(task, messages, tools)  # noqa: E731
    make = functools.partial(environment_of, "scienceworld", actions="text")
    assert asyncio.run(play_with_policy(make, task, policy, seed=0, max_turns=100)).trajectory.final["success"] is True
    for name, variation in (("boil", 30), ("melt", 400), ("find-plant", -1)):
        with pytest.raises(TaskError, match=f"{name} has variations 0 to"):
            asyncio.run(play_with_policy(make, Task("x", "", {"task": name, "variation": variation}), policy, seed=0))
    repeated = asyncio.run(play_with_policy(make, task, lambda *_: assistant("zzqx"), seed=0, max_turns=3)).trajectory
    assert (repeated.final["success"], repeated.final["score"]) == (False, 0.0)


@pytest.mark.slow
def test_tasks_of_scienceworld_sample_existing_variations():
    needs(require_package("scienceworld", "scienceworld"), require_program("java", "default-jre-headless"))
    source = source_of("scienceworld", tasks=["boil", "identify-life-stages-2"])
    sampled = [source.task(index).private for index in range(200)]
    assert max(private["variation"] for private in sampled if private["task"] == "boil") == 29
    assert {p["variation"] for p in sampled if p["task"] != "boil"} <= set(range(10))
    with pytest.raises(TaskError, match='did you mean "boil"'):
        source_of("scienceworld", tasks=["boyl"]).task(0)
    with pytest.raises(OptionError, match="1 or more"):
        source_of("scienceworld", variations=0)


@pytest.mark.slow
def test_jericho_game_is_played(tmp_path):
    needs(require_package("jericho", "jericho"), require_package("textworld", "textworld"))
    from whetstone.environments.adapters.textworld import game_file

    story = game_file("full", 3, 2, 3, 2)
    make = functools.partial(environment_of, "jericho", story=story, actions="text")
    played = asyncio.run(play_with_policy(make, Task("j", ""), lambda *_: assistant("look"), seed=0, max_turns=3))
    assert "-=" in played.trajectory.turns[-1].observation[0].text
    assert played.trajectory.final["success"] is False
    with pytest.raises(RecipeError, match="no such file; set story"):
        environment_of("jericho", story=str(tmp_path / "none.z8")).check()


# ------------------------------------------------------------ games of several


@pytest.mark.slow
def test_textarena_meets_the_contract():
    needs(require_package("textarena", "textarena"))
    success_rates = assert_contract("textarena", id="TicTacToe-v0", episodes=16)
    assert 0 < success_rates["random"] < 1
    with pytest.raises(RecipeError, match="TicTacToe-v0"):
        environment_of("textarena", id="TicTacToes-v0").check()


@pytest.mark.slow
def test_openspiel_meets_the_contract_and_search_never_loses():
    needs(require_package("pyspiel", "openspiel"))
    success_rates = assert_contract("openspiel", id="tic_tac_toe", episodes=30, success_at=0)
    assert success_rates["expert"] == 1.0
    keeps_promises_of_chance = contract("openspiel", id="kuhn_poker", episodes=20)
    checks = {
        c.name: c for c in asyncio.run(run_check(keeps_promises_of_chance)) if c.name in ("same again", "side by side")
    }
    assert {c.verdict for c in checks.values()} == {CheckStatus.PASS}
    with pytest.raises(RecipeError, match="tic_tac_toe"):
        environment_of("openspiel", id="tictactoe").check()


def spiel(id, **options):
    """Start a game of OpenSpiel."""
    needs(require_package("pyspiel", "openspiel"))
    from whetstone.environments.adapters.openspiel import OpenSpiel

    game = OpenSpiel(id=id, **options)
    game.begin(Task("t", "", {"seed": 3, "seat": 0}), 0)
    return game


@pytest.mark.parametrize("id", mostly_slow(["go", "chess", "amazons", "shogi", "hex"], quick=["hex"]))
def test_search_is_bounded_in_every_game(id):
    """Bound the search: at a depth of eight it took half a minute in chess and did not return in Go."""
    game = spiel(id, opponent="search")
    began = time.monotonic()
    first = game.solve()
    assert game.act(first).understood
    assert time.monotonic() - began < 8
    assert spiel(id, opponent="search").solve() == first


def test_search_wins_immediately_if_possible_and_otherwise_blocks():
    game = spiel("tic_tac_toe")
    for action in (4, 0, 1, 2):  # the agent in the middle and above it, the other in two corners
        game._state.apply_action(action)
    assert game.solve() == "x(2,1)"
    game = spiel("nim(pile_sizes=1;2;3)")  # lost for the player to move; a move is made anyway
    assert game.solve() in game.admissible()


@pytest.mark.parametrize("id", ["kuhn_poker", "hanabi", "pig", "dark_hex", "catch", "euchre"])
def test_search_is_refused_for_unsupported_games(id):
    needs(require_package("pyspiel", "openspiel"))
    with pytest.raises(RecipeError, match=f"openspiel: {id}: opponent: search supports only zero-sum games"):
        environment_of("openspiel", id=id, opponent="search").check()
    source = source_of("openspiel", id=id)
    with pytest.raises(TaskError, match=f"openspiel: {id} has no expert"):
        source.demonstrate(source.task(0), (), ())


def test_draw_is_a_success_only_if_the_recipe_specifies_it():
    successes = []
    for options in ({}, {"success_at": 0}):
        game = spiel("tic_tac_toe", **options)
        for action in (0, 1, 2, 4, 3, 5, 7, 6, 8):
            game._state.apply_action(action)
        assert (game._state.is_terminal(), game.verdict()["return"]) == (True, 0.0)
        successes.append(game.verdict()["success"])
    assert successes == [False, True]


@pytest.mark.parametrize(
    ("id", "success_at", "message"),
    [
        ("hanabi", None, "set success_at to a return above 0 and up to 25"),
        ("hanabi", 0.0, "every game is a success at 0"),
        ("hanabi", 26.0, "no game is a success at 26"),
        ("solitaire", None, "set success_at"),
        ("crossword", 1.0, "crossword cannot be played move by move: LegalActions"),
        ("crossword", None, "crossword cannot be played move by move: LegalActions"),
        ("start_at", None, "openspiel: start_at: Missing parameter"),
    ],
)
def test_openspiel_games_without_a_possible_success_are_refused(id, success_at, message):
    needs(require_package("pyspiel", "openspiel"))
    with pytest.raises(RecipeError, match=message):
        environment_of("openspiel", id=id, success_at=success_at).check()


def test_listed_moves_of_openspiel_are_accepted_and_moves_with_spaces_are_on_separate_lines():
    game = spiel("morpion_solitaire", success_at=10)  # its moves end with a space
    opening = game.begin(Task("t", "", {"seed": 3}), 0).text
    assert opening.endswith("moves:\n" + "\n".join(game.admissible()))
    assert all(move == move.strip() for move in game.admissible())
    assert game.act(f"  {game.admissible()[0]}  ").understood
    assert "\nmoves: x(0,0) x(0,1)" in spiel("tic_tac_toe")._observation_text()


@pytest.mark.slow
def test_reasoning_gym_uses_its_verifiers():
    needs(require_package("reasoning_gym", "reasoning"))
    source = source_of("reasoning_gym", datasets=["leg_counting", "spell_backward"])
    make = functools.partial(environment_of, "reasoning_gym", actions="text")
    for index in range(12):
        task = source.task(index)
        right = asyncio.run(
            play_with_policy(make, task, lambda s, t, a, task=task: source.demonstrate(task, s, t), seed=0)
        )
        wrong = asyncio.run(play_with_policy(make, task, lambda *_: assistant("no idea"), seed=0))
        assert (right.trajectory.final["success"], wrong.trajectory.final["success"]) == (True, False)
    with pytest.raises(RecipeError, match="leg_counting"):
        source_of("reasoning_gym", datasets=["leg_countin"])
    with pytest.raises(RecipeError, match="reasoning_gym: leg_counting"):
        source_of("reasoning_gym", datasets=["leg_counting"], options={"no_such": 1})


def score_answers(dataset, *answers, options=None):
    """Return the scores of these answers to the first question, and whether each was parsed."""
    needs(require_package("reasoning_gym", "reasoning"))
    from whetstone.environments.adapters.reasoning_gym import ReasoningGym

    source = source_of("reasoning_gym", datasets=[dataset], options=options)
    task, game = source.task(0), ReasoningGym()
    own = source.demonstrate(task, (), ()).text
    result = []
    for answer in (own, *answers):
        game.begin(task, 0)
        understood = game.act(answer).understood
        result.append((understood, game.verdict()["score"]))
    assert result[0] == (True, 1.0)
    return result[1:]


MARKED = "__import__('pathlib').Path({path!r}).touch()"


@pytest.mark.parametrize("dataset", ["n_queens", "countdown", "string_insertion", "polynomial_multiplication"])
def test_verifiers_of_reasoning_gym_do_not_execute_answers(dataset, tmp_path):
    """Use the nine verifiers that evaluated answers with `eval` or as SymPy expressions."""
    mark = tmp_path / "ran"
    attacks = [
        MARKED.format(path=str(mark)),
        f"open({str(mark)!r}, 'w')",
        "entry['answer']",
        "[c for c in entry]",
        "oracle_answer",
    ]
    assert score_answers(dataset, *attacks) == [(True, 0.0)] * len(attacks)
    assert not mark.exists()


@pytest.mark.slow
def test_slow_verifier_gives_no_success(monkeypatch):
    from whetstone.environments.adapters import reasoning_gym

    monkeypatch.setattr(reasoning_gym, "_SECONDS", 4.0)
    began = time.monotonic()
    assert score_answers("countdown", "9**9**9", "(" * 5000, "1/0") == [(False, 0.0), (True, 0.0), (True, 0.0)]
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_verifiers_of_reasoning_gym_do_not_block_other_episodes():
    needs(require_package("reasoning_gym", "reasoning"))
    task = source_of("reasoning_gym", datasets=["countdown"]).task(0)
    make = functools.partial(environment_of, "reasoning_gym", actions="text")
    beats = []

    async def beating():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.05)

    async def both():
        heart = asyncio.create_task(beating())
        played = await play_with_policy(make, task, lambda *_: assistant("9**9**9"), seed=0)
        heart.cancel()
        return played.trajectory

    assert asyncio.run(both()).final["score"] == 0.0
    assert max(later - before for before, later in itertools.pairwise(beats)) < 2


@pytest.mark.parametrize(
    ("dataset", "text"),
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
def test_malformed_answers_of_reasoning_gym_are_wrong_and_not_errors(dataset, text):
    if dataset != "boxnet":
        assert [score for _, score in score_answers(dataset, *text)] == [0.0] * len(text)
        return
    needs(require_package("reasoning_gym", "reasoning"))  # it accepts no stored answer
    from whetstone.environments.adapters.reasoning_gym import ReasoningGym

    game = ReasoningGym()
    for answer in text:
        game.begin(source_of("reasoning_gym", datasets=[dataset]).task(0), 0)
        game.act(answer)
        assert game.verdict() == {"success": False, "score": 0.0}


def test_small_probability_is_not_zero():
    needs(require_package("reasoning_gym", "reasoning"))
    from whetstone.environments.adapters.reasoning_gym import load_question, score_answer

    rare = next(
        one
        for one in (load_question("coin_flip", seed, '{"min_trials": 12, "max_trials": 15}') for seed in range(200))
        if float(Fraction(one.entry["answer"])) < 1e-4
    )
    assert score_answer(rare, str(rare.entry["answer"])) == 1.0
    assert score_answer(rare, "0") == 0.0


def test_generators_with_unreliable_verifiers_are_refused(monkeypatch):
    needs(require_package("reasoning_gym", "reasoning"))
    from whetstone.environments.adapters import reasoning_gym

    with pytest.raises(RecipeError, match="composite is not supported; list its generators"):
        source_of("reasoning_gym", datasets=["composite"], options={"datasets": [{"name": "n_queens"}]})
    monkeypatch.setattr(reasoning_gym, "_EXPRESSIONS", ())
    with pytest.raises(RecipeError, match="countdown: the verifier executes answers as code"):
        source_of("reasoning_gym", datasets=["countdown"])
    monkeypatch.setattr(reasoning_gym, "_REPLACEMENTS", {})
    with pytest.raises(RecipeError, match="game_of_life_halting: the verifier accepts any text"):
        source_of("reasoning_gym", datasets=["game_of_life_halting"])


# ------------------------------------------------------------ untrusted code in a child process


@pytest.mark.slow
def test_child_process_computes_and_has_no_other_access(tmp_path):
    from whetstone.environments.adapters.run_in_subprocess import run_in_subprocess

    def raises():
        raise KeyError("x")

    mark = tmp_path / "mark"
    assert run_in_subprocess(lambda: [1, "a", None], seconds=20) == [1, "a", None]
    assert run_in_subprocess(raises, seconds=20) is None
    assert run_in_subprocess(lambda: "x" * (2 << 30), seconds=20) is None
    assert run_in_subprocess(lambda: os._exit(3), seconds=20) is None
    assert run_in_subprocess(lambda: object(), seconds=20) is None
    run_in_subprocess(lambda: mark.write_text("much"), seconds=20)
    assert not mark.exists() or mark.read_text() == ""
    began = time.monotonic()
    assert run_in_subprocess(lambda: 9**9**9, seconds=0.5) is None
    assert time.monotonic() - began < 10


def test_seeds_with_failing_generators_of_reasoning_gym_are_skipped(monkeypatch):
    reasoning_gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym: pip install -e '.[reasoning]'")
    from whetstone.environments.adapters.reasoning_gym import ReasoningGymTasks

    create, attempts = reasoning_gym.create_dataset, []

    def now_and_then(name, *, seed, **options):
        attempts.append(seed)
        if len(attempts) > 1 and len(attempts) % 3:
            raise KeyError("Integer")
        return create(name, seed=seed, **options)

    monkeypatch.setattr(reasoning_gym, "create_dataset", now_and_then)
    source = ReasoningGymTasks(datasets=["leg_counting"], seed=77)
    tasks = [source.task(k) for k in range(4)]
    assert len({task.private["seed"] for task in tasks}) == 4
    monkeypatch.setattr(reasoning_gym, "create_dataset", lambda name, **_: {}["Integer"])
    with pytest.raises(RecipeError, match="leg_counting: no question was generated from 20 seeds: KeyError"):
        source.task(99)
