"""Initial state and final assertions of telecom tasks of tau2-bench, by the function names in its files.

Note:
    `turn_data_on` does not search for a network, `turn_data_off` does. A name that is not defined here is a tool of the
    respective side.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from whetstone.errors import TaskError, ToolError

if TYPE_CHECKING:
    from whetstone.environments.tau2.telecom import TelecomDesk


def initialize_state(desk: TelecomDesk, action: Mapping[str, Any]) -> None:
    """Execute an initialization action of a task.

    Args:
        desk: Domain whose records or phone are changed.
        action: `env_type` (`user` for the phone), `func_name` and `arguments`.

    Raises:
        TaskError: If there is no such function.
    """
    _call_function(desk, action)


def assertion_holds(desk: TelecomDesk, assertion: Mapping[str, Any]) -> bool:
    """Return whether a final assertion of a task holds.

    Args:
        desk: Domain after the episode.
        assertion: `env_type`, `func_name`, `arguments`, and `assert_value`, the expected result.

    Raises:
        TaskError: If there is no such function.
    """
    return bool(_call_function(desk, assertion)) == bool(assertion.get("assert_value", True))


def action_exists(action: Mapping[str, Any], desk: type[TelecomDesk], phone: type[Any]) -> bool:
    """Return whether the function of an action or assertion is implemented.

    Args:
        action: `env_type` and `func_name`.
        desk: Class of the domain, for functions of the records.
        phone: Class of the phone, for functions of the phone.
    """
    name, at_phone = str(action["func_name"]), action["env_type"] == "user"
    return hasattr(_AtPhone if at_phone else _AtDesk, name) or hasattr(phone if at_phone else desk, name)


def _call_function(desk: TelecomDesk, action: Mapping[str, Any]) -> Any:
    """Call the function of an action or assertion and synchronize phone and records."""
    name, at_phone = str(action["func_name"]), action["env_type"] == "user"
    staging: Any = _AtPhone(desk) if at_phone else _AtDesk(desk)
    tools: Any = desk.phone if at_phone else desk
    method = getattr(staging, name, None) or getattr(tools, name, None)
    if method is None or name.startswith("_"):
        raise TaskError(f"telecom: no function named {name} of {action['env_type']}")
    result = method(**action["arguments"])
    desk.synchronize()
    return result


class _AtPhone:
    """Functions of the phone that tasks name in addition to its tools."""

    def __init__(self, desk: TelecomDesk) -> None:
        self._desk, self._phone, self._device = desk, desk.phone, desk.phone.device

    def set_user_info(self, name: str, phone_number: str) -> None:
        self._desk.number = phone_number

    def set_user_location(self, abroad: bool) -> None:
        self._phone.abroad = abroad

    def simulate_network_search(self) -> None:
        self._phone.search_network()

    def turn_airplane_mode_on(self) -> None:
        self._switch("airplane_mode", True)
        self._device |= {"vpn_connected": False, "wifi_connected": False}

    def turn_airplane_mode_off(self) -> None:
        self._switch("airplane_mode", False)

    def unseat_sim_card(self) -> None:
        self._switch("sim_card_missing", True)

    def lock_sim_card(self, mode: str) -> None:
        self._switch("sim_card_status", f"locked_{mode}")

    def turn_data_on(self) -> None:
        self._device["data_enabled"] = True

    def turn_data_off(self) -> None:
        self._switch("data_enabled", False)

    def turn_roaming_on(self) -> None:
        self._switch("roaming_enabled", True)

    def turn_roaming_off(self) -> None:
        self._switch("roaming_enabled", False)

    def turn_data_saver_mode_on(self) -> None:
        self._device["data_saver_mode"] = True

    def turn_data_saver_mode_off(self) -> None:
        self._device["data_saver_mode"] = False

    def break_apn_settings(self) -> None:
        self._device["active_apn_settings"]["apn_name"] = "broken"
        self._phone.search_network()

    def break_apn_mms_setting(self) -> None:
        self._device["active_apn_settings"]["mmsc_url"] = None

    def set_wifi_calling(self, enabled: bool, mms_over_wifi: bool | None = None) -> None:
        self._device["wifi_calling_enabled"] = enabled
        if mms_over_wifi is not None:
            self._device["wifi_calling_mms_over_wifi"] = mms_over_wifi

    def break_vpn(self) -> None:
        self._device["vpn_connected"], self._phone.vpn_performance = True, "poor"

    def remove_app_permission(self, app_name: str, permission: str) -> None:
        self._device["app_statuses"][app_name]["permissions"][permission.lower()] = False

    def assert_airplane_mode_status(self, expected_status: bool) -> bool:
        return bool(self._device["airplane_mode"] == expected_status)

    def assert_service_status(self, expected_status: str) -> bool:
        return bool(self._device["network_connection_status"] == expected_status)

    def assert_mobile_data_status(self, expected_status: bool) -> bool:
        return self._phone.data_works() == expected_status

    def assert_mobile_roaming_status(self, expected_status: bool) -> bool:
        return bool(self._device["roaming_enabled"] == expected_status)

    def assert_mobile_data_saver_mode_status(self, expected_status: bool) -> bool:
        return bool(self._device["data_saver_mode"] == expected_status)

    def assert_internet_speed(self, expected_speed: float, expected_desc: str | None = None) -> bool:
        speed, quality = self._phone.measure_speed()
        return (speed or 0.0) >= expected_speed and expected_desc in (None, quality)

    def assert_internet_not_excellent(self) -> bool:
        return self._phone.measure_speed()[1] != "excellent"

    def assert_can_send_mms(self, expected_status: bool) -> bool:
        return self._phone.mms_works() == expected_status

    def assert_mobile_data_usage_exceeded(self, expected_status: bool) -> bool:
        return self._phone.data_used_up == expected_status

    def _switch(self, key: str, value: Any) -> None:
        self._device[key] = value
        self._phone.search_network()


class _AtDesk:
    """Functions of the records that tasks name in addition to the agent's tools."""

    def __init__(self, desk: TelecomDesk) -> None:
        self._desk, self._store = desk, desk.store

    def set_data_usage(self, customer_id: str, line_id: str, data_used_gb: float) -> None:
        self._store.edit_entity("lines", line_id)["data_used_gb"] = data_used_gb

    def suspend_line_for_overdue_bill(
        self, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
    ) -> None:
        line = self._store.edit_entity("lines", line_id)
        price = self._store.read_entity("plans", line["plan_id"])["price_per_month"]
        item = {"description": f"Charge for line {line_id}", "amount": price, "date": "2025-02-25"}
        bill = {
            "bill_id": new_bill_id, "customer_id": customer_id, "period_start": "2025-01-01",
            "period_end": "2025-01-31", "issue_date": "2025-01-01", "due_date": "2025-01-15", "total_due": price,
            "line_items": [{**item, "item_type": "Charge"}], "status": "Overdue",
        }  # fmt: skip
        self._store.add_entity("bills", new_bill_id, bill)
        self._store.edit_entity("customers", customer_id)["bill_ids"].append(new_bill_id)
        line["status"], line["suspension_start_date"] = "Suspended", "2025-02-25"
        if contract_ended:
            line["contract_end_date"] = "2025-01-31"

    def assert_data_refueling_amount(self, customer_id: str, line_id: str, expected_amount: float) -> bool:
        return bool(abs(self._store.read_entity("lines", line_id)["data_refueling_gb"] - expected_amount) < 1e-6)

    def assert_line_status(self, customer_id: str, line_id: str, expected_status: str) -> bool:
        return bool(self._store.read_entity("lines", line_id)["status"] == expected_status)

    def assert_overdue_bill_exists(self, customer_id: str, overdue_bill_id: str) -> bool:
        owned = overdue_bill_id in self._store.read_entity("customers", customer_id)["bill_ids"]
        return owned and bool(self._store.read_entity("bills", overdue_bill_id)["status"] == "Overdue")

    def assert_no_overdue_bill(self, overdue_bill_id: str) -> bool:
        try:
            return bool(self._store.read_entity("bills", overdue_bill_id)["status"] == "Paid")
        except ToolError:
            return True
