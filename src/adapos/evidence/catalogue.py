"""Every claim by its name."""

from __future__ import annotations

from functools import cache

from adapos.evidence import beyond, dape, tape
from adapos.evidence.claim import Claim
from adapos.hints import meant


@cache
def claims(scale: str) -> dict[str, Claim]:
    return {claim.name: claim for part in (dape, tape, beyond) for claim in part.claims(scale)}


def find(name: str, scale: str) -> list[Claim]:
    """The claim of a name, all of a paper, or `all`."""
    known = claims(scale)
    found = [claim for claim in known.values() if name in ("all", claim.name, claim.name.partition("/")[0])]
    if not found:
        raise ValueError(f"no claim is called {name!r}: `adapos reproduce` lists all{meant(name.lower(), known)}")
    return found
