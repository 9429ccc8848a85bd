"""A second device in the memory of the CPU that raises the errors of a GPU, as a Python backend of PyTorch.

Each of its tensors holds one of the CPU. Operations are computed on those after a check that devices are not mixed: a
tensor of the CPU next to one of the device is an error, except in copies between both, as zero-dimensional numbers in
element-wise operations, and as indices, which CUDA allows. A tensor that is created without a device is on the CPU, and
is detected when it is combined with one of the device.

The device exists from the import of this module: autograd counts devices once, at its first backward pass.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import weakref

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "second"
CPU = torch.device("cpu")
aten = torch.ops.aten
_CROSSING = {aten.copy_.default, aten._to_copy.default}
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
"""Operations whose result or its shape is read by the CPU."""
_waits: list[str] | None = None
_lacks: set[torch.dtype] = set()
_num_views: collections.Counter[int] = collections.Counter()
"""Storage on the device → number of tensors of the CPU that view it."""
_sizes: dict[int, int] = {}
_most = 0


class SecondTensor(torch.Tensor):
    """A tensor of the device; `raw` is its tensor of the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw, requires_grad=False):
        if raw.dtype in _lacks:
            raise TypeError(f"{NAME} has no {raw.dtype}")
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        wrapper.raw = raw
        _hold(raw)
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        is_composite = func._can_decompose() and torch.is_inference_mode_enabled()  # which decomposes nothing before
        return func.decompose(*args, **(kwargs or {})) if is_composite else _computed(func, args, kwargs or {})

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, new):
        torch.Tensor.data.__set__(self, new)
        self.raw = new.raw

    def data_ptr(self):
        return self.raw.data_ptr()

    def tolist(self):
        _note_wait("tolist")
        return self.raw.tolist()

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = SecondTensor(self.raw.detach().clone())
            memo[id(self)] = (
                torch.nn.Parameter(copied, requires_grad=self.requires_grad)
                if isinstance(self, torch.nn.Parameter)
                else copied.requires_grad_(self.requires_grad)
            )
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a tensor on {NAME} cannot be pickled: a machine without the device could not read it")

    def __repr__(self, **options):
        return f"{NAME}({self.raw!r})"


def _computed(func, args, kwargs):
    """Compute an operation on the tensors of the CPU.

    Raises:
    RuntimeError: If tensors of both devices are operands.
    """
    known: dict[int, torch.Tensor] = {}
    foreign: list[torch.Tensor] = []

    def opened(each):
        if isinstance(each, SecondTensor):
            known[id(each.raw)] = each
            return each.raw
        if isinstance(each, torch.Tensor):
            foreign.append(each)
        elif isinstance(each, torch.device):
            return CPU if each.type == NAME else each
        elif isinstance(each, torch.Generator):
            raise RuntimeError(f"{func}: expected a '{NAME}' device type for generator but found '{each.device}'")
        elif isinstance(each, list | tuple):
            return type(each)(map(opened, each))
        return each

    plain, named = [opened(each) for each in args], {name: opened(each) for name, each in kwargs.items()}
    if foreign and func not in _CROSSING:
        _check(func, args, foreign)
    if _is_waiting(func, args, kwargs):
        _note_wait(str(func).removeprefix("aten."))
    result = func(*plain, **named)
    if func is aten.copy_.default:
        return args[0]
    if func is aten._to_copy.default and torch.device(kwargs.get("device") or NAME).type == "cpu":
        return result

    def wrapped(each):
        if isinstance(each, list | tuple):
            return type(each)(map(wrapped, each))
        if not isinstance(each, torch.Tensor):
            return each
        existing = known.get(id(each))
        if existing is not None and existing.shape != each.shape:
            raise NotImplementedError(f"{func} changes a shape in place")
        return SecondTensor(each) if existing is None else existing

    return wrapped(result)


def _check(func, args, foreign):
    """Check that no tensor of the CPU is at a position where CUDA refuses it."""
    if func in _INDEXING and isinstance(args[0], SecondTensor):
        values = args[2:3]  # indices can be on the CPU, values cannot
        foreign = [each for each in foreign if any(each is value for value in values)]
    if torch.Tag.pointwise in func.tags:
        written = args[0] if func._schema.is_mutable else None
        foreign = [each for each in foreign if each.dim() > 0 or each is written]
    if foreign:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {NAME}:0 and cpu")


def _is_waiting(func, args, kwargs):
    """Return whether a GPU would have to finish its work before the CPU continues."""
    if func is aten._to_copy.default:
        return torch.device(kwargs.get("device") or NAME).type == "cpu"
    if func in _INDEXING:
        return any(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in args[1])
    return func in _WAITING


def _note_wait(what):
    if _waits is not None:
        _waits.append(what)


@contextlib.contextmanager
def recorded_waits():
    """Yield a list that receives the name of each operation for which the CPU waits for the device during the block."""
    global _waits
    before, _waits = _waits, []
    try:
        yield _waits
    finally:
        _waits = before


def _raw(each):
    return each.raw if isinstance(each, SecondTensor) else each


def _hold(raw):
    global _most
    storage = raw.untyped_storage()
    key = storage._cdata
    _num_views[key] += 1
    _sizes[key] = storage.nbytes()
    _most = max(_most, allocated()) if _num_views[key] == 1 and _counts else _most
    weakref.finalize(raw, _release, key)


def _release(key):
    _num_views[key] -= 1
    if not _num_views[key]:
        del _num_views[key], _sizes[key]


_counts = False


def allocated():
    """Return the allocated bytes of the device."""
    return sum(list(_sizes.values()))


@contextlib.contextmanager
def most_allocated():
    """Yield a list of one number: the peak of allocated bytes during the block."""
    global _counts, _most
    _counts, _most, peak = True, allocated(), [0]
    try:
        yield peak
    finally:
        _counts, peak[0] = False, _most


@contextlib.contextmanager
def without(*dtypes):
    """Remove dtypes from the device, as the one of Apple has no float64."""
    _lacks.update(dtypes)
    try:
        yield
    finally:
        _lacks.difference_update(dtypes)


class _Module:
    """The module `torch.second`."""

    memory = 1 << 40

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def manual_seed_all(self, seed):
        """Do nothing: it has no random numbers."""

    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation=True):
        return torch.bfloat16 not in _lacks

    def mem_get_info(self, device=None):
        return self.memory - allocated(), self.memory

    def max_memory_allocated(self, device=None):
        return max(_most, allocated())

    def empty_cache(self):
        """Do nothing: it has no cache."""

    def get_device_name(self, device=None):
        return "memory of the CPU"

    def _is_in_bad_fork(self):
        return False


def _dispatch(func, *args, **kwargs):
    return _computed(func, args, kwargs)


def _copied(self, source, non_blocking=False):
    if isinstance(source, SecondTensor) and not isinstance(self, SecondTensor):
        _note_wait("copy_")
    _raw(self).copy_(_raw(source))
    return self


def _copied_from(source, target, non_blocking=False):
    return _copied(target, source)


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_every = torch.library.Library("_", "IMPL")
_every.fallback(_dispatch, "PrivateUse1")
_overrides = torch.library.Library("aten", "IMPL")
for _name in (
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "linspace",
    "randperm",
    "randperm.generator",
):
    _packet, _, _overload = _name.partition(".")
    _operation = getattr(getattr(aten, _packet), _overload or "default")
    _overrides.impl(
        _name, functools.partial(_dispatch, _operation), "PrivateUse1"
    )  # those of PyTorch change a shape in place
_overrides.impl("copy_", _copied, "PrivateUse1")
_overrides.impl("_copy_from", _copied_from, "PrivateUse1")
_every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _shortened(operation, *args, **kwargs):
    """Compute a product under autocast in the configured dtype."""
    wanted = torch.get_autocast_dtype(NAME)

    def short(each):
        takes = isinstance(each, torch.Tensor) and each.is_floating_point() and each.dtype != torch.float64
        return each.to(wanted) if takes else each

    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        args, kwargs = pytree.tree_map(short, (args, kwargs))
        return operation(*args, **kwargs)


for _name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention"):
    _operation = getattr(aten, _name).default
    _overrides.impl(_name, functools.partial(_shortened, _operation), "AutocastPrivateUse1")

DEVICE = "cuda" if torch.cuda.is_available() else NAME
"""Device of the tests: a GPU if one exists."""
