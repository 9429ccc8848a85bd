"""Devices: selection by the name in a recipe, memory, and moving of models.

    auto      the first GPU of CUDA or ROCm if there is one, else the CPU
    cpu, cuda, cuda:1, mps, …   this device; any device of this PyTorch

Apple's `mps` must be named: it has no float64, so tokens are sampled on the CPU, and its speed was never measured.

Note:
    The same kind with another index is another device. `cuda` gets its index immediately.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from whetstone.errors import PolicyError, did_you_mean

CPU = torch.device("cpu")
_KNOWN = ("auto", "cpu", "cuda", "mps", "xpu")
"""Names that are suggested for an unknown device."""
_MEMORY = Path("/proc/meminfo")
_GROUPS = Path("/proc/self/cgroup")
_HIERARCHIES = {
    "": (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    "memory": (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controller in `_GROUPS` (empty: version 2): mount point, files of limit and usage, and the key of `memory.stat`
with the bytes of cached files that the kernel can drop."""


def find_device(name: str) -> torch.device:
    """Return the device with a name of the recipe, with an index if a machine can have several.

    Args:
        name: `auto` (the first CUDA or ROCm GPU, else the CPU), or a name of PyTorch such as `cuda:1`.

    Raises:
        PolicyError: If the name is not a device, or this machine does not have it.
    """
    if name == "auto":
        return find_device("cuda") if torch.cuda.is_available() else CPU
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PolicyError(f'"{name}" is not a device{did_you_mean(name, _KNOWN)}') from None
    if device.type == "cpu":
        return CPU
    devices = list_devices(device.type)
    if not devices:
        others = ", ".join(map(str, available_devices()))
        raise PolicyError(
            f"{name}: this machine has no such device that PyTorch {torch.__version__} can use; available: {others}"
        )
    number = device.index
    if number is None:  # the current one; the first if a kind has only one
        in_use = device_module_function(device, "current_device")
        number = in_use() if in_use is not None else 0
    if number >= len(devices):
        raise PolicyError(f"{name}: this machine has {len(devices)} ({', '.join(map(str, devices))})")
    return devices[number]


def list_devices(kind: str) -> list[torch.device]:
    """Return the devices of a kind, such as `cuda`, that this machine has and this PyTorch can use."""
    try:
        available = device_module_function(torch.device(kind), "is_available")
    except (RuntimeError, AttributeError):  # PyTorch knows only the name of this kind
        return []
    if available is None or not available():
        return []
    return [torch.device(kind, number) for number in range(torch.get_device_module(kind).device_count())]


def available_devices() -> list[torch.device]:
    """Return all devices on which a policy can be computed, the CPU last."""
    accelerator = torch.accelerator.current_accelerator()
    return [*(list_devices(accelerator.type) if accelerator is not None else ()), CPU]


def describe_device(device: torch.device) -> str:
    """Return a device with its product name: `cuda:0 (NVIDIA H100)`."""
    named = device_module_function(device, "get_device_name") if device != CPU else None
    return f"{device} ({named(device)})" if named is not None else str(device)


def num_threads() -> int:
    """Return the number of CPU threads of a matrix product."""
    return torch.get_num_threads()


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64; Apple's does not."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except TypeError:
        return False
    return True


def free_memory(device: torch.device) -> int | None:
    """Return the number of bytes that this process can still allocate on a device; None if unknown.

    On the CPU, the limits are the free memory of the machine and of its container.
    """
    if device.type != "cpu":
        ask = device_module_function(device, "mem_get_info")
        if ask is None:
            return None
        free: int = ask(device)[0]
        functions = [device_module_function(device, name) for name in ("memory_reserved", "memory_allocated")]
        reserved, allocated = (0 if ask is None else ask(device) for ask in functions)
        return free + max(0, reserved - allocated)  # cached by PyTorch and unused
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return min([free, *_free_in_groups()])


def _free_in_groups() -> Iterator[int]:
    """Yield the free bytes of each control group of this process that has a memory limit.

    A container sees its own group at the mount point; `systemd-run` and batch systems limit a group below it.
    """
    try:
        lines = [line.split(":", 2) for line in _GROUPS.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        for controller in {*controllers.split(",")} & {*_HIERARCHIES}:
            mount, limit, usage, cached = _HIERARCHIES[controller]
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(mount):
                    with contextlib.suppress(OSError, ValueError):  # no such group in this container, or no limit
                        maximum = int((folder / limit).read_text())
                        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                        used = int((folder / usage).read_text()) - int(statistics.get(cached, 0))
                        yield max(0, maximum - used)


def release_memory(device: torch.device) -> None:
    """Return memory that PyTorch has cached to the device; the CPU has no such cache."""
    empty = device_module_function(device, "empty_cache") if device.type != "cpu" else None
    if empty is not None:
        empty()


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory allocated on a device, in bytes.

    None if the device does not count it, as the CPU.
    """
    ask = device_module_function(device, "max_memory_allocated") if device.type != "cpu" else None
    return None if ask is None else int(ask(device))


@contextlib.contextmanager
def moved_to_device(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Move a frozen model to a device within the `with` block, then restore it.

    The copies on the device are released when the block ends.
    """
    moved: dict[torch.Tensor, torch.Tensor] = {}
    originals = [(of, name, tensor) for module in model.modules() for of in (module._parameters, module._buffers)
            for name, tensor in of.items() if tensor is not None and tensor.device != device]  # fmt: skip
    try:
        for of, name, tensor in originals:
            if tensor not in moved:
                copy = tensor.detach().to(device)
                moved[tensor] = torch.nn.Parameter(copy, False) if isinstance(tensor, torch.nn.Parameter) else copy
            of[name] = moved[tensor]  # type: ignore[assignment]
        yield
    finally:
        for of, name, tensor in originals:
            of[name] = tensor  # type: ignore[assignment]


def device_module_function(device: torch.device, name: str) -> Any:
    """Return a function of PyTorch's module for a device type, or None.

    For example `mem_get_info` of `torch.cuda`.
    """
    return getattr(torch.get_device_module(device), name, None)
