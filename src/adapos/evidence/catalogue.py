"""Every claim by its name."""

from __future__ import annotations

from adapos.evidence import dape, tape
from adapos.evidence.claim import Claim
from adapos.registry import meant

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*dape.CLAIMS, *tape.CLAIMS)}


def find(name: str) -> list[Claim]:
    """The claim of a name, all of a paper, or `all`."""
    found = [claim for claim in CLAIMS.values() if name in ("all", claim.name, claim.name.partition("/")[0])]
    if not found:
        raise ValueError(f"no claim is called {name!r}{meant(name, CLAIMS)}; `adapos reproduce` lists all")
    return found
