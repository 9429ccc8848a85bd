"""Tools that fail, with an environment and tasks that call them."""

from whetstone.chat import ToolCall, assistant
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.tools.side_effects import effects
from whetstone.trajectory import Task


@effects("read")
def lookup_order(id: str) -> str:
    """Look up an order.

    Args:
        id: Order number.
    """
    return None.cursor()


@effects("read")
def long_order(id: str) -> str:
    """Look up an order.

    Args:
        id: Order number.
    """
    return "x" * 10_000


@effects("read")
def unavailable_order(id: str) -> str:
    """Look up an order.

    Args:
        id: Order number.
    """
    raise ConnectionRefusedError("shop.internal is down")


@effects("read")
def strict_order(id: str) -> str:
    """Look up an order.

    Args:
        id: Order number.
    """
    raise KeyError(id)


class Calling(ToolEnvironment):
    """Replace each action of the policy by a call of its tool, since a tiny model does not write calls."""

    async def step(self, action):
        if not any(call.name for call in action.tool_calls):
            action = assistant("", ToolCall(self.toolset.specs[0].name, '{"id": "7"}', "call_0_0"))
        return await super().step(action)


class Orders:
    """Tasks whose expert calls the only tool."""

    def task(self, index):
        return Task(f"order/{index}", f"Order {index}?", {"answer": str(index)})

    def held_out(self, count):
        return [self.task(10_000 + k) for k in range(count)]

    def demonstrate(self, task, conversation, tools):
        if any(message.role == "tool" for message in conversation):
            return assistant(task.private["answer"])
        return assistant("", ToolCall(tools[0].name, '{"id": "7"}', "call_0_0"))


class WithoutExpert:
    """The same tasks without an expert."""

    task, held_out = Orders.task, Orders.held_out
