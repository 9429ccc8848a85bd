"""Where is a model computed? On the device its parameters lie on: a recipe names it, everything else follows.

    auto      the first GPU of CUDA or ROCm, where there is one, else the CPU
    cpu, cuda, cuda:1, mps, …   that one; any device this PyTorch has

Apple's `mps` has to be named: it has no float64, so draws are made on the CPU, and nobody has measured that it is
quicker.

Easy to get wrong: another number of the same kind is another device. `cuda` is given its number at once.
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
"""What a name is compared with that is none."""
_MEMORY = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def find_device(name: str) -> torch.device:
    """The device of a name, with its number where there can be several.

    Raises:
        PolicyError: It is no device, or this machine does not have it.
    """
    if name == "auto":
        return find_device("cuda") if torch.cuda.is_available() else CPU
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PolicyError(f'"{name}" is not a device{did_you_mean(name, _KNOWN)}') from None
    if device.type == "cpu":
        return CPU
    there = devices_of(device.type)
    if not there:
        others = ", ".join(map(str, available_devices()))
        raise PolicyError(
            f"{name}: this machine has none that this PyTorch ({torch.__version__}) can use; it has {others}"
        )
    number = device.index
    if number is None:  # the one in use; the first where a kind has only one
        in_use = of_module(device, "current_device")
        number = in_use() if in_use is not None else 0
    if number >= len(there):
        raise PolicyError(f"{name}: this machine has {len(there)} ({', '.join(map(str, there))})")
    return there[number]


def devices_of(kind: str) -> list[torch.device]:
    """The devices of a kind that this machine has and this PyTorch can use: `cuda`."""
    try:
        available = of_module(torch.device(kind), "is_available")
    except (RuntimeError, AttributeError):  # a kind this PyTorch only knows the name of
        return []
    if available is None or not available():
        return []
    return [torch.device(kind, number) for number in range(torch.get_device_module(kind).device_count())]


def available_devices() -> list[torch.device]:
    """Every device a policy can be computed on here, the CPU last."""
    there = torch.accelerator.current_accelerator()
    return [*(devices_of(there.type) if there is not None else ()), CPU]


def described(device: torch.device) -> str:
    """A device with what it is called: `cuda:0 (NVIDIA H100)`."""
    named = of_module(device, "get_device_name") if device != CPU else None
    return f"{device} ({named(device)})" if named is not None else str(device)


def num_threads() -> int:
    """Return the number of CPU threads of a matrix product."""
    return torch.get_num_threads()


def has_float64(device: torch.device) -> bool:
    """Whether it computes in float64; Apple's does not."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except TypeError:
        return False
    return True


def free_memory(device: torch.device) -> int | None:
    """Bytes this process may still take there; None where nobody says. Of the CPU: of the machine's memory, and of
    its container's."""
    if device.type != "cpu":
        ask = of_module(device, "mem_get_info")
        if ask is None:
            return None
        free: int = ask(device)[0]
        kept = [of_module(device, name) for name in ("memory_reserved", "memory_allocated")]
        reserved, allocated = (0 if ask is None else ask(device) for ask in kept)
        return free + max(0, reserved - allocated)  # what PyTorch keeps for itself and does not use
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    for limit in _LIMITS:
        if limit.is_file() and (said := limit.read_text().strip()).isdigit():
            free = min(free, int(said))
    return free


def release_memory(device: torch.device) -> None:
    """Give back to the device what PyTorch keeps of it and does not use."""
    empty = of_module(device, "empty_cache") if device.type != "cpu" else None
    if empty is not None:
        empty()


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that were held there so far; None of a device that does not count them, such as the CPU."""
    ask = of_module(device, "max_memory_allocated") if device.type != "cpu" else None
    return None if ask is None else int(ask(device))


@contextlib.contextmanager
def brought(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """A frozen model on a device, as long as the block lasts; then it is again where it was, and no copy is left."""
    moved: dict[torch.Tensor, torch.Tensor] = {}
    kept = [(of, name, tensor) for module in model.modules() for of in (module._parameters, module._buffers)
            for name, tensor in of.items() if tensor is not None and tensor.device != device]  # fmt: skip
    try:
        for of, name, tensor in kept:
            if tensor not in moved:
                there = tensor.detach().to(device)
                moved[tensor] = torch.nn.Parameter(there, False) if isinstance(tensor, torch.nn.Parameter) else there
            of[name] = moved[tensor]  # type: ignore[assignment]
        yield
    finally:
        for of, name, tensor in kept:
            of[name] = tensor  # type: ignore[assignment]


def of_module(device: torch.device, name: str) -> Any:
    """What PyTorch's module of a kind of device calls so, as `torch.cuda.mem_get_info`; None where it has none."""
    return getattr(torch.get_device_module(device), name, None)
