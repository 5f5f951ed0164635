"""Positional encodings that read the data, every static one they are measured against, and attention that runs them."""

from adapos import encodings as encodings
from adapos.contract import check
from adapos.encoding import Compose, Keys, PositionalEncoding, Promises, Shape, Tokens
from adapos.kernels import attend, explain
from adapos.layout import Layout
from adapos.model import SelfAttention
from adapos.pairs import Pairs
from adapos.registry import build, register, spec

__all__ = [
    "Compose",
    "Keys",
    "Layout",
    "Pairs",
    "PositionalEncoding",
    "Promises",
    "SelfAttention",
    "Shape",
    "Tokens",
    "attend",
    "build",
    "check",
    "explain",
    "register",
    "spec",
]
