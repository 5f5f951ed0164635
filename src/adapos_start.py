"""The command `adapos`: until the library is loaded, which takes seconds, Ctrl-C ends it at once and in silence.

It stands beside the package, for whatever is in the package loads all of it first.
"""

from __future__ import annotations

import signal


def main() -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not where whoever started it wants it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from adapos.cli import main as run

    signal.signal(signal.SIGINT, usual)
    run()
