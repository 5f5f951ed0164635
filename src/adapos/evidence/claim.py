"""A claim: what a paper says, what is run for it, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adapos.bench.report.results import Results
from adapos.evidence.finding import Finding
from adapos.evidence.study import Study

Judge = Callable[[Mapping[str, Results]], Finding]


@dataclass(frozen=True)
class Claim:
    name: str  # paper/what
    asks: str
    paper: str  # its figures, quoted
    source: str  # arXiv
    runs: tuple[tuple[Study, tuple[str, ...]], ...]  # encodings of each study
    judge: Judge
