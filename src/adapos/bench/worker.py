"""One trial in a process of its own: `python -m adapos.bench.worker FOLDER TRIAL SETUP`."""

from __future__ import annotations

import json
import sys

from adapos.bench.compare import by_name
from adapos.bench.signals import Stopped


def main() -> None:
    folder, name, setup = sys.argv[1:]
    try:
        by_name(folder, name, json.loads(setup))
    except Stopped as problem:
        print(problem, file=sys.stderr)
        sys.exit(128 + problem.number)
    except ValueError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
