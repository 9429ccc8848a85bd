"""Rules of the built-in worlds, by worked numbers and by naive implementations."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.environments import by_commands, source_of
from whetstone.environments.built_in import knapsack, multi_hop_search, sokoban, wordle
from whetstone.environments.built_in.adventure import Adventure, AdventureTasks
from whetstone.environments.built_in.bargaining import Dealing
from whetstone.environments.built_in.battleship import BattleshipTasks, list_squares
from whetstone.environments.built_in.household import HouseholdTasks
from whetstone.environments.built_in.web_pages import FIELDS, WebPages, build_records
from whetstone.environments.built_in.web_shop import build_catalog, rank_products, shop_reward
from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

# ------------------------------------------------------------ wordle


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("allow", "llama", "+=+--"),
        ("sweet", "sweet", "====="),
        ("eerie", "sweet", "++---"),  # two e's in sweet, neither in its place; the third is one too many
        ("geese", "sweet", "-+=+-"),
        ("seven", "every", "-+++-"),
    ],
)
def test_letter_is_marked_as_often_as_it_occurs(guess, secret, marks):
    assert wordle.mark_guess(guess, secret) == marks


@given(st.sampled_from(wordle.WORDS), st.sampled_from(wordle.WORDS))
def test_marks_equal_those_of_a_naive_implementation(guess, secret):
    marks, left = ["-"] * 5, list(secret)
    for k in range(5):
        if guess[k] == secret[k]:
            marks[k] = "="
            left.remove(guess[k])
    for k in range(5):
        if marks[k] == "-" and guess[k] in left:
            marks[k] = "+"
            left.remove(guess[k])
    assert wordle.mark_guess(guess, secret) == "".join(marks)


def test_unknown_word_uses_a_guess():
    played = by_commands("wordle", Task("w", "", {"word": "about", "stride": 1}), ["zzzzz"] * 6)
    assert played.trajectory.final == {"success": False, "score": 0.0, "guesses": 6}
    assert played.trajectory.ended == "truncated"


# ------------------------------------------------------------ sokoban

ROOM = ["######", "#....#", "#....#", "#....#", "######"]


def test_boxes_are_pushed_singly_and_never_pulled():
    state = ((2, 1), frozenset({(2, 2)}))
    assert sokoban.apply_move(ROOM, state, "right") == ((2, 2), frozenset({(2, 3)}))
    assert sokoban.apply_move(ROOM, state, "left") is None
    two = ((2, 1), frozenset({(2, 2), (2, 3)}))
    assert sokoban.apply_move(ROOM, two, "right") is None
    at_wall = ((2, 3), frozenset({(2, 4)}))
    assert sokoban.apply_move(ROOM, at_wall, "right") is None


def test_box_in_a_corner_has_no_solution():
    assert sokoban.find_solution(tuple(ROOM), frozenset({(2, 2)}), ((2, 2), frozenset({(1, 1)}))) is None


def test_solution_has_minimum_length():
    """Enumerate all sequences of moves up to the length of the solution."""
    goals, state = frozenset({(2, 4)}), ((2, 1), frozenset({(2, 2)}))
    way = sokoban.find_solution(tuple(ROOM), goals, state)
    assert way == ("right", "right")
    for moves in itertools.product(["up", "down", "left", "right"], repeat=1):
        after = state
        for move in moves:
            after = sokoban.apply_move(ROOM, after, move) or after
        assert after[1] != goals


# ------------------------------------------------------------ adventure, household, battleship


def test_locked_door_requires_its_key():
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


def test_hot_object_requires_heating():
    source = HouseholdTasks(levels=[2])
    task = next(t for t in map(source.task, range(50)) if t.private["goal"]["kind"] == "heat")
    goal = task.private["goal"]
    home = next(n for n, things in task.private["places"].items() if any(t.startswith(goal["thing"]) for t in things))
    thing = next(t for t in task.private["places"][home] if t.startswith(goal["thing"]))
    opened = [f"go to {home}", f"open {home}", f"take {thing} from {home}"]
    placing = [f"go to {goal['target']}", f"open {goal['target']}", f"put {thing} in/on {goal['target']}"]
    cold = by_commands("household", task, [*opened, *placing])
    hot = by_commands("household", task, [*opened, "go to microwave 1", f"heat {thing} with microwave 1", *placing])
    assert cold.trajectory.final["success"] is False
    assert hot.trajectory.final["success"] is True


def test_ships_are_inside_the_board_and_apart():
    source = BattleshipTasks()
    for index in range(100):
        private = source.task(index).private
        squares = [square for ship in private["ships"] for square in ship]
        assert len(set(squares)) == len(squares)
        assert all(1 <= int(square[1:]) <= private["side"] for square in squares)


@pytest.mark.slow
def test_sweep_rarely_succeeds_and_the_expert_always_does():
    for level, most in ((1, 0.65), (2, 0.45), (3, 0.4)):
        source = BattleshipTasks(levels=[level])
        tasks = [source.task(index) for index in range(100)]
        swept = [by_commands("battleship", t, list_squares(t.private["side"])[: t.private["shots"]]) for t in tasks]
        assert sum(played.trajectory.final["success"] for played in swept) / len(tasks) < most


def test_box_that_starts_on_its_goal_gives_no_reward():
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
def test_invalid_price_is_no_offer(name, price):
    task = source_of(name).task(0)
    played = by_commands(name, task, [f"offer {price}", "leave"])
    assert played.trajectory.final["deal"] is False
    assert "write: offer PRICE" in played.trajectory.turns[0].observation[0].text


def test_message_without_an_offer_cannot_be_accepted():
    values = {"buyer": 40, "seller": 20}
    for first, second in (("blah", "accept"), ("offer ²", "accept")):
        game = Dealing()
        game.begin(Task("d", "", {"worth": values, "rounds": 3}), 0)
        game.act("seller", first)
        game.act("buyer", second)
        assert (game.price, game.to_move()) == (None, "seller")
    game = Dealing()
    game.begin(Task("d", "", {"worth": values, "rounds": 3}), 0)
    game.act("seller", "offer 35")
    game.act("buyer", "blah")
    game.act("seller", "accept")
    assert game.price is None


@pytest.mark.parametrize("name", ["negotiation", "bargaining"])
def test_waiting_or_accepting_the_first_price_does_not_succeed(name):
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


def test_price_limit_is_exclusive():
    product = {"noun": "mug", "attributes": [], "price": 20}
    wish = {"noun": "mug", "attributes": [], "options": {}, "limit": 20}
    assert shop_reward(wish, product, {}) == 0
    assert shop_reward({**wish, "limit": 21}, product, {}) == 1


def test_worked_numbers_of_the_purchase_reward():
    product = {"noun": "mug", "attributes": ["soft", "warm", "light"], "price": 20}
    wish = {"noun": "mug", "attributes": ["soft", "small"], "options": {"color": "red"}, "limit": 25}
    # (1 of 2 attributes + 1 of 1 options + price) / (2 + 1 + 1)
    assert shop_reward(wish, product, {"color": "red"}) == pytest.approx(3 / 4)
    assert shop_reward(wish, product, {"size": "red"}) == pytest.approx(
        2 / 4
    )  # an option of another type does not match
    assert shop_reward({**wish, "limit": 10}, product, {"color": "red"}) == pytest.approx(2 / 4)
    other = {**product, "noun": "lamp"}
    assert shop_reward(wish, other, {"color": "red"}) == pytest.approx(3 / 4 * 0.5)
    strange = {"noun": "lamp", "attributes": ["large"], "price": 20}
    assert shop_reward(wish, strange, {}) == pytest.approx(1 / 4 * 0.1)


def test_search_ranks_products_with_the_words():
    first = build_catalog(100)[int(rank_products("modern mug", 100)[0][1:]) - 1]
    assert first["noun"] == "mug"
    assert "modern" in first["attributes"]
    assert rank_products("unheard", 100) == []


# ------------------------------------------------------------ pages of a web shop's console


def console(level, index=0, **options):
    game = WebPages()
    task = source_of("web_pages", levels=[level], **options).task(index)
    return game, task, game.begin(task, 0).text


def play_expert(game):
    while game.saved is None:
        result = game.act(game.solve())
    return result


@pytest.mark.parametrize("style", ["outline", "html", "markdown"])
def test_every_style_of_page_shows_the_same_elements(style):
    _, task, text = console(1, styles=[style])
    request, title, *lines = text.splitlines()
    assert (request, title) == (task.private["request"], "settings")
    labels = ["orders", "customers", "dark", "alerts", "save"]
    assert [
        str(number) in line and label in line for number, (label, line) in enumerate(zip(labels, lines, strict=True), 1)
    ] == [True] * 5


def test_change_on_a_page_counts_only_if_its_form_is_saved():
    game, _, _ = console(2, interface="pages")
    *before, save = game._plans()[0]
    for command in before:
        assert not game.act(command).terminated
    game.act("click 1")  # back: the form is left
    assert game.form == {}
    result = play_expert(game)
    assert (result.terminated, result.reward, save.split()[0]) == (True, 1.0, "click")
    verdict = game.verdict()
    assert verdict["shortest"] == len(before) + 1 < verdict["actions"]
    assert verdict["efficiency"] == pytest.approx(verdict["shortest"] / verdict["actions"])
    game.score = "efficiency"
    assert game.verdict()["score"] == verdict["efficiency"] < verdict["score"] == 1


def test_other_changes_and_other_records_fail():
    game, task, _ = console(2, interface="calls")
    game.act("call find settings")
    assert game.act(game.admissible()[-1]).terminated  # saves the settings as they are
    assert game.verdict()["success"] is False
    game.begin(task, 0)
    key, fields = build_records(task.private["records"])[task.private["record"]]
    for field, values in FIELDS["order"].items():  # also changes the field that is not asked for
        if field not in task.private["wanted"]:
            game.act(f"call find {task.private['record']}")
            assert (
                "not saved" in game.act(f"call set {key} {field} {next(v for v in values if v != fields[field])}").text
            )
    for field, value in task.private["wanted"].items():
        game.act(f"call set {key} {field} {value}")
    assert (game.act(f"call save {key}").terminated, game.verdict()["score"]) == (True, 0.0)


@pytest.mark.parametrize(
    "command",
    ["call save k1", "call set k1 dark on", "call find order 1", "call", "click 9", "type 5 a", " ", "select 3 blue"],
)
def test_impossible_actions_are_refused_and_change_nothing(command):
    game, _, _ = console(1)
    before = (game.page, dict(game.form), dict(game.found))
    assert game.act(command).understood is False
    assert (game.page, game.form, game.found, game.steps) == (*before, 1)


def test_interface_limits_the_actions():
    game, _, text = console(2, interface="calls")
    assert text.endswith("\nconsole")
    assert {command.split()[0] for command in game.admissible()} == {"call"}
    assert game.act("click 1").understood is False
    game, _, _ = console(2, interface="pages")
    assert "call" not in {command.split()[0] for command in game.admissible()}
    assert game.act("call find settings").understood is False


@given(level=st.integers(1, 3), index=st.integers(0, 200), draw=st.randoms(use_true_random=False))
def test_expert_finishes_from_every_reachable_state(level, index, draw):
    game, _, _ = console(level, index)
    for _ in range(draw.randrange(6)):
        saves = f"click {len(game._elements())}" if game.page[0] in ("home", "record") else ""
        possible = [each for each in game.admissible() if each != saves and not each.startswith("call save")]
        result = game.act(draw.choice(possible))
        assert result.understood
    play_expert(game)
    verdict = game.verdict()
    assert verdict["success"]
    assert 0 < verdict["action_match"] <= 1
    assert verdict["shortest"] <= verdict["actions"]


# ------------------------------------------------------------ knapsack


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=7), st.integers(1, 30))
def test_best_set_equals_enumeration(items, capacity):
    most = len(items) // 2 + 1
    chosen = knapsack.best_set(items, capacity, most)
    values = [
        sum(items[k][1] for k in some)
        for size in range(most + 1)
        for some in itertools.combinations(range(len(items)), size)
        if sum(items[k][0] for k in some) <= capacity
    ]
    assert knapsack.total_value(items, chosen) == max(values)


@pytest.mark.parametrize("packed", [[1, 1], [99], [1, 2, 3, 4], [-1], []])
def test_invalid_packing_scores_zero(packed):
    private = {"items": [[5, 5], [1, 1], [9, 9], [9, 9]], "capacity": 6, "most": 3, "budget": 4}
    sack = knapsack.Knapsack()
    sack.open(Episode(Task("k", "", private), 0))
    sack.packed = packed
    assert sack.verdict()["score"] == 0.0
    sack.packed = [1, 2]
    assert sack.verdict() == {"success": True, "score": 1.0, "looked": 0}


def test_inspection_costs_budget():
    private = {"items": [[5, 5]] * 3, "capacity": 6, "most": 3, "budget": 2}
    sack = knapsack.Knapsack()
    sack.open(Episode(Task("k", "", private), 0))
    assert sack.inspect(1).endswith("budget 1")
    sack.inspect(1)
    with pytest.raises(ToolError, match="used up"):
        sack.inspect(2)


# ------------------------------------------------------------ search, sql


def test_question_requires_every_page_on_its_path():
    """Check that only the last page of the path contains the answer."""
    source = source_of("multi_hop_search")
    for index in range(60):
        task = source.task(index)
        pages = multi_hop_search.build_pages(task.private["pages"], task.private["world"])
        read = [step[2]["title"] for step in task.private["script"] if step[1] == "read"]
        assert len(set(read)) == len(read) == int(task.tags["kind"][0])
        page = read[0]
        relations = task.prompt.removeprefix("What is the ").partition(f" of {page}?")[0].split(" of the ")
        for relation in reversed(relations):
            page = pages[page][1][relation]
        assert page == task.private["answer"]
        assert task.private["answer"] not in task.prompt


def test_answers_of_sql_questions_equal_a_naive_count():
    """Count rows of the statements without SQL."""
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
