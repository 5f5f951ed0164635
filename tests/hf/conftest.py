"""Small random models of transformers."""

import pytest

pytest.importorskip("transformers")
