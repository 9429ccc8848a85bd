"""The retail domain: exact effects, refusals, and the published tasks."""

import asyncio
import json
from dataclasses import replace

import pytest

from support.environments import RETAIL, environment_of, needs_retail, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tau2 import RetailDesk, RetailTasks, parse_task
from whetstone.environments.tau2 import wanted_differences as differences_of
from whetstone.environments.tau2.database import round_amounts
from whetstone.environments.user_simulators.scenario import ScenarioUser
from whetstone.errors import RecipeError, TaskError, ToolError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards import tau2
from whetstone.rewards.environment_state.tau2 import contains_information

pytestmark = needs_retail
PATH = str(RETAIL)


def wanted_differences(path, actions):
    return differences_of(RetailDesk, path, actions)


def desk():
    return RetailDesk(path=PATH)


def order_of(status, method="gift_card"):
    """Return an order with this status and payment method."""
    database = json.loads((RETAIL / "db.json").read_text())
    for order in database["orders"].values():
        user = database["users"][order["user_id"]]
        paid = order["payment_history"][0]["payment_method_id"]
        if order["status"] == status and user["payment_methods"][paid]["source"] == method:
            return order, user
    raise AssertionError(f"no {status} order paid by {method}")


def test_cancellation_refunds_the_exact_amount():
    order, user = order_of("pending")
    shop = desk()
    shop.cancel_pending_order(order["order_id"], "no longer needed")
    after = shop.store.read_entity("orders", order["order_id"])
    paid = order["payment_history"][0]
    assert after["status"] == "cancelled"
    assert after["payment_history"][-1] == {**paid, "transaction_type": "refund"}
    card = paid["payment_method_id"]
    before = user["payment_methods"][card]["balance"]
    now = shop.store.read_entity("users", user["user_id"])["payment_methods"][card]["balance"]
    assert now == pytest.approx(round(before + paid["amount"], 2))


def test_episodes_are_independent():
    order, _ = order_of("pending")
    first = desk()
    first.cancel_pending_order(order["order_id"], "no longer needed")
    assert desk().store.read_entity("orders", order["order_id"])["status"] == "pending"
    assert desk().store.find_differences() == {}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda d, o: d.cancel_pending_order(o["order_id"], "no longer needed"), "non-pending"),
        (lambda d, o: d.get_order_details("#W0"), "order not found"),
        (lambda d, o: d.return_delivered_order_items(o["order_id"], ["1"], "paypal_1"), "payment method not found"),
        (lambda d, o: d.find_user_id_by_email("nobody@example.com"), "user not found"),
    ],
)
def test_forbidden_actions_are_refused_and_change_nothing(act, message):
    order, _ = order_of("delivered")
    shop = desk()
    with pytest.raises(ToolError, match=message):
        act(shop, order)
    assert shop.store.find_differences() == {}


def test_gold_actions_of_all_tasks_have_their_recorded_effects():
    """Execute 550 actions; 18 of them read missing records or are refused, as in the published databases."""
    refused = done = 0
    for row in json.loads((RETAIL / "tasks.json").read_text()):
        shop = desk()
        for action in row["evaluation_criteria"]["actions"]:
            try:
                getattr(shop, action["name"])(**action["arguments"])
                done += 1
            except ToolError:
                refused += 1
    assert (done, refused) == (532, 18)


@pytest.mark.slow
def test_database_check_detects_small_differences():
    tasks = [RetailTasks(path=PATH).task(index) for index in range(70)]
    task = next(t for t in tasks if any(a["name"].startswith("return_") for a in t.private["actions"]))
    wanted = wanted_differences(PATH, task.private["actions"])
    assert wanted
    fewer = [a for a in task.private["actions"] if not a["name"].startswith("return_")]
    assert wanted_differences(PATH, fewer) != wanted


def test_reading_solves_no_task_that_requires_a_change():
    source = source_of("retail", path=PATH)
    task = next(t for t in map(source.task, range(70)) if t.tags["kind"] != "none")
    policy = iter([assistant("Is there anything else?")])
    played = asyncio.run(
        play_with_policy(
            lambda: environment_of("retail", path=PATH), task, lambda *_: next(policy), seed=0, max_turns=1
        )
    )
    assert asyncio.run(tau2(played.trajectory, task)).success is False
    assert played.trajectory.final["user_ended"] is True


def test_required_information_counts():
    source = source_of("retail", path=PATH)
    task = next(t for t in [*map(source.task, range(74)), *source.held_out(40)] if t.private["to_say"])
    script = task.private["script"]
    silent = [*script[:-1], ["say", "Is there anything else?"]]

    def episode(steps):
        left = iter(
            assistant(s[1]) if s[0] == "say" else assistant("", ToolCall(s[1], json.dumps(s[2]))) for s in steps
        )
        return asyncio.run(
            play_with_policy(lambda: environment_of("retail", path=PATH), task, lambda *_: next(left), seed=0)
        )

    assert asyncio.run(tau2(episode(script).trajectory, task)).success is True
    assert asyncio.run(tau2(episode(silent).trajectory, task)).success is False


def test_published_splits_are_disjoint():
    source = RetailTasks(path=PATH)
    assert not {source.task(i).id for i in range(200)} & {task.id for task in source.held_out(100)}
    assert len(source.held_out(100)) == 40


def test_folder_without_data_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"tasks\.json: no such file"):
        RetailTasks(path=str(tmp_path))
    with pytest.raises(RecipeError, match=r"db\.json: no such file"):
        RetailDesk(path=str(tmp_path))


def everyone():
    """Return all published tasks, including those that are never trained on."""
    return [parse_task(row, "retail") for row in json.loads((RETAIL / "tasks.json").read_text())]


def score_messages(task, *messages):
    """Return (reward, verdict) of an episode with these messages."""
    left = iter(messages)
    make = lambda: environment_of("retail", path=PATH)  # noqa: E731
    one = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=len(messages))).trajectory
    return asyncio.run(tau2(one, task)), one.final


def test_goodbye_solves_no_task():
    """Check the tasks whose words or unchanged database made these words a success."""
    source = RetailTasks(path=PATH)
    for task in everyone():
        score, final = score_messages(task, assistant("Is there anything else I can help with?"))
        assert (score.success, final["success"], final["user_ended"]) == (False, False, True)
    trained = {source.task(index).id for index in range(source.training_tasks)}
    assert (len(trained), source.left_out) == (69, 5)
    assert not trained & {f"retail/{id}" for id in (10, 25, 50, 57, 105)}


def test_tasks_without_a_change_require_an_action():
    task = next(task for task in everyone() if task.id == "retail/12")
    look = assistant("", ToolCall("find_user_id_by_email", json.dumps(task.private["actions"][0]["arguments"])))
    assert score_messages(task, look, assistant("Is there anything else?"))[0].success is True


def test_expert_solves_every_solvable_task():
    source = RetailTasks(path=PATH)
    tasks = [*map(source.task, range(source.training_tasks)), *source.held_out(100)]
    for task in tasks:
        steps = [
            assistant(s[1]) if s[0] == "say" else assistant("", ToolCall(s[1], json.dumps(s[2])))
            for s in task.private["script"]
        ]
        assert score_messages(task, *steps)[0].success is True


def test_reward_basis_of_a_task_is_read():
    task = next(task for task in everyone() if task.private["to_say"])
    silent = [*(assistant("", ToolCall(s[1], json.dumps(s[2]))) for s in task.private["script"][:-1])]
    silent.append(assistant("Goodbye!"))
    assert score_messages(task, *silent)[0].success is False
    alone = replace(task, private={**task.private, "reward_basis": ["DB"]})
    assert score_messages(alone, *silent)[0].success is True
    unjudged = next(task for task in everyone() if task.id == "retail/113")
    assert score_messages(unjudged, assistant("Goodbye!"))[0].parts["not_judged"] == 1.0
    row = json.loads((RETAIL / "tasks.json").read_text())[0]
    row["evaluation_criteria"]["reward_basis"] = ["DB", "GUESS"]
    with pytest.raises(TaskError, match="task 0 has the unsupported criterion GUESS"):
        parse_task(row, "retail")


@pytest.mark.parametrize(
    ("wanted", "text", "expected"),
    [
        ("10", "We have 10 options.", True),
        ("10", "Your order #W1054 of 2010, $110, 10%", False),
        ("8276.23", "The refund is $8,276.23.", True),
        ("481.50", "It cost 481.5", True),
        ("60", "60.5 and 160", False),
        ("mastercard", "It was paid with a Mastercard.", True),
        ("cotton", "cottonwood", False),
        ("943 Maple Drive", "to 943 maple drive, Suite 356", True),
        ("IL", "Chicago, IL", True),
        ("IL", "I will", False),
    ],
)
def test_required_information_matches_whole_words_and_numbers(wanted, text, expected):
    assert contains_information(wanted, text) is expected


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("Your exchange has been made. Have a nice day!", True),
        ("You're all set. Goodbye!", True),
        ("Have a great evening, and take care.", True),
        ("Is there anything else?", True),
        ("Before you have a great day: what is your zip code?", False),
        ("I have looked it up.", False),
    ],
)
def test_user_ends_after_a_goodbye(text, ends):
    user = ScenarioUser()
    user.scenario = {"reason_for_call": "A lamp.", "known_info": "I am Ann."}
    assert (user.answer(text).ended, user.verdict()["user_ended"]) == (ends, ends)


def test_item_cannot_be_modified_to_itself_but_can_be_exchanged_for_itself():
    """Follow tau2, which refuses the modification and accepts the exchange."""
    for status, method in (("pending", "modify_pending_order_items"), ("delivered", "exchange_delivered_order_items")):
        shop = desk()
        order = next(
            order
            for order in json.loads((RETAIL / "db.json").read_text())["orders"].values()
            if order["status"] == status and shop._item(order["items"][0]["item_id"])["available"]
        )
        item, paid = order["items"][0]["item_id"], order["payment_history"][0]["payment_method_id"]
        if status == "pending":
            with pytest.raises(ToolError, match="should be different from the old"):
                getattr(shop, method)(order["order_id"], [item], [item], paid)
            assert shop.store.find_differences() == {}
        else:
            getattr(shop, method)(order["order_id"], [item], [item], paid)
            assert shop.store.read_entity("orders", order["order_id"])["status"] == "exchange requested"


def test_amounts_are_rounded_as_in_tau2_and_compared_in_cents():
    assert (desk().calculate("1 + 2"), desk().calculate("10 / 3")) == ("3.0", "3.33")
    assert 0.1 + 0.2 != 0.3
    assert round_amounts({"orders/1": {"paid": [{"amount": 0.1 + 0.2}]}}) == {"orders/1": {"paid": [{"amount": 0.3}]}}
