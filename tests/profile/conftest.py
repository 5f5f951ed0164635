"""What the tests of the profile share. `results`, beside this file, has results to read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
