"""The customer's phone in the telecom domain of tau2-bench: tools, settings and their effects; own implementation.

Note:
    Settings take effect at different times. The connection changes with a network search, and only some switches start
    one. The settings of the access point are reset at the next restart. A connection that was made slow stays slow when
    it is re-established.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

import copy
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from whetstone.errors import RecipeError, ToolError

Mode = Literal["4g_5g_preferred", "4g_only", "3g_only", "2g_only"]
_SEARCHED = {"4g_5g_preferred": "5G", "4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
_SIGNAL = {"none": "none", "2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}
"""Signal strength of each network at the customer's location."""
_BARS = {"none": "no signal", "poor": "1 bar", "fair": "2 bars", "good": "3 bars", "excellent": "4 bars"}
_MEGABITS = {"none": 0.0, "2G": 0.25, "3G": 3.0, "4G": 55.0, "5G": 275.0}
_OF_IT = {"none": 0.0, "poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_QUALITY = ((1, "very poor"), (5, "poor"), (25, "fair"), (100, "good"), (float("inf"), "excellent"))
"""Upper bounds in megabits per second, and names, of connection qualities."""
_SLOW_VPN, _SAVING = 0.1, 0.2
"""Factors of the speed with a bad VPN, and with the data saver."""
ACCESS_POINT = {"apn_name": "internet", "mms_apn": "mms", "mmsc_url": "http://mms.carrier.com/mms/wapenc"}


@functools.lru_cache(maxsize=4)
def read_phone(path: str) -> Mapping[str, Any]:
    """Read the settings of the phone from `user_db.toml` of the domain's folder.

    Cached.

    Raises:
        RecipeError: If there is no such file.
    """
    file = Path(path) / "user_db.toml"
    if not file.is_file():
        raise RecipeError(f"{file}: no such file; set path to the folder data/tau2/domains/telecom of tau2-bench")
    device: Mapping[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["device"]
    return device


class PhoneState:
    """State of the phone and its line, and the connection that results from it.

    Args:
        device: Settings, as `read_phone` returns them.
    """

    def __init__(self, device: Mapping[str, Any]) -> None:
        self.device = copy.deepcopy(dict(device))
        self.abroad = False
        self.line_active, self.roaming_allowed, self.data_used_up = True, False, False
        """State of the line in the company's records."""
        self.bill: dict[str, Any] | None = None
        """Bill with a payment request: `bill_id`, `amount_due`, `paid`; None without a request."""
        self.vpn_performance = "excellent"

    @property
    def sim(self) -> str:
        """Return the state of the SIM card.

        One of `active`, `missing`, `locked_pin` and `locked_puk`.
        """
        return "missing" if self.device["sim_card_missing"] else str(self.device["sim_card_status"])

    def leave_wifi(self) -> None:
        """Disconnect from Wi-Fi."""
        self.device |= {"wifi_connected": False, "wifi_signal_strength": "none"}

    def permissions_of(self, app_name: str) -> dict[str, bool]:
        """Return the permissions of an app: granted or not, by name.

        Raises:
            ToolError: If the app does not exist.
        """
        if app_name not in self.device["app_statuses"]:
            raise ToolError(f"no app {app_name}; there are {', '.join(self.device['app_statuses'])}")
        permissions: dict[str, bool] = self.device["app_statuses"][app_name]["permissions"]
        return permissions

    def search_network(self) -> None:
        """Search for a mobile network and update the connection."""
        d = self.device
        has_network = (
            self.sim == "active"
            and not d["airplane_mode"]
            and d["active_apn_settings"]["apn_name"] != "broken"
            and self.line_active
        )
        technology = _SEARCHED[d["network_mode_preference"]] if has_network else "none"
        d["network_connection_status"] = "connected" if has_network else "no_service"
        d["network_technology_connected"], d["network_signal_strength"] = technology, _SIGNAL[technology]

    def data_works(self) -> bool:
        """Return whether mobile data works, at any speed."""
        d = self.device
        return (
            not d["airplane_mode"]
            and d["network_signal_strength"] != "none"
            and d["network_connection_status"] != "no_service"
            and (not self.abroad or (d["roaming_enabled"] and self.roaming_allowed))
            and d["data_enabled"]
            and not self.data_used_up
        )

    def measure_speed(self) -> tuple[float | None, str]:
        """Return the speed of mobile data and the name of its quality.

        The speed is in megabits per second; None without a connection.
        """
        if not self.data_works():
            return None, "no connection"
        d = self.device
        slowed = _SLOW_VPN if d["vpn_connected"] and self.vpn_performance == "poor" else 1.0
        slowed *= _SAVING if d["data_saver_mode"] else 1.0
        received = _OF_IT[d["network_signal_strength"]]
        speed = round(_MEGABITS[d["network_technology_connected"]] * received * slowed, 2)
        return speed, next(name for below, name in _QUALITY if speed < below)

    def mms_works(self) -> bool:
        """Return whether picture messages can be sent."""
        d = self.device
        allowed = d["app_statuses"].get("messaging", {}).get("permissions", {})
        return bool(
            self.data_works()
            and d["network_technology_connected"] != "2G"
            and not (d["wifi_calling_enabled"] and d["wifi_calling_mms_over_wifi"])
            and d["active_apn_settings"].get("mmsc_url") is not None
            and allowed.get("storage")
            and allowed.get("sms")
        )


class Phone(PhoneState):
    """Tools of the customer: displays and switches of the phone. Its public methods are the tools."""

    # ------------------------------------------------------------ displays

    def check_status_bar(self) -> str:
        """Look at the icons at the top of the screen."""
        d = self.device
        if d["airplane_mode"]:
            icons = ["airplane mode"]
        else:
            technology = d["network_technology_connected"]
            data = d["data_enabled"] and technology != "none"
            icons = [_BARS[d["network_signal_strength"]], *([technology] if technology != "none" else [])]
            icons.append("mobile data on" if data else "mobile data off")
            icons += ["data saver"] if data and d["data_saver_mode"] else []
        icons += ["wi-fi"] if d["wifi_enabled"] and d["wifi_connected"] else []
        icons += ["vpn"] if d["vpn_connected"] else []
        return f"Status bar: {', '.join(icons)}, battery {d['battery_level']} %"

    def check_network_status(self) -> str:
        """Look at the connection to the mobile network and to Wi-Fi."""
        d = self.device
        return "\n".join(
            (
                f"Airplane mode: {_on(d['airplane_mode'])}",
                f"SIM card: {self.sim}",
                f"Connection: {d['network_connection_status']}",
                f"Signal: {d['network_signal_strength']}",
                f"Network: {d['network_technology_connected']}",
                f"Mobile data: {_on(d['data_enabled'])}",
                f"Data roaming: {_on(d['roaming_enabled'])}",
                f"Wi-Fi: {_on(d['wifi_enabled'])}, {'connected' if d['wifi_connected'] else 'not connected'}",
            )
        )

    def check_network_mode_preference(self) -> str:
        """Look at which networks the phone prefers."""
        return f"Preferred network mode: {self.device['network_mode_preference']}"

    def run_speed_test(self) -> str:
        """Measure the speed of the mobile data."""
        speed, quality = self.measure_speed()
        return "Speed test failed: no connection." if speed is None else f"Speed: {speed:.2f} Mbps ({quality})."

    def check_sim_status(self) -> str:
        """Look at whether the SIM card is there and not locked."""
        return f"SIM card: {self.sim}"

    def check_data_restriction_status(self) -> str:
        """Look at whether the data saver is on."""
        return f"Data saver: {_on(self.device['data_saver_mode'])}"

    def check_apn_settings(self) -> str:
        """Look at the settings of the access point."""
        settings = self.device["active_apn_settings"]
        return f"APN: {settings['apn_name']}\nMMSC URL: {settings.get('mmsc_url') or 'not set'}"

    def check_wifi_status(self) -> str:
        """Look at Wi-Fi."""
        d = self.device
        return f"Wi-Fi: {_on(d['wifi_enabled'])}, {'connected' if d['wifi_connected'] else 'not connected'}"

    def check_wifi_calling_status(self) -> str:
        """Look at whether calls may go over Wi-Fi."""
        return f"Wi-Fi calling: {_on(self.device['wifi_calling_enabled'])}"

    def check_vpn_status(self) -> str:
        """Look at whether a VPN is connected, and how good it is."""
        if self.device["vpn_connected"]:
            return f"VPN: connected, performance {self.vpn_performance}"
        return f"VPN: {'on, not connected' if self.device['vpn_enabled_setting'] else 'off'}"

    def check_installed_apps(self) -> str:
        """List the apps on the phone."""
        return f"Apps: {', '.join(self.device['app_statuses'])}"

    def check_app_status(self, app_name: str) -> str:
        """Look at an app.

        Args:
            app_name: Its name, such as messaging.
        """
        return self.check_app_permissions(app_name)

    def check_app_permissions(self, app_name: str) -> str:
        """Look at what an app is allowed to do.

        Args:
            app_name: Its name, such as messaging.
        """
        granted = [name for name, allowed in self.permissions_of(app_name).items() if allowed]
        return f"{app_name} is allowed: {', '.join(granted) or 'nothing'}"

    def can_send_mms(self) -> str:
        """Try whether the messaging app can send picture messages."""
        return f"Picture messages can {'' if self.mms_works() else 'not '}be sent."

    def check_payment_request(self) -> str:
        """Look at whether there is a bill to pay."""
        if self.bill is None:
            return "There is no payment request."
        return f"Payment request: bill {self.bill['bill_id']}, {self.bill['amount_due']} USD"

    # ------------------------------------------------------------ switches

    def set_network_mode_preference(self, mode: Mode) -> str:
        """Choose which networks the phone prefers.

        Args:
            mode: The networks.
        """
        if mode not in _SEARCHED:
            raise ToolError(f"no such mode; there are {', '.join(_SEARCHED)}")
        self.device["network_mode_preference"] = mode
        self.search_network()
        return f"Preferred network mode: {mode}\n{self.check_status_bar()}"

    def toggle_airplane_mode(self) -> str:
        """Turn airplane mode on, or off where it is on."""
        on = self.device["airplane_mode"] = not self.device["airplane_mode"]
        if on:
            self.device["vpn_connected"] = False
        self.leave_wifi()
        self.search_network()
        return f"Airplane mode: {_on(on)}\n{self.check_status_bar()}"

    def reseat_sim_card(self) -> str:
        """Take the SIM card out and put it in again."""
        self.device["sim_card_missing"] = False
        self.search_network()
        return f"The SIM card was put in again.\n{self.check_status_bar()}"

    def toggle_data(self) -> str:
        """Turn mobile data on, or off where it is on."""
        return self._toggled("data_enabled", "Mobile data", search=True)

    def toggle_roaming(self) -> str:
        """Turn data roaming on, or off where it is on."""
        return self._toggled("roaming_enabled", "Data roaming", search=True)

    def toggle_data_saver_mode(self) -> str:
        """Turn the data saver on, or off where it is on."""
        return self._toggled("data_saver_mode", "Data saver")

    def set_apn_settings(self, apn_settings: dict[str, str | int | bool | None]) -> str:
        """Set the access point.

        Args:
            apn_settings: `apn_name`, `mms_apn`, `mmsc_url`, `mms_proxy`, `mms_port`, `reset_at_reboot`; what is left
                out becomes what it was at first.
        """
        known = {*ACCESS_POINT, "mms_proxy", "mms_port", "reset_at_reboot"}
        if strange := sorted(set(apn_settings) - known):
            raise ToolError(f"no setting {strange[0]}; there are {', '.join(sorted(known))}")
        if apn_settings.get("apn_name", "internet") not in ("internet", "broken"):
            raise ToolError("apn_name is internet or broken")
        self.device["active_apn_settings"] = {**ACCESS_POINT, **apn_settings}
        self.search_network()
        return f"The access point is set.\n{self.check_status_bar()}"

    def reset_apn_settings(self) -> str:
        """Set the access point to what it was at first, with the next restart."""
        self.device["active_apn_settings"]["reset_at_reboot"] = True
        self.search_network()
        return f"The access point will be reset with the next restart.\n{self.check_status_bar()}"

    def toggle_wifi(self) -> str:
        """Turn Wi-Fi on, or off where it is on."""
        if self.device["airplane_mode"]:
            raise ToolError("Wi-Fi cannot be changed in airplane mode")
        self.leave_wifi()
        return self._toggled("wifi_enabled", "Wi-Fi")

    def toggle_wifi_calling(self) -> str:
        """Let calls go over Wi-Fi, or no longer."""
        return self._toggled("wifi_calling_enabled", "Wi-Fi calling")

    def connect_vpn(self) -> str:
        """Connect the VPN."""
        self.device["vpn_connected"] = True
        return f"VPN: connected\n{self.check_status_bar()}"

    def disconnect_vpn(self) -> str:
        """Disconnect the VPN."""
        self.device["vpn_connected"] = False
        return f"VPN: not connected\n{self.check_status_bar()}"

    def grant_app_permission(self, app_name: str, permission: str) -> str:
        """Allow an app to do something.

        Args:
            app_name: Its name, such as messaging.
            permission: sms, storage, phone or network.
        """
        permissions = self.permissions_of(app_name)
        if permission.lower() not in permissions:
            raise ToolError(f"no permission {permission}; there are {', '.join(permissions)}")
        permissions[permission.lower()] = True
        return f"{app_name} is allowed: {permission.lower()}\n{self.check_status_bar()}"

    def reboot_device(self) -> str:
        """Restart the phone."""
        if self.device["active_apn_settings"].get("reset_at_reboot"):
            self.device["active_apn_settings"] = dict(ACCESS_POINT)
        self.search_network()
        return f"The phone was restarted.\n{self.check_status_bar()}"

    def make_payment(self) -> str:
        """Pay the bill that is asked to be paid."""
        if self.bill is None:
            raise ToolError("there is no payment request")
        self.bill["paid"] = True
        return f"Bill {self.bill['bill_id']} is paid: {self.bill['amount_due']} USD"

    def _toggled(self, switch: str, label: str, *, search: bool = False) -> str:
        on = self.device[switch] = not self.device[switch]
        if search:
            self.search_network()
        return f"{label}: {_on(on)}\n{self.check_status_bar()}"


def _on(value: bool) -> str:
    return "on" if value else "off"


TOOLS_OF_PHONE = tuple(name for name in vars(Phone) if not name.startswith("_"))
"""Names of the tools of the customer."""
