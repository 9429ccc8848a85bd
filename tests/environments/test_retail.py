"""The retail domain: effects to the cent, refusals, and the published tasks."""

import asyncio
import json

import pytest

from tests_worlds import RETAIL, environment_of, needs_retail, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.retail import RetailDesk, RetailTasks
from whetstone.environments.retail.desk import wanted_differences
from whetstone.errors import RecipeError, TaskError, ToolError
from whetstone.evaluation.contract import play
from whetstone.rewards import retail

pytestmark = needs_retail
PATH = str(RETAIL)


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
    assert asyncio.run(retail(played.trajectory, task)).success is False
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

    assert asyncio.run(retail(episode(script).trajectory, task)).success is True
    assert asyncio.run(retail(episode(silent).trajectory, task)).success is False


def test_the_published_splits_share_no_task():
    source = RetailTasks(path=PATH)
    assert not {source.task(i).id for i in range(200)} & {task.id for task in source.held_out(100)}
    assert len(source.held_out(100)) == 40


def test_a_folder_without_data_is_said(tmp_path):
    with pytest.raises(TaskError, match=r"tasks\.json: no such file"):
        RetailTasks(path=str(tmp_path))
    with pytest.raises(RecipeError, match=r"db\.json: no such file"):
        RetailDesk(path=str(tmp_path))
