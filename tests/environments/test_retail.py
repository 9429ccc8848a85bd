"""The retail domain: effects to the cent, refusals, and the published tasks."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests_worlds import RETAIL, environment_of, needs_retail, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tau2 import RetailDesk, RetailTasks, task_of
from whetstone.environments.tau2 import wanted_differences as differences_of
from whetstone.environments.tau2.store import in_cents
from whetstone.environments.users.scenario import ScenarioUser
from whetstone.errors import RecipeError, TaskError, ToolError
from whetstone.evaluation.contract import play
from whetstone.rewards import tau2
from whetstone.rewards.worlds.tau2 import was_said

pytestmark = needs_retail
PATH = str(RETAIL)


def wanted_differences(path, actions):
    return differences_of(RetailDesk, path, actions)


def desk():
    return RetailDesk(path=PATH)


def order_of(status, method="gift_card"):
    """An order of a status that was paid by a method of a kind."""
    database = json.loads((RETAIL / "db.json").read_text())
    for order in database["orders"].values():
        user = database["users"][order["user_id"]]
        paid = order["payment_history"][0]["payment_method_id"]
        if order["status"] == status and user["payment_methods"][paid]["source"] == method:
            return order, user
    raise AssertionError(f"no {status} order paid by {method}")


def test_cancelling_gives_the_money_back_to_the_cent():
    order, user = order_of("pending")
    shop = desk()
    shop.cancel_pending_order(order["order_id"], "no longer needed")
    after = shop.store.look("orders", order["order_id"])
    paid = order["payment_history"][0]
    assert after["status"] == "cancelled"
    assert after["payment_history"][-1] == {**paid, "transaction_type": "refund"}
    card = paid["payment_method_id"]
    before = user["payment_methods"][card]["balance"]
    now = shop.store.look("users", user["user_id"])["payment_methods"][card]["balance"]
    assert now == pytest.approx(round(before + paid["amount"], 2))


def test_an_episode_changes_nothing_for_the_next():
    order, _ = order_of("pending")
    first = desk()
    first.cancel_pending_order(order["order_id"], "no longer needed")
    assert desk().store.look("orders", order["order_id"])["status"] == "pending"
    assert desk().store.differences() == {}


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda d, o: d.cancel_pending_order(o["order_id"], "no longer needed"), "non-pending"),
        (lambda d, o: d.get_order_details("#W0"), "order not found"),
        (lambda d, o: d.return_delivered_order_items(o["order_id"], ["1"], "paypal_1"), "payment method not found"),
        (lambda d, o: d.find_user_id_by_email("nobody@example.com"), "user not found"),
    ],
)
def test_what_the_rules_forbid_is_refused_and_changes_nothing(act, said):
    order, _ = order_of("delivered")
    shop = desk()
    with pytest.raises(ToolError, match=said):
        act(shop, order)
    assert shop.store.differences() == {}


def test_the_gold_actions_of_all_tasks_do_what_they_were_recorded_to_do():
    """550 actions; 18 of them look up what is not there or are refused, as in the published runs' databases."""
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
def test_the_database_check_tells_right_from_nearly_right():
    tasks = [RetailTasks(path=PATH).task(index) for index in range(70)]
    task = next(t for t in tasks if any(a["name"].startswith("return_") for a in t.private["actions"]))
    wanted = wanted_differences(PATH, task.private["actions"])
    assert wanted
    fewer = [a for a in task.private["actions"] if not a["name"].startswith("return_")]
    assert wanted_differences(PATH, fewer) != wanted


def test_reading_alone_solves_no_task_that_asks_for_a_change():
    source = source_of("retail", path=PATH)
    task = next(t for t in map(source.task, range(70)) if t.tags["kind"] != "none")
    policy = iter([assistant("Is there anything else?")])
    played = asyncio.run(
        play(lambda: environment_of("retail", path=PATH), task, lambda *_: next(policy), seed=0, max_turns=1)
    )
    assert asyncio.run(tau2(played.trajectory, task)).success is False
    assert played.trajectory.final["user_ended"] is True


def test_what_had_to_be_said_counts():
    source = source_of("retail", path=PATH)
    task = next(t for t in [*map(source.task, range(74)), *source.held_out(40)] if t.private["to_say"])
    script = task.private["script"]
    silent = [*script[:-1], ["say", "Is there anything else?"]]

    def episode(steps):
        left = iter(
            assistant(s[1]) if s[0] == "say" else assistant("", ToolCall(s[1], json.dumps(s[2]))) for s in steps
        )
        return asyncio.run(play(lambda: environment_of("retail", path=PATH), task, lambda *_: next(left), seed=0))

    assert asyncio.run(tau2(episode(script).trajectory, task)).success is True
    assert asyncio.run(tau2(episode(silent).trajectory, task)).success is False


def test_the_published_splits_share_no_task():
    source = RetailTasks(path=PATH)
    assert not {source.task(i).id for i in range(200)} & {task.id for task in source.held_out(100)}
    assert len(source.held_out(100)) == 40


def test_a_folder_without_data_is_said(tmp_path):
    with pytest.raises(TaskError, match=r"tasks\.json: no such file"):
        RetailTasks(path=str(tmp_path))
    with pytest.raises(RecipeError, match=r"db\.json: no such file"):
        RetailDesk(path=str(tmp_path))


def everyone():
    """All published tasks, also those nobody is trained on."""
    return [task_of(row, "retail") for row in json.loads((RETAIL / "tasks.json").read_text())]


def served(task, *said):
    """(the reward, the verdict) of an episode in which this is said and called."""
    left = iter(said)
    make = lambda: environment_of("retail", path=PATH)  # noqa: E731
    one = asyncio.run(play(make, task, lambda *_: next(left), seed=0, max_turns=len(said))).trajectory
    return asyncio.run(tau2(one, task)), one.final


def test_nobody_is_helped_by_goodbye_alone():
    """Seven tasks paid for these words, and eleven worlds were as they should be left."""
    source = RetailTasks(path=PATH)
    for task in everyone():
        score, final = served(task, assistant("Is there anything else I can help with?"))
        assert (score.success, final["success"], final["user_ended"]) == (False, False, True)
    trained = {source.task(index).id for index in range(source.training_tasks)}
    assert (len(trained), source.left_out) == (69, 5)
    assert not trained & {f"retail/{id}" for id in (10, 25, 50, 57, 105)}


def test_where_nothing_is_to_be_changed_something_has_to_be_done():
    task = next(task for task in everyone() if task.id == "retail/12")
    look = assistant("", ToolCall("find_user_id_by_email", json.dumps(task.private["actions"][0]["arguments"])))
    assert served(task, look, assistant("Is there anything else?"))[0].success is True


def test_the_expert_helps_everyone_who_can_be():
    source = RetailTasks(path=PATH)
    tasks = [*map(source.task, range(source.training_tasks)), *source.held_out(100)]
    for task in tasks:
        steps = [
            assistant(s[1]) if s[0] == "say" else assistant("", ToolCall(s[1], json.dumps(s[2])))
            for s in task.private["script"]
        ]
        assert served(task, *steps)[0].success is True


def test_what_a_task_is_judged_by_is_read():
    task = next(task for task in everyone() if task.private["to_say"])
    silent = [*(assistant("", ToolCall(s[1], json.dumps(s[2]))) for s in task.private["script"][:-1])]
    silent.append(assistant("Goodbye!"))
    assert served(task, *silent)[0].success is False
    alone = replace(task, private={**task.private, "reward_basis": ["DB"]})
    assert served(alone, *silent)[0].success is True
    unjudged = next(task for task in everyone() if task.id == "retail/113")
    assert served(unjudged, assistant("Goodbye!"))[0].parts["not_judged"] == 1.0
    row = json.loads((RETAIL / "tasks.json").read_text())[0]
    row["evaluation_criteria"]["reward_basis"] = ["DB", "GUESS"]
    with pytest.raises(TaskError, match="task 0 is judged by GUESS"):
        task_of(row, "retail")


@pytest.mark.parametrize(
    ("wanted", "said", "is_said"),
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
def test_what_was_said_is_whole_words_and_numbers(wanted, said, is_said):
    assert was_said(wanted, said) is is_said


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
def test_the_customer_goes_when_he_is_sent_off(text, ends):
    user = ScenarioUser()
    user.scenario = {"reason_for_call": "A lamp.", "known_info": "I am Ann."}
    assert (user.answer(text).ended, user.verdict()["user_ended"]) == (ends, ends)


def test_an_item_is_not_changed_to_itself_but_may_be_exchanged_for_itself():
    """As in tau2: it refuses the one and takes the other."""
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
            assert shop.store.differences() == {}
        else:
            getattr(shop, method)(order["order_id"], [item], [item], paid)
            assert shop.store.look("orders", order["order_id"])["status"] == "exchange requested"


def test_amounts_are_rounded_where_tau2_rounds_them_and_comparedin_cents():
    assert (desk().calculate("1 + 2"), desk().calculate("10 / 3")) == ("3.0", "3.33")
    assert 0.1 + 0.2 != 0.3
    assert in_cents({"orders/1": {"paid": [{"amount": 0.1 + 0.2}]}}) == {"orders/1": {"paid": [{"amount": 0.3}]}}
