"""The telecom domain: a phone, the records it depends on, and a customer who does what he is told to."""

import asyncio
import json

import pytest

from tests_worlds import environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tau2 import Caller, TelecomDesk, task_of, told
from whetstone.environments.tau2.phone import ACCESS_POINT, Phone
from whetstone.environments.users.hands import HANDS, Hands
from whetstone.errors import TaskError, ToolError
from whetstone.evaluation.contract import play
from whetstone.rewards import tau2
from whetstone.tools.protocol import Episode

DEVICE = {
    "sim_card_status": "active", "sim_card_missing": False, "airplane_mode": False, "battery_level": 80,
    "network_signal_strength": "excellent", "network_technology_connected": "5G",
    "network_connection_status": "connected", "network_mode_preference": "4g_5g_preferred", "data_enabled": True,
    "roaming_enabled": False, "wifi_enabled": False, "wifi_connected": False, "wifi_signal_strength": "none",
    "wifi_calling_enabled": False, "wifi_calling_mms_over_wifi": False, "data_saver_mode": False,
    "vpn_enabled_setting": False, "vpn_connected": False, "active_apn_settings": dict(ACCESS_POINT),
    "app_statuses": {"messaging": {"permissions": {"sms": True, "storage": True, "phone": True, "network": False}}},
}  # fmt: skip
RECORDS = """
[[plans]]
plan_id = "P1"
data_limit_gb = 5.0
price_per_month = 40.0
data_refueling_price_per_gb = 2.0
[[lines]]
line_id = "L1"
phone_number = "555"
status = "Active"
plan_id = "P1"
data_used_gb = 5.5
data_refueling_gb = 0.0
roaming_enabled = false
[[devices]]
device_id = "D1"
[[customers]]
customer_id = "C1"
full_name = "Ann Lee"
date_of_birth = "1990-01-01"
phone_number = "556"
line_ids = ["L1"]
bill_ids = ["B1"]
[[bills]]
bill_id = "B1"
issue_date = "2025-01-05"
total_due = 40.0
status = "Paid"
line_items = []
"""
OF_L1 = {"customer_id": "C1", "line_id": "L1"}


def called(side, name, /, **arguments):
    return {"env_type": side, "func_name": name, "arguments": arguments, "assert_value": True}


def done(side, name, /, **arguments):
    return {"requestor": side, "name": name, "arguments": arguments}


WHO = called("user", "set_user_info", name="Ann Lee", phone_number="555")
WORKS = called("user", "assert_mobile_data_status", expected_status=True)


def row(id="one", beginning=(), actions=(), assertions=(WORKS,), basis=("ENV_ASSERTION",)):
    told = {"reason_for_call": "My data does not work.", "known_info": "You are Ann Lee, 555."}
    criteria = {"actions": list(actions), "env_assertions": list(assertions), "reward_basis": list(basis)}
    scenario = {"persona": None, "instructions": told}
    state = {"initialization_actions": [WHO, *beginning]}
    return {"id": id, "user_scenario": scenario, "initial_state": state, "evaluation_criteria": criteria}


OUT_OF_DATA = row(actions=[done("assistant", "refuel_data", **OF_L1, gb_amount=2.0)])
NOT_PAID = row(
    "two",
    beginning=[
        called("assistant", "set_data_usage", **OF_L1, data_used_gb=1.0),
        called("assistant", "suspend_line_for_overdue_bill", **OF_L1, new_bill_id="B9", contract_ended=False),
        called("user", "simulate_network_search"),
    ],
    actions=[
        done("assistant", "send_payment_request", customer_id="C1", bill_id="B9"),
        done("user", "make_payment"),
        done("assistant", "resume_line", **OF_L1),
        done("user", "reboot_device"),
    ],
    assertions=[WORKS, called("assistant", "assert_no_overdue_bill", overdue_bill_id="B9")],
)


@pytest.fixture
def path(tmp_path):
    device = "".join(f"{key} = {json.dumps(value)}\n" for key, value in DEVICE.items() if not isinstance(value, dict))
    apn = "".join(f"{key} = {json.dumps(value)}\n" for key, value in ACCESS_POINT.items())
    allowed = "sms = true\nstorage = true\nphone = true\nnetwork = false\n"
    apps = f"[device.app_statuses.messaging.permissions]\n{allowed}"
    (tmp_path / "db.toml").write_text(RECORDS)
    (tmp_path / "user_db.toml").write_text(f"[device]\n{device}[device.active_apn_settings]\n{apn}{apps}")
    (tmp_path / "tasks.json").write_text(json.dumps([OUT_OF_DATA, NOT_PAID]))
    (tmp_path / "split_tasks.json").write_text(json.dumps({"train": ["one"], "test": ["two"]}))
    (tmp_path / "main_policy.md").write_text("Be kind.")
    (tmp_path / "tech_support_manual.md").write_text("Restart it.")
    return str(tmp_path)


def scored(path, task, steps):
    left = iter(steps)
    make = lambda: environment_of("telecom", path=path)  # noqa: E731
    one = asyncio.run(play(make, task, lambda *_: next(left), seed=0, max_turns=len(steps))).trajectory
    return asyncio.run(tau2(one, task)), one


def test_a_phone_needs_everything_it_needs_to_find_a_network():
    phone = Phone(DEVICE)
    phone.search()
    assert phone.speed() == (275.0, "excellent")  # (50 + 500) / 2 megabits of 5G at four bars
    for break_it, mend_it in (
        (phone.toggle_airplane_mode, phone.toggle_airplane_mode),
        (lambda: phone.device.update(sim_card_missing=True), phone.reseat_sim_card),
        (lambda: phone.set_apn_settings({"apn_name": "broken"}), phone.reset_apn_settings),
        (lambda: setattr(phone, "line_active", False), lambda: setattr(phone, "line_active", True)),
    ):
        break_it()
        phone.reboot_device()
        assert (phone.device["network_connection_status"], phone.speed()[0]) == ("no_service", None)
        mend_it()
        phone.reboot_device()
        assert phone.device["network_connection_status"] == "connected"


@pytest.mark.parametrize(
    ("act", "speed"),
    [
        (lambda p: p.set_network_mode_preference("2g_only"), (0.05, "very poor")),  # 0.25 at one bar: a fifth
        (lambda p: p.set_network_mode_preference("3g_only"), (1.5, "poor")),  # 3 at two bars: half
        (lambda p: p.set_network_mode_preference("4g_only"), (44.0, "good")),  # 55 at three bars: four fifths
        (lambda p: p.toggle_data_saver_mode(), (55.0, "good")),  # a fifth of 275
        (lambda p: (p.connect_vpn(), setattr(p, "vpn_performance", "poor")), (27.5, "good")),  # a tenth
        (lambda p: p.toggle_data(), (None, "no connection")),
        (lambda p: setattr(p, "abroad", True), (None, "no connection")),
    ],
)
def test_what_is_set_decides_how_fast_data_is(act, speed):
    phone = Phone(DEVICE)
    act(phone)
    assert phone.speed() == speed


def test_picture_messages_need_data_a_permission_an_address_and_no_calls_over_wifi():
    for spoil in (
        lambda p: p.set_network_mode_preference("2g_only"),
        lambda p: p.device["app_statuses"]["messaging"]["permissions"].update(sms=False),
        lambda p: p.device["active_apn_settings"].update(mmsc_url=None),
        lambda p: p.device.update(wifi_calling_enabled=True, wifi_calling_mms_over_wifi=True),
    ):
        phone = Phone(DEVICE)
        assert phone.mms_works()
        spoil(phone)
        assert not phone.mms_works()


def test_what_a_customer_cannot_do_is_told_him_and_changes_nothing():
    phone = Phone(DEVICE)
    for act in (
        lambda: phone.grant_app_permission("messaging", "camera"),
        lambda: phone.grant_app_permission("maps", "sms"),
        lambda: phone.set_network_mode_preference("6g"),
        lambda: phone.set_apn_settings({"name": "x"}),
        phone.make_payment,
    ):
        with pytest.raises(ToolError):
            act()
    assert phone.device == DEVICE


def test_both_sides_see_what_the_other_has_changed(path):
    desk = TelecomDesk(path=path)
    episode = Episode(task_of(NOT_PAID, "telecom"), 0)
    desk.open(episode)
    hands = episode.shared[HANDS]
    assert hands.use("check_payment_request", {}) == "There is no payment request."
    desk.send_payment_request("C1", "B9")
    assert "B9, 40.0 USD" in hands.use("check_payment_request", {})
    hands.use("make_payment", {})
    assert desk.store.look("bills", "B9")["status"] == "Paid"
    desk.resume_line("C1", "L1")
    assert desk.phone.data_works() is False  # it has not looked for a network since
    hands.use("reboot_device", {})
    assert desk.verdict()["assertions_met"] is True


def test_data_that_is_bought_is_charged_on_a_bill_of_its_own(path):
    desk = TelecomDesk(path=path)
    desk.refuel_data("C1", "L1", 2.0)
    desk.refuel_data("C1", "L1", 0.5)
    bill = desk.store.look("bills", desk.store.look("customers", "C1")["bill_ids"][-1])
    assert (bill["total_due"], len(bill["line_items"]), bill["status"]) == (5.0, 2, "Draft")  # 2.5 GB at 2 dollars
    for act in (lambda: desk.refuel_data("C1", "L1", 0.0), lambda: desk.resume_line("C1", "L1")):
        with pytest.raises(ToolError):
            act()


def test_the_expert_helps_and_silence_does_not(path):
    source = source_of("telecom", path=path)
    for task in (source.task(0), *source.held_out(1)):
        steps = [
            assistant(one[1]) if one[0] == "say" else assistant("", ToolCall(one[1], json.dumps(one[2])))
            for one in task.private["script"]
        ]
        score, one = scored(path, task, steps)
        assert (score.success, score.parts["assertions"]) == (True, 1.0)
        assert "<main_policy>\nBe kind." in one.opening[0].text
        assert scored(path, task, [assistant("Is there anything else?")])[0].success is False


def test_an_action_of_which_nothing_is_compared_is_any_call_of_it(path):
    transfer = {**done("assistant", "transfer_to_human_agents", summary="SIM"), "compare_args": []}
    task = task_of(row(actions=[transfer], assertions=[], basis=["ENV_ASSERTION", "ACTION"]), "telecom")
    call = assistant("", ToolCall("transfer_to_human_agents", json.dumps({"summary": "in other words"})))
    assert scored(path, task, [call, assistant("Anything else?")])[0].success
    assert not scored(path, task, [assistant("Anything else?")])[0].success


def test_a_customer_does_what_is_named_in_the_order_it_is_named():
    used = []
    phone = Phone(DEVICE)
    hands = Hands([phone.reboot_device, phone.toggle_data], lambda name, given: used.append((name, given)) or "done")
    caller = Caller()
    caller.open(Episode(task_of(OUT_OF_DATA, "telecom"), 0, {HANDS: hands}))
    said = f"{told('grant_app_permission', {'app_name': 'messaging', 'permission': 'sms'})} Then reboot device!"
    assert caller.answer(said).text == "grant_app_permission: done\nreboot_device: done"
    assert used == [("grant_app_permission", {"app_name": "messaging", "permission": "sms"}), ("reboot_device", {})]
    assert caller.answer("f(x) is nothing. What is your name?").text == "You are Ann Lee, 555."


def test_a_task_that_begins_with_something_unknown_is_refused():
    with pytest.raises(TaskError, match="there is no melt of user"):
        task_of(row(beginning=[called("user", "melt")]), "telecom")
    with pytest.raises(TaskError, match="is judged by DB"):
        task_of(row(basis=["DB"]), "telecom")
