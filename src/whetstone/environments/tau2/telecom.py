"""Tools of the agent in the telecom domain of tau2-bench, with its names, arguments and effects; own implementation.

The customer has tools too: those of the phone (`phone.py`), whose network depends on the records of its line. Each side
sees the changes of the other after each call.

Note:
    The criteria are assertions on the state of both sides, and the calls. Databases are not compared, since every new
    bill has a random number in the original.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whetstone.environments.tau2.database import format_entity
from whetstone.environments.tau2.domain import Desk
from whetstone.environments.tau2.initial_state import assertion_holds, initialize_state
from whetstone.environments.tau2.phone import TOOLS_OF_PHONE, Phone, read_phone
from whetstone.environments.user_simulators.user_tools import USER_TOOLS, UserTools
from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode

_TODAY = "2025-02-25"
_TOOLS = (
    "get_customer_by_phone", "get_customer_by_id", "get_customer_by_name", "get_details_by_id",
    "get_bills_for_customer", "get_data_usage", "suspend_line", "resume_line", "send_payment_request",
    "enable_roaming", "disable_roaming", "refuel_data", "transfer_to_human_agents",
)  # fmt: skip
_KINDS = {"L": "lines", "D": "devices", "B": "bills", "C": "customers", "P": "plans"}


class TelecomDesk(Desk):
    """Tools of the agent in the telecom domain: customers, lines and bills.

    Each episode has separate records and a phone of the customer, whose tools the simulated user has.

    Args:
        path: The folder with `db.toml` and `user_db.toml`.
    """

    domain = "telecom"

    def __init__(self, *, path: str) -> None:
        super().__init__(path=path)
        self.phone, self.number = Phone(read_phone(path)), ""
        self._by_customer: list[dict[str, Any]] = []
        self._assertions: list[Mapping[str, Any]] = []

    def open(self, episode: Episode) -> None:
        """Load the original records and the phone, then initialize the state of the task."""
        private = episode.task.private
        self._begin()
        self.phone, self.number, self._by_customer = Phone(read_phone(self.path)), "", []
        self._assertions = list(private["world_assertions"])
        for action in private["beginning"]:
            initialize_state(self, action)
        episode.shared[USER_TOOLS] = UserTools([getattr(self.phone, name) for name in TOOLS_OF_PHONE], self.by_customer)

    def tools(self) -> Iterable[Any]:
        """Return the agent's thirteen tools of the telecom domain."""
        return [getattr(self, name) for name in _TOOLS]

    def verdict(self) -> Mapping[str, Any]:
        """Return `assertions_met`: whether the final state is right.

        A success also requires that any tool was used.
        """
        met = all(assertion_holds(self, one) for one in self._assertions)
        active = bool(self._by_customer or self.store.looked or self._transferred or self.store.find_differences())
        done = met and active
        verdict = {"success": done, "score": float(done), "assertions_met": met, "user_calls": self._by_customer}
        return {**verdict, "changed": len(self.store.find_differences())}

    def by_customer(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute a tool of the customer and return its result or an error text.

        Args:
            name: Name of a tool of `Phone`.
            arguments: Arguments by name.
        """
        self._by_customer.append({"name": name, "arguments": dict(arguments)})
        if name not in TOOLS_OF_PHONE:
            return f"Error: there is no {name}"
        try:
            result = str(getattr(self.phone, name)(**arguments))
        except (ToolError, TypeError, ValueError, AttributeError) as error:
            return f"Error: {error}"
        self.synchronize()
        return result

    # ------------------------------------------------------------ reading

    def get_customer_by_phone(self, phone_number: str) -> str:
        """A customer by a phone number: of contact, or of any line.

        Args:
            phone_number: The number, such as 555-123-2002.
        """
        return format_entity(self._customer_of(phone_number))

    def get_customer_by_id(self, customer_id: str) -> str:
        """A customer.

        Args:
            customer_id: The customer, such as C1001.
        """
        return format_entity(self.store.read_entity("customers", customer_id))

    def get_customer_by_name(self, full_name: str, dob: str) -> str:
        """Customers of a name, born on a day.

        Args:
            full_name: First and last name.
            dob: The day, such as 1985-06-15.
        """
        everybody = (self.store.read_entity("customers", id) for id in self.store.list_ids("customers"))
        name = full_name.lower()
        return format_entity([c for c in everybody if c["full_name"].lower() == name and c["date_of_birth"] == dob])

    def get_details_by_id(self, id: str) -> str:
        """A customer, line, device, bill or plan.

        Args:
            id: The id, such as L1001, D1001, B1001, C1001 or P1001.
        """
        if id[:1] not in _KINDS:
            raise ToolError(f"unknown id {id}")
        return format_entity(self.store.read_entity(_KINDS[id[0]], id))

    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> str:
        """Bills of a customer, the latest first.

        Args:
            customer_id: The customer.
            limit: How many at most.
        """
        bills = [
            self.store.read_entity("bills", id) for id in self.store.read_entity("customers", customer_id)["bill_ids"]
        ]
        return format_entity(sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[:limit])

    def get_data_usage(self, customer_id: str, line_id: str) -> str:
        """Data a line has used in this month, its limit, and data that was bought beside.

        Args:
            customer_id: Whose line it is.
            line_id: The line, such as L1002.
        """
        line = self._line(customer_id, line_id)
        used = {key: line[key] for key in ("line_id", "data_used_gb", "data_refueling_gb")}
        limit = self.store.read_entity("plans", line["plan_id"])["data_limit_gb"]
        return format_entity({**used, "data_limit_gb": limit, "cycle_end_date": "2025-02-28"})

    # ------------------------------------------------------------ writing

    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> str:
        """Suspend an active line, for six months at most; that costs 5 dollars a month.

        Args:
            customer_id: Whose line it is.
            line_id: The line.
            reason: Why.
        """
        if self._line(customer_id, line_id)["status"] != "Active":
            raise ToolError("the line must be active to suspend it")
        line = self.store.edit_entity("lines", line_id)
        line["status"], line["suspension_start_date"] = "Suspended", _TODAY
        self.synchronize()
        return format_entity(line)

    def resume_line(self, customer_id: str, line_id: str) -> str:
        """Resume a line that is suspended, or waits to be activated.

        Args:
            customer_id: Whose line it is.
            line_id: The line.
        """
        if self._line(customer_id, line_id)["status"] not in ("Suspended", "Pending Activation"):
            raise ToolError("the line must be suspended to resume it")
        line = self.store.edit_entity("lines", line_id)
        line["status"], line["suspension_start_date"] = "Active", None
        self.synchronize()
        return format_entity(line)

    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        """Ask the customer to pay a bill: one at a time. Look first whether it is paid already.

        Args:
            customer_id: Whose bill it is.
            bill_id: The bill, such as B1001.
        """
        customer = self.store.read_entity("customers", customer_id)
        if self._awaiting(customer):
            raise ToolError("a bill is already awaiting payment for this customer")
        if bill_id not in customer["bill_ids"]:
            raise ToolError(f"bill {bill_id} not found for customer {customer_id}")
        self.store.edit_entity("bills", bill_id)["status"] = "Awaiting Payment"
        self.synchronize()
        return f"Payment request sent for bill {bill_id}"

    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        """Let a line roam abroad.

        Args:
            customer_id: Whose line it is.
            line_id: The line.
        """
        return self._roaming(customer_id, line_id, on=True)

    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        """Let a line roam abroad no longer.

        Args:
            customer_id: Whose line it is.
            line_id: The line.
        """
        return self._roaming(customer_id, line_id, on=False)

    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> str:
        """Add data to a line; it is charged with the next bill, at the price of the line's plan.

        Args:
            customer_id: Whose line it is.
            line_id: The line.
            gb_amount: Gigabytes.
        """
        plan = self.store.read_entity("plans", self._line(customer_id, line_id)["plan_id"])
        if gb_amount <= 0:
            raise ToolError("gb_amount must be greater than 0")
        line, charge = self.store.edit_entity("lines", line_id), gb_amount * plan["data_refueling_price_per_gb"]
        line["data_refueling_gb"] += gb_amount
        self._charge(customer_id, charge, f"Data refueling: {gb_amount} GB")
        self.synchronize()
        return format_entity({"added_gb": gb_amount, "charge": charge, "data_refueling_gb": line["data_refueling_gb"]})

    # ------------------------------------------------------------ helpers

    def synchronize(self) -> None:
        """Copy the state of the line to the phone, and a payment to the records.

        Called after each call of either side.
        """
        if not self.number:
            return
        lines = (self._peek("lines", id) for id in self.store.list_ids("lines"))
        line = next(one for one in lines if one["phone_number"] == self.number)
        plan, phone = self._peek("plans", line["plan_id"]), self.phone
        phone.line_active, phone.roaming_allowed = line["status"] == "Active", line["roaming_enabled"]
        phone.data_used_up = line["data_used_gb"] >= plan["data_limit_gb"] + line["data_refueling_gb"]
        if phone.bill is not None and phone.bill["paid"]:
            self.store.edit_entity("bills", phone.bill["bill_id"])["status"] = "Paid"
            phone.bill = None
        waiting = self._awaiting(self._customer_of(self.number))
        if phone.bill is None and waiting:
            bill = self._peek("bills", waiting[0])
            phone.bill = {"bill_id": bill["bill_id"], "amount_due": bill["total_due"], "paid": False}

    def _peek(self, kind: str, id: str) -> Any:
        """Return an entity for reading without marking the database as read by the agent."""
        before = self.store.looked
        entity = self.store.read_entity(kind, id)
        self.store.looked = before
        return entity

    def _customer_of(self, phone_number: str) -> Any:
        """Return the customer with a phone number: of contact, or of any line.

        Raises:
            ToolError: If there is no such customer.
        """
        for id in self.store.list_ids("customers"):
            customer = self._peek("customers", id)
            numbers = [
                customer["phone_number"],
                *(self._peek("lines", each)["phone_number"] for each in customer["line_ids"]),
            ]
            if phone_number in numbers:
                return customer
        raise ToolError(f"no customer has the phone number {phone_number}")

    def _line(self, customer_id: str, line_id: str) -> Any:
        """Return a line of a customer.

        Raises:
            ToolError: If the customer has no such line.
        """
        if line_id not in self.store.read_entity("customers", customer_id)["line_ids"]:
            raise ToolError(f"line {line_id} not found for customer {customer_id}")
        return self.store.read_entity("lines", line_id)

    def _awaiting(self, customer: Mapping[str, Any]) -> list[str]:
        """Return the ids of the customer's bills that await payment."""
        return [id for id in customer["bill_ids"] if self._peek("bills", id)["status"] == "Awaiting Payment"]

    def _roaming(self, customer_id: str, line_id: str, *, on: bool) -> str:
        """Switch roaming of a line on or off and return the text for the agent."""
        state = "enabled" if on else "disabled"
        if self._line(customer_id, line_id)["roaming_enabled"] == on:
            return f"Roaming was already {state}"
        self.store.edit_entity("lines", line_id)["roaming_enabled"] = on
        self.synchronize()
        return f"Roaming {state}"

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Add an item to the draft of the customer's next bill.

        Create the draft if there is none.
        """
        drafts = [
            id
            for id in self.store.read_entity("customers", customer_id)["bill_ids"]
            if self.store.read_entity("bills", id)["status"] == "Draft"
        ]
        if not drafts:
            drafts = [f"B{customer_id}-next"]
            bill = {
                "bill_id": drafts[0], "customer_id": customer_id, "period_start": "2025-03-01",
                "period_end": "2025-03-31", "issue_date": "2025-03-01", "due_date": "2025-03-15",
                "total_due": 0.0, "line_items": [], "status": "Draft",
            }  # fmt: skip
            self.store.add_entity("bills", drafts[0], bill)
            self.store.edit_entity("customers", customer_id)["bill_ids"].append(drafts[0])
        draft = self.store.edit_entity("bills", drafts[0])
        item = {"description": description, "amount": amount, "date": _TODAY, "item_type": "Charge"}
        draft["line_items"].append(item)
        draft["total_due"] += amount
