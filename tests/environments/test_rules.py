"""The rules of our worlds, by numbers worked out by hand and by second implementations that are as naive as can be."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_worlds import by_commands, source_of
from whetstone.environments.native import encyclopaedia, knapsack, sokoban, wordle
from whetstone.environments.native.adventure import Adventure, AdventureTasks
from whetstone.environments.native.battleship import BattleshipTasks, squares_of
from whetstone.environments.native.dealing import Dealing
from whetstone.environments.native.household import HouseholdTasks
from whetstone.environments.native.web_shop import catalogue, ranked, shop_reward
from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

# ------------------------------------------------------------ wordle


@pytest.mark.parametrize(
    ("guess", "secret", "said"),
    [
        ("allow", "llama", "+=+--"),
        ("sweet", "sweet", "====="),
        ("eerie", "sweet", "++---"),  # two e's in sweet, neither in its place; the third is one too many
        ("geese", "sweet", "-+=+-"),
        ("seven", "every", "-+++-"),
    ],
)
def test_a_letter_is_marked_as_often_as_it_is_in_the_word(guess, secret, said):
    assert wordle.marks(guess, secret) == said


@given(st.sampled_from(wordle.WORDS), st.sampled_from(wordle.WORDS))
def test_marks_are_those_of_a_naive_referee(guess, secret):
    said, left = ["-"] * 5, list(secret)
    for k in range(5):
        if guess[k] == secret[k]:
            said[k] = "="
            left.remove(guess[k])
    for k in range(5):
        if said[k] == "-" and guess[k] in left:
            said[k] = "+"
            left.remove(guess[k])
    assert wordle.marks(guess, secret) == "".join(said)


def test_a_word_that_is_none_uses_a_guess():
    played = by_commands("wordle", Task("w", "", {"word": "about", "stride": 1}), ["zzzzz"] * 6)
    assert played.trajectory.final == {"success": False, "score": 0.0, "guesses": 6}
    assert played.trajectory.ended == "truncated"


# ------------------------------------------------------------ sokoban

ROOM = ["######", "#....#", "#....#", "#....#", "######"]


def test_a_box_is_pushed_and_not_pulled_and_not_two_at_once():
    state = ((2, 1), frozenset({(2, 2)}))
    assert sokoban.moved(ROOM, state, "right") == ((2, 2), frozenset({(2, 3)}))
    assert sokoban.moved(ROOM, state, "left") is None
    two = ((2, 1), frozenset({(2, 2), (2, 3)}))
    assert sokoban.moved(ROOM, two, "right") is None
    at_wall = ((2, 3), frozenset({(2, 4)}))
    assert sokoban.moved(ROOM, at_wall, "right") is None


def test_a_box_in_a_corner_is_lost():
    assert sokoban.solution(tuple(ROOM), frozenset({(2, 2)}), ((2, 2), frozenset({(1, 1)}))) is None


def test_a_solution_is_as_short_as_any():
    """Against every row of moves up to the length found."""
    goals, state = frozenset({(2, 4)}), ((2, 1), frozenset({(2, 2)}))
    way = sokoban.solution(tuple(ROOM), goals, state)
    assert way == ("right", "right")
    for moves in itertools.product(["up", "down", "left", "right"], repeat=1):
        after = state
        for move in moves:
            after = sokoban.moved(ROOM, after, move) or after
        assert after[1] != goals


# ------------------------------------------------------------ adventure, household, battleship


def test_a_locked_door_stays_locked_without_its_key():
    source = AdventureTasks(levels=[3])
    game = Adventure()
    for index in range(20):
        task = source.task(index)
        game.begin(task, 0)
        locked = [(room, way) for room, ways in task.private["locks"].items() for way in ways]
        for room, way in locked:
            game.state = (room, frozenset(), frozenset())
            assert f"go {way}" not in game.admissible()
            assert not game.act(f"unlock {way}").understood


def test_what_is_to_be_hot_must_have_been_heated():
    source = HouseholdTasks(levels=[2])
    task = next(t for t in map(source.task, range(50)) if t.private["goal"]["kind"] == "heat")
    goal = task.private["goal"]
    home = next(n for n, things in task.private["places"].items() if any(t.startswith(goal["thing"]) for t in things))
    thing = next(t for t in task.private["places"][home] if t.startswith(goal["thing"]))
    opened = [f"go to {home}", f"open {home}", f"take {thing} from {home}"]
    there = [f"go to {goal['target']}", f"open {goal['target']}", f"put {thing} in/on {goal['target']}"]
    cold = by_commands("household", task, [*opened, *there])
    hot = by_commands("household", task, [*opened, "go to microwave 1", f"heat {thing} with microwave 1", *there])
    assert cold.trajectory.final["success"] is False
    assert hot.trajectory.final["success"] is True


def test_ships_lie_in_the_sea_and_apart():
    source = BattleshipTasks()
    for index in range(100):
        private = source.task(index).private
        squares = [square for ship in private["ships"] for square in ship]
        assert len(set(squares)) == len(squares)
        assert all(1 <= int(square[1:]) <= private["side"] for square in squares)


@pytest.mark.slow
def test_a_sweep_of_the_sea_does_not_sink_most_fleets_and_the_expert_sinks_all():
    for level, most in ((1, 0.65), (2, 0.45), (3, 0.4)):
        source = BattleshipTasks(levels=[level])
        tasks = [source.task(index) for index in range(100)]
        swept = [by_commands("battleship", t, squares_of(t.private["side"])[: t.private["shots"]]) for t in tasks]
        assert sum(played.trajectory.final["success"] for played in swept) / len(tasks) < most


def test_a_box_that_stands_on_its_goal_at_first_is_no_merit():
    # P $ o on the left; a box on its goal on the right
    task = Task(
        "s", "", {"walls": ["#######", "#....##", "#######"], "goals": [[1, 3], [1, 4]], "boxes": [[1, 2], [1, 4]],
                  "player": [1, 1]},
    )  # fmt: skip
    assert by_commands("sokoban", task, ["left"]).trajectory.final["score"] == 0.0
    done = by_commands("sokoban", task, ["RIGHT"]).trajectory
    assert (done.final["success"], done.final["score"], done.turns[0].reward) == (True, 1.0, 1.0)


# ------------------------------------------------------------ bargaining


@pytest.mark.parametrize("price", ["²", "9" * 1500, "1" + "0" * 400, "-5", "٣", "1.5", ""])
@pytest.mark.parametrize("name", ["negotiation", "bargaining"])
def test_a_price_that_is_none_is_no_offer(name, price):
    task = source_of(name).task(0)
    played = by_commands(name, task, [f"offer {price}", "leave"])
    assert played.trajectory.final["deal"] is False
    assert "write: offer PRICE" in played.trajectory.turns[0].observation[0].text


def test_words_that_are_no_offer_can_not_be_accepted():
    worth = {"buyer": 40, "seller": 20}
    for first, second in (("blah", "accept"), ("offer ²", "accept")):
        game = Dealing()
        game.begin(Task("d", "", {"worth": worth, "rounds": 3}), 0)
        game.act("seller", first)
        game.act("buyer", second)
        assert (game.price, game.to_move()) == (None, "seller")
    game = Dealing()
    game.begin(Task("d", "", {"worth": worth, "rounds": 3}), 0)
    game.act("seller", "offer 35")
    game.act("buyer", "blah")
    game.act("seller", "accept")
    assert game.price is None


@pytest.mark.parametrize("name", ["negotiation", "bargaining"])
def test_who_waits_or_takes_the_first_price_has_no_bargain(name):
    source = source_of(name)
    for index in range(60):
        task = source.task(index)
        rounds = task.private.get("rounds") or len(task.private["asks"])
        waited = by_commands(name, task, [*["hm"] * (rounds - 1), "accept"])
        lowest = by_commands(name, task, [*["hm"] * (rounds - 1), "offer 30"])
        at_once = by_commands(name, task, ["accept"])
        for played in (waited, at_once):
            assert played.trajectory.final["success"] is False, task
        assert name == "bargaining" or lowest.trajectory.final["success"] is False or task.private["asks"][1] <= 30


# ------------------------------------------------------------ web shop


def test_below_a_price_is_not_at_it():
    product = {"noun": "mug", "attributes": [], "price": 20}
    wish = {"noun": "mug", "attributes": [], "options": {}, "limit": 20}
    assert shop_reward(wish, product, {}) == 0
    assert shop_reward({**wish, "limit": 21}, product, {}) == 1


def test_the_reward_of_a_purchase_is_that_of_the_card():
    product = {"noun": "mug", "attributes": ["soft", "warm", "light"], "price": 20}
    wish = {"noun": "mug", "attributes": ["soft", "small"], "options": {"color": "red"}, "limit": 25}
    # (1 of 2 attributes + 1 of 1 options + price) / (2 + 1 + 1)
    assert shop_reward(wish, product, {"color": "red"}) == pytest.approx(3 / 4)
    assert shop_reward(wish, product, {"size": "red"}) == pytest.approx(2 / 4)  # an option of another kind is no hit
    assert shop_reward({**wish, "limit": 10}, product, {"color": "red"}) == pytest.approx(2 / 4)
    other = {**product, "noun": "lamp"}
    assert shop_reward(wish, other, {"color": "red"}) == pytest.approx(3 / 4 * 0.5)
    strange = {"noun": "lamp", "attributes": ["large"], "price": 20}
    assert shop_reward(wish, strange, {}) == pytest.approx(1 / 4 * 0.1)


def test_a_search_finds_what_has_the_words():
    first = catalogue(100)[int(ranked("modern mug", 100)[0][1:]) - 1]
    assert first["noun"] == "mug"
    assert "modern" in first["attributes"]
    assert ranked("unheard", 100) == []


# ------------------------------------------------------------ knapsack


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=7), st.integers(1, 30))
def test_the_best_set_is_the_best_of_all_sets(items, capacity):
    most = len(items) // 2 + 1
    chosen = knapsack.best_set(items, capacity, most)
    values = [
        sum(items[k][1] for k in some)
        for size in range(most + 1)
        for some in itertools.combinations(range(len(items)), size)
        if sum(items[k][0] for k in some) <= capacity
    ]
    assert knapsack.value_of(items, chosen) == max(values)


@pytest.mark.parametrize("packed", [[1, 1], [99], [1, 2, 3, 4], [-1], []])
def test_what_is_no_fair_packing_is_worth_nothing(packed):
    private = {"items": [[5, 5], [1, 1], [9, 9], [9, 9]], "capacity": 6, "most": 3, "budget": 4}
    sack = knapsack.Knapsack()
    sack.open(Episode(Task("k", "", private), 0))
    sack.packed = packed
    assert sack.verdict()["score"] == 0.0
    sack.packed = [1, 2]
    assert sack.verdict() == {"success": True, "score": 1.0, "looked": 0}


def test_looking_is_paid_for():
    private = {"items": [[5, 5]] * 3, "capacity": 6, "most": 3, "budget": 2}
    sack = knapsack.Knapsack()
    sack.open(Episode(Task("k", "", private), 0))
    assert sack.inspect(1).endswith("budget 1")
    sack.inspect(1)
    with pytest.raises(ToolError, match="used up"):
        sack.inspect(2)


# ------------------------------------------------------------ search, sql


def test_a_question_needs_every_page_on_its_way():
    """Leaving out any page leaves the answer unsaid: no page read on the way names it before the last one does."""
    source = source_of("multi_hop_search")
    for index in range(60):
        task = source.task(index)
        pages = encyclopaedia.encyclopaedia(task.private["pages"], task.private["world"])
        read = [step[2]["title"] for step in task.private["script"] if step[1] == "read"]
        assert len(set(read)) == len(read) == int(task.tags["kind"][0])
        here = read[0]
        relations = task.prompt.removeprefix("What is the ").partition(f" of {here}?")[0].split(" of the ")
        for relation in reversed(relations):
            here = pages[here][1][relation]
        assert here == task.private["answer"]
        assert task.private["answer"] not in task.prompt


def test_a_question_to_a_database_has_the_answer_of_a_naive_reading():
    """Counted over the rows of the statements, without SQL."""
    source = source_of("text_to_sql", levels=[2])
    seen = 0
    for index in range(120):
        task = source.task(index)
        if not task.prompt.startswith("How many people live in"):
            continue
        town = task.prompt.rsplit(" ", 1)[1].rstrip("?")
        people = next(line for line in task.private["database"].splitlines() if line.startswith("INSERT"))
        assert task.private["answer"] == str(people.count(f"'{town}'"))
        seen += 1
    assert seen > 10
