"""Only changed weights are sent, bit for bit, and all weights to a replica that missed a version."""

import dataclasses

import pytest
import torch

from whetstone.errors import EngineError
from whetstone.scaling.weight_broadcast import SharedWeights, as_array, as_tensor, unpack_weights


def trained(values, dtype=torch.float32):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def test_only_changes_are_sent_and_the_full_weights_are_the_difference_to_the_start():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    begin = {"a": trained([1.0]), "b": trained([2.0]), "base": frozen}
    published = SharedWeights(dict, begin, version=0)
    assert published.collect_all().names == {}

    first = published.collect_changes({**begin, "a": trained([3.0])}, 1)
    assert (set(first.names), first.base_version, first.version) == ({"a"}, 0, 1)
    assert published.bytes == 4
    second = published.collect_changes({**begin, "a": trained([3.0]), "b": trained([5.0])}, 2)
    assert (set(second.names), second.base_version) == ({"b"}, 1)
    nothing = published.collect_changes({**begin, "a": trained([3.0]), "b": trained([5.0])}, 3)
    assert (nothing.buffers, nothing.base_version, nothing.version) == ((), 2, 3)

    full = published.collect_all()
    assert (full.base_version, full.version) == (None, 3)
    got = unpack_weights(full, list(full.buffers))
    assert {name: tensor.tolist() for name, tensor in got.items()} == {"a": [3.0], "b": [5.0]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_values_arrive_bit_for_bit(dtype):
    tensor = torch.tensor([[1.5, -0.0], [3.25, 100.0]]).to(dtype)
    name = str(dtype).removeprefix("torch.")
    received = as_tensor(as_array(tensor), name)
    assert received.dtype == dtype
    assert torch.equal(received, tensor)


def test_scalar_is_sent():
    published = SharedWeights(dict, {"s": trained(1.0)}, version=0)
    parcel = published.collect_changes({"s": trained(2.0)}, 1)
    assert unpack_weights(parcel, list(parcel.buffers))["s"].item() == 2.0


def test_weights_changed_in_transfer_are_refused_with_both_checksums():
    published = SharedWeights(dict, {"a": trained([1.0])}, version=0)
    parcel = published.collect_changes({"a": trained([2.0])}, 4)
    place, checksum = parcel.names["a"]
    other = dataclasses.replace(parcel, names={"a": (place, checksum ^ 1)})
    with pytest.raises(EngineError, match=rf"weights of version 4: a has checksum {checksum:08x}, expected"):
        unpack_weights(other, list(other.buffers))
