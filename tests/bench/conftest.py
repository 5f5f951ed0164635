"""What the tests of the bench share. `runs`, beside this file, has runs to read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
