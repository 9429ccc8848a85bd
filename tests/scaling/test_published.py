"""What travels is what changed, bit for bit, and whoever missed something is sent the whole."""

import dataclasses

import pytest
import torch

from whetstone.errors import EngineError
from whetstone.scaling.published import Published, as_array, as_tensor, unpacked


def trained(values, dtype=torch.float32):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def test_only_what_changed_travels_and_the_whole_is_what_differs_from_the_beginning():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    begin = {"a": trained([1.0]), "b": trained([2.0]), "base": frozen}
    published = Published(dict, begin, version=0)
    assert published.whole().names == {}

    first = published.changed({**begin, "a": trained([3.0])}, 1)
    assert (set(first.names), first.since, first.version) == ({"a"}, 0, 1)
    assert published.bytes == 4
    second = published.changed({**begin, "a": trained([3.0]), "b": trained([5.0])}, 2)
    assert (set(second.names), second.since) == ({"b"}, 1)
    nothing = published.changed({**begin, "a": trained([3.0]), "b": trained([5.0])}, 3)
    assert (nothing.shelves, nothing.since, nothing.version) == ((), 2, 3)

    whole = published.whole()
    assert (whole.since, whole.version) == (None, 3)
    got = unpacked(whole, list(whole.shelves))
    assert {name: tensor.tolist() for name, tensor in got.items()} == {"a": [3.0], "b": [5.0]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_bits_arrive_as_they_were(dtype):
    tensor = torch.tensor([[1.5, -0.0], [3.25, 100.0]]).to(dtype)
    name = str(dtype).removeprefix("torch.")
    again = as_tensor(as_array(tensor), name)
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


def test_a_scalar_travels_too():
    published = Published(dict, {"s": trained(1.0)}, version=0)
    parcel = published.changed({"s": trained(2.0)}, 1)
    assert unpacked(parcel, list(parcel.shelves))["s"].item() == 2.0


def test_weights_that_changed_on_the_way_are_refused_with_both_checksums():
    published = Published(dict, {"a": trained([1.0])}, version=0)
    parcel = published.changed({"a": trained([2.0])}, 4)
    place, checksum = parcel.names["a"]
    other = dataclasses.replace(parcel, names={"a": (place, checksum ^ 1)})
    with pytest.raises(EngineError, match=rf"weights of version 4: a has checksum {checksum:08x}, and was sent with"):
        unpacked(other, list(other.shelves))
