"""What all tests share. `cases`, beside this file, makes the calls that several of them compare."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
# or only the first test that meets a warning of torch's would fail for it
torch.set_warn_always(True)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of torch threads, put back afterwards."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread(threads: None) -> None:
    """Quicker for tiny tensors; tiles run in the thread that called."""
    torch.set_num_threads(1)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody has written to is NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names registered by a test are forgotten after it."""
    from adapos import registry

    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))
    monkeypatch.setattr(registry, "ALIASES", dict(registry.ALIASES))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that even a short text has many, of sizes that do not divide its length."""
    from cases import tiles_of

    tiles_of(monkeypatch, rows=5, keys=7, pairs=40, scores=300)
