"""The agent's tools in the retail domain of tau2-bench: names, arguments and effects are its own, the code is ours.

Easy to get wrong: the check compares the whole database at the end, so an effect nobody looks at (a refund in a payment
history, a gift card's balance to the cent, the order of item ids) decides whether an episode counts.

Source: tau2-bench, arXiv:2506.07982; tau-bench, arXiv:2406.12045.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whetstone.environments.retail.store import Store, read_database
from whetstone.errors import ToolError
from whetstone.tools.arithmetic import evaluate
from whetstone.tools.protocol import Episode


class RetailDesk:
    """Sixteen tools over the shop's database; each episode changes one of its own.

    Args:
        path: The folder with `db.json`.
    """

    def __init__(self, *, path: str) -> None:
        self.path = path
        read_database(path)
        self.store = Store(path)
        self._transferred = False
        self._wanted: Mapping[str, Any] = {}

    def open(self, episode: Episode) -> None:
        """The shop as it was published."""
        self.store, self._transferred = Store(self.path), False
        self._wanted = wanted_differences(self.path, episode.task.private["actions"])

    def verdict(self) -> Mapping[str, Any]:
        """`same`: the database is, to the cent, what the gold actions make of it. A success where it is and anything
        was done: in a few tasks the gold actions change nothing, and neither does silence."""
        changed = self.store.differences()
        same = _in_cents(changed) == _in_cents(self._wanted)
        done = same and (bool(changed) or self.store.looked or self._transferred)
        return {"success": done, "score": float(done), "same": same, "changed": len(changed)}

    # ------------------------------------------------------------ reading

    def calculate(self, expression: str) -> str:
        """Calculate the result of a mathematical expression.

        Args:
            expression: Numbers, + - * / and parentheses.
        """
        return str(round(float(evaluate(expression)), 2))

    def find_user_id_by_email(self, email: str) -> str:
        """Find a user id by e-mail.

        Args:
            email: The e-mail address.
        """
        return self.store.user_by_email(email)

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user id by name and zip code, where no e-mail is known.

        Args:
            first_name: The first name.
            last_name: The last name.
            zip: The zip code.
        """
        return self.store.user_by_name(first_name, last_name, zip)

    def get_order_details(self, order_id: str) -> str:
        """The status and details of an order.

        Args:
            order_id: The order, with the # in front, such as #W0000000.
        """
        return _written(self.store.look("orders", order_id))

    def get_product_details(self, product_id: str) -> str:
        """The inventory details of a product.

        Args:
            product_id: The product, which is not an item.
        """
        return _written(self.store.look("products", product_id))

    def get_item_details(self, item_id: str) -> str:
        """The inventory details of an item.

        Args:
            item_id: The item, which is not a product.
        """
        return _written(self.store.item(item_id))

    def get_user_details(self, user_id: str) -> str:
        """The details of a user, with the orders.

        Args:
            user_id: The user, such as sara_doe_496.
        """
        return _written(self.store.look("users", user_id))

    def list_all_product_types(self) -> str:
        """The name and product id of every product type; there are 50."""
        return _written(self.store.products())

    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the user to a human agent, with a summary of the issue: only where the user asks for it, or the
        issue cannot be solved by the policy and the tools.

        Args:
            summary: What the user wants.
        """
        self._transferred = True
        return "Transfer successful"

    # ------------------------------------------------------------ writing

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        """Cancel a pending order, for which the user has confirmed the reason. The payment is refunded.

        Args:
            order_id: The order, with the # in front.
            reason: "no longer needed" or "ordered by mistake".
        """
        if self.store.look("orders", order_id)["status"] != "pending":
            raise ToolError("non-pending order cannot be cancelled")
        if reason not in ("no longer needed", "ordered by mistake"):
            raise ToolError("invalid reason")
        order = self.store.change("orders", order_id)
        refunds = []
        for payment in order["payment_history"]:
            method = payment["payment_method_id"]
            refunds.append({"transaction_type": "refund", "amount": payment["amount"], "payment_method_id": method})
            self._give_back(order["user_id"], method, payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        order["payment_history"].extend(refunds)
        return _written(order)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Exchange items of a delivered order for items of the same product types. Once an order.

        Args:
            order_id: The order, with the # in front.
            item_ids: The items to be exchanged; an item twice where it is there twice.
            new_item_ids: What each is exchanged for, in the same order.
            payment_method_id: Where the difference is paid from or to.
        """
        order = self.store.look("orders", order_id)
        if order["status"] != "delivered":
            raise ToolError("non-delivered order cannot be exchanged")
        difference = round(self._difference(order, item_ids, new_item_ids), 2)
        self._can_pay(order["user_id"], payment_method_id, difference)
        order = self.store.change("orders", order_id)
        order["status"] = "exchange requested"
        order["exchange_items"], order["exchange_new_items"] = sorted(item_ids), sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return _written(order)

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the shipping address of a pending order.

        Args:
            order_id: The order, with the # in front.
            address1: The first line.
            address2: The second line.
            city: The city.
            state: The state, such as CA.
            country: The country, such as USA.
            zip: The zip code.
        """
        if "pending" not in self.store.look("orders", order_id)["status"]:
            raise ToolError("non-pending order cannot be modified")
        order = self.store.change("orders", order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return _written(order)

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Change items of a pending order to items of the same product types. Once an order.

        Args:
            order_id: The order, with the # in front.
            item_ids: The items to be changed; an item twice where it is there twice.
            new_item_ids: What each is changed to, in the same order.
            payment_method_id: Where the difference is paid from or to.
        """
        order = self.store.look("orders", order_id)
        if order["status"] != "pending":
            raise ToolError("non-pending order cannot be modified")
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=False)):
            raise ToolError("the new item id should be different from the old item id")
        difference = self._difference(order, item_ids, new_item_ids)
        self._can_pay(order["user_id"], payment_method_id, difference)
        order = self.store.change("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        paid = {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        order["payment_history"].append(paid)
        self._give_back(order["user_id"], payment_method_id, -difference)
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == old)
            variant = self.store.item(new)
            item["item_id"], item["price"], item["options"] = new, variant["price"], variant["options"]
        order["status"] = "pending (item modified)"
        return _written(order)

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        """Change the payment method of a pending order.

        Args:
            order_id: The order, with the # in front.
            payment_method_id: Another method than the one it was paid with.
        """
        order = self.store.look("orders", order_id)
        if "pending" not in order["status"]:
            raise ToolError("non-pending order cannot be modified")
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError("there should be exactly one payment for a pending order")
        before, amount = history[0]["payment_method_id"], history[0]["amount"]
        if before == payment_method_id:
            raise ToolError("the new payment method should be different from the current one")
        self._can_pay(order["user_id"], payment_method_id, amount)
        order = self.store.change("orders", order_id)
        order["payment_history"] += [
            {"transaction_type": "payment", "amount": amount, "payment_method_id": payment_method_id},
            {"transaction_type": "refund", "amount": amount, "payment_method_id": before},
        ]
        self._give_back(order["user_id"], payment_method_id, -amount)
        self._give_back(order["user_id"], before, amount)
        return _written(order)

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the default address of a user.

        Args:
            user_id: The user.
            address1: The first line.
            address2: The second line.
            city: The city.
            state: The state, such as CA.
            country: The country, such as USA.
            zip: The zip code.
        """
        user = self.store.change("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return _written(user)

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        """Return items of a delivered order.

        Args:
            order_id: The order, with the # in front.
            item_ids: The items; an item twice where it is there twice.
            payment_method_id: Where the refund goes: the original method, or a gift card.
        """
        order = self.store.look("orders", order_id)
        if order["status"] != "delivered":
            raise ToolError("non-delivered order cannot be returned")
        method = self._method(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("payment method should be the original payment method or a gift card")
        _all_there(order, item_ids)
        order = self.store.change("orders", order_id)
        order["status"], order["return_items"] = "return requested", sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return _written(order)

    # ------------------------------------------------------------ what the rules are made of

    def _method(self, user_id: str, payment_method_id: str) -> Any:
        methods = self.store.look("users", user_id)["payment_methods"]
        if payment_method_id not in methods:
            raise ToolError("payment method not found")
        return methods[payment_method_id]

    def _can_pay(self, user_id: str, payment_method_id: str, amount: float) -> None:
        method = self._method(user_id, payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError("insufficient gift card balance to pay for the difference")

    def _give_back(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Add to a gift card; other methods are not ours to see."""
        if self._method(user_id, payment_method_id)["source"] == "gift_card":
            method = self.store.change("users", user_id)["payment_methods"][payment_method_id]
            method["balance"] = round(method["balance"] + amount, 2)

    def _difference(self, order: Mapping[str, Any], item_ids: Sequence[str], new_item_ids: Sequence[str]) -> float:
        """What the new items cost more than the old ones."""
        _all_there(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError("the number of items to be exchanged should match")
        difference = 0.0
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == old)
            variants = self.store.look("products", item["product_id"])["variants"]
            if new not in variants or not variants[new]["available"]:
                raise ToolError(f"new item {new} not found or available")
            difference += variants[new]["price"] - item["price"]
        return difference


def wanted_differences(path: str, actions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the gold actions make of the database. One that cannot be done changes nothing, as it did when it was
    recorded."""
    desk = RetailDesk(path=path)
    for action in actions:
        tool: Callable[..., str] | None = getattr(desk, action["name"], None)
        if tool is None:
            continue
        try:
            tool(**action["arguments"])
        except ToolError:
            continue
    return desk.store.differences()


def _all_there(order: Mapping[str, Any], item_ids: Sequence[str]) -> None:
    there = [item["item_id"] for item in order["items"]]
    for id in item_ids:
        if item_ids.count(id) > there.count(id):
            raise ToolError(f"{id} not found")


def _in_cents(entity: Any) -> Any:
    """The same with its amounts rounded: in what order items are named decides the last bits of a sum."""
    if isinstance(entity, float):
        return round(entity, 2)
    if isinstance(entity, Mapping):
        return {key: _in_cents(value) for key, value in entity.items()}
    return [_in_cents(value) for value in entity] if isinstance(entity, list) else entity


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, str]:
    return {"address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip}


def _written(entity: Any) -> str:
    return json.dumps(entity, ensure_ascii=False)
