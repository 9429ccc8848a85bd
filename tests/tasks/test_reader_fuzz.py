"""Any content of a file yields rows or a documented error with the file name, within a second."""

import hashlib

import pytest

from fuzzing import files
from fuzzing.choices import Choices


def try_inputs(reader, numbers):
    for number in numbers:
        data = hashlib.shake_128(f"{reader} {number}".encode()).digest(16 << (number % 7))
        files.one(Choices(data), reader)


@pytest.mark.parametrize("reader", sorted(files.READERS))
def test_some_files_find_nothing(reader):
    try_inputs(reader, range(200))


@pytest.mark.slow
@pytest.mark.parametrize("reader", sorted(files.READERS))
def test_many_files_find_nothing(reader):
    try_inputs(reader, range(200, 20_200))
