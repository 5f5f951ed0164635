"""`python -m adapos`, as torchrun starts it."""

from __future__ import annotations

from adapos.cli import main

main()
