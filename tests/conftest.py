"""What all tests share. `cases`, beside this file, makes the calls that several of them compare."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever terminal the tests are run from."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that even a short text has many, of sizes that do not divide its length."""
    from cases import tiles_of

    tiles_of(monkeypatch, rows=5, keys=7, pairs=40, scores=300)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real one, which keeps what pages say and ask for."""
    webdriver = pytest.importorskip("selenium.webdriver")
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("chromium and its driver are not installed")
    options = webdriver.ChromeOptions()
    for given in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(given)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()
