"""What the tests of the explorer share. `shelved`, beside this file, makes trials to explore."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of four encodings, trained."""
    from shelved import trial

    folder = tmp_path_factory.mktemp("explore") / "run"
    for name, encoding in {"a": "rope", "b": "kerple", "c": "kerple + dape", "d": "tape"}.items():
        trial(folder / "trials" / name, encoding)
    return folder
