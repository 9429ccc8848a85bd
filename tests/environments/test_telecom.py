"""The telecom domain: a phone, the records it depends on, and a user who follows instructions."""

import asyncio
import json

import pytest

from support.environments import environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tau2 import Caller, TelecomDesk, instruction_text, parse_task
from whetstone.environments.tau2.phone import ACCESS_POINT, Phone
from whetstone.environments.user_simulators.user_tools import USER_TOOLS, UserTools
from whetstone.errors import TaskError, ToolError
from whetstone.evaluation.environment_checks import play_with_policy
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
    instructions = {"reason_for_call": "My data does not work.", "known_info": "You are Ann Lee, 555."}
    criteria = {"actions": list(actions), "env_assertions": list(assertions), "reward_basis": list(basis)}
    scenario = {"persona": None, "instructions": instructions}
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
    one = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=len(steps))).trajectory
    return asyncio.run(tau2(one, task)), one


def test_phone_requires_every_setting_for_a_network():
    phone = Phone(DEVICE)
    phone.search_network()
    assert phone.measure_speed() == (275.0, "excellent")  # (50 + 500) / 2 megabits of 5G at four bars
    for break_it, mend_it in (
        (phone.toggle_airplane_mode, phone.toggle_airplane_mode),
        (lambda: phone.device.update(sim_card_missing=True), phone.reseat_sim_card),
        (lambda: phone.set_apn_settings({"apn_name": "broken"}), phone.reset_apn_settings),
        (lambda: setattr(phone, "line_active", False), lambda: setattr(phone, "line_active", True)),
    ):
        break_it()
        phone.reboot_device()
        assert (phone.device["network_connection_status"], phone.measure_speed()[0]) == ("no_service", None)
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
def test_settings_determine_the_speed_of_data(act, speed):
    phone = Phone(DEVICE)
    act(phone)
    assert phone.measure_speed() == speed


def test_picture_messages_require_data_permission_address_and_no_wifi_calling():
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


def test_impossible_actions_of_the_user_are_answered_and_change_nothing():
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


def test_changes_are_visible_to_user_and_agent(path):
    desk = TelecomDesk(path=path)
    episode = Episode(parse_task(NOT_PAID, "telecom"), 0)
    desk.open(episode)
    hands = episode.shared[USER_TOOLS]
    assert hands.use("check_payment_request", {}) == "There is no payment request."
    desk.send_payment_request("C1", "B9")
    assert "B9, 40.0 USD" in hands.use("check_payment_request", {})
    hands.use("make_payment", {})
    assert desk.store.read_entity("bills", "B9")["status"] == "Paid"
    desk.resume_line("C1", "L1")
    assert desk.phone.data_works() is False  # it has not searched for a network since
    hands.use("reboot_device", {})
    assert desk.verdict()["assertions_met"] is True


def test_purchased_data_is_charged_on_a_separate_bill(path):
    desk = TelecomDesk(path=path)
    desk.refuel_data("C1", "L1", 2.0)
    desk.refuel_data("C1", "L1", 0.5)
    bill = desk.store.read_entity("bills", desk.store.read_entity("customers", "C1")["bill_ids"][-1])
    assert (bill["total_due"], len(bill["line_items"]), bill["status"]) == (5.0, 2, "Draft")  # 2.5 GB at 2 dollars
    for act in (lambda: desk.refuel_data("C1", "L1", 0.0), lambda: desk.resume_line("C1", "L1")):
        with pytest.raises(ToolError):
            act()


def test_expert_succeeds_and_inaction_fails(path):
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


def test_action_without_compared_arguments_matches_any_call(path):
    transfer = {**done("assistant", "transfer_to_human_agents", summary="SIM"), "compare_args": []}
    task = parse_task(row(actions=[transfer], assertions=[], basis=["ENV_ASSERTION", "ACTION"]), "telecom")
    call = assistant("", ToolCall("transfer_to_human_agents", json.dumps({"summary": "in other words"})))
    assert scored(path, task, [call, assistant("Anything else?")])[0].success
    assert not scored(path, task, [assistant("Anything else?")])[0].success


def test_user_executes_named_actions_in_order():
    used = []
    phone = Phone(DEVICE)
    hands = UserTools(
        [phone.reboot_device, phone.toggle_data], lambda name, arguments: used.append((name, arguments)) or "done"
    )
    caller = Caller()
    caller.open(Episode(parse_task(OUT_OF_DATA, "telecom"), 0, {USER_TOOLS: hands}))
    grant = instruction_text("grant_app_permission", {"app_name": "messaging", "permission": "sms"})
    request = f"{grant} Then reboot device!"
    assert caller.answer(request).text == "grant_app_permission: done\nreboot_device: done"
    assert used == [("grant_app_permission", {"app_name": "messaging", "permission": "sms"}), ("reboot_device", {})]
    assert caller.answer("f(x) is nothing. What is your name?").text == "You are Ann Lee, 555."


def test_task_with_an_unknown_initialization_is_refused():
    with pytest.raises(TaskError, match="no function named melt of user"):
        parse_task(row(beginning=[called("user", "melt")]), "telecom")
    with pytest.raises(TaskError, match="unsupported criterion DB"):
        parse_task(row(basis=["DB"]), "telecom")
