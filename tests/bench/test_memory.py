"""The peak of memory is of what came after it was forgotten."""

from __future__ import annotations

import pytest
import torch

from adapos import resident
from adapos.bench import memory


@pytest.mark.skipif(not resident.FORGET.exists(), reason="this system cannot forget its peak")
def test_a_peak_is_not_that_of_what_came_before() -> None:
    memory.forget_peak("cpu")
    before = memory.peak("cpu")
    torch.ones(2**27)
    large = memory.peak("cpu")
    assert large > before + 2**28
    memory.forget_peak("cpu")
    assert memory.peak("cpu") < large - 2**28
