"""One trial in a process of its own: `python -m adapos.bench.worker FOLDER TRIAL SETUP`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from adapos.bench.compare import BUSY, REFUSED, by_name
from adapos.bench.signals import Stopped
from adapos.files import Taken


def main() -> None:
    folder, name, setup = sys.argv[1:]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        by_name(folder, name, json.loads(setup))
    except Stopped as problem:
        print(problem, file=sys.stderr)
        sys.exit(128 + problem.number)
    except ValueError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(BUSY if isinstance(problem, Taken) else REFUSED)


def end_with(parent: int) -> None:
    """Save and stop where whoever started this process is gone, and cannot ask for it."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
