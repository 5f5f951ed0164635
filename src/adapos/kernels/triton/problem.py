"""One call as the kernels see it, and what each of them is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adapos.kernels.triton import INTERPRETED, sizes
from adapos.kernels.triton.sizes import Chunk
from adapos.pairs import SLOPE


@dataclass(frozen=True, eq=False)
class Problem:
    """Terms in float32 but for ramps, which are in double; None where a tensor does not apply."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    q_pos: Tensor | None  # (B, T), where ids are not consecutive
    k_pos: Tensor | None  # (B, S)
    q_doc: Tensor | None  # (B, T), where there are documents
    k_doc: Tensor | None  # (B, S)
    table: Tensor | None  # (H, R)
    ramp_q: Tensor | None  # (B, H, T)
    ramp_k: Tensor | None  # (B, H, S)
    w_score: Tensor | None  # (k, W, H)
    w_bias: Tensor | None  # (k, W, H)
    b_in: Tensor | None  # (W,)
    w_out: Tensor | None  # (k, H, W)
    start: int
    window: int  # 0: none
    causal: bool
    zero: int  # the column of distance 0
    added: bool  # the bias stands beside the mix as well as inside it
    scale: float

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def mixed(self) -> bool:
        return self.w_out is not None

    @property
    def biased(self) -> bool:
        return self.table is not None or self.ramp_q is not None

    def chunks(self, numbers: int, least: int = 0) -> list[Chunk]:
        """With so many numbers in memory for each pair, and for `sizes.SPAN` queries of a text at least."""
        return sizes.chunks(
            self.q.shape[0],
            self.q.shape[2],
            self.k.shape[2],
            heads=self.heads,
            numbers=numbers,
            least=least,
            start=self.start,
            window=self.window,
            causal=self.causal,
        )

    def of_pairs(self) -> dict[str, Any]:
        """For scores and biases."""
        return {
            **{name: getattr(self, name) for name in ("q", "k", "table", "q_pos", "k_pos", "q_doc", "k_doc")},
            **{name: None if (x := getattr(self, name)) is None else halves(x) for name in ("ramp_q", "ramp_k")},
            **strides(q=self.q, k=self.k),
            "T": self.q.shape[2],
            "S": self.k.shape[2],
            "R": 1 if self.table is None else self.table.shape[1],
            "zero": self.zero,
            "start": self.start,
            "window": self.window,
            "scale": self.scale,
            "H": self.heads,
            "REPEATS": self.heads // self.k.shape[1],
            "D": self.q.shape[3],
            "CAUSAL": self.causal,
            "WINDOW": self.window > 0,
            "DOCS": self.k_doc is not None,
            "TABLE": self.table is not None,
            "IDS": self.k_pos is not None,
            "RAMP": self.ramp_q is not None,
            "PRECISION": precision(self.q),
        }

    def of_values(self) -> dict[str, Any]:
        width = self.v.shape[3]
        return {"v": self.v, **strides(v=self.v), "E": width, "VALUES": sizes.up(width), "MIXED": self.mixed}

    def of_mix(self) -> dict[str, Any]:
        """Its matrices padded to whole tiles, row by row in memory; nothing where there is none."""
        if self.w_out is None or self.b_in is None:
            return {}
        taps, heads, channels = self.w_out.shape
        all_heads, all_channels = sizes.up(heads), sizes.whole(max(channels, 1))
        more_heads, more = all_heads - heads, all_channels - channels
        return {
            "w_score": None if self.w_score is None else F.pad(self.w_score, (0, more_heads, 0, more)).contiguous(),
            "w_bias": None if self.w_bias is None else F.pad(self.w_bias, (0, more_heads, 0, more)).contiguous(),
            "b_in": F.pad(self.b_in, (0, more)),
            "w_out": F.pad(self.w_out, (0, more, 0, more_heads)).contiguous(),
            "slope": SLOPE,
            "HEADS": all_heads,
            "W": channels,
            "CHANNELS": all_channels,
            "TAPS": taps,
            "SCORED": self.w_score is not None,
            "BIASED": self.w_bias is not None,
            "ADDED": self.added,
        }


def precision(q: Tensor) -> str:
    """Of products of float32: exact, or of TF32 where texts are in half precision or torch is told so."""
    if INTERPRETED:
        return "interpreted"
    if torch.version.hip is not None and "gfx942" not in torch.cuda.get_device_properties(q.device).gcnArchName:
        return "ieee"
    return "ieee" if q.dtype == torch.float32 and not tf32() else "tf32"


def tf32() -> bool:
    """Whether torch may multiply float32 in TF32."""
    matmul = torch.backends.cuda.matmul
    # the older name raises once torch was told by the newer
    if hasattr(matmul, "fp32_precision"):
        return matmul.fp32_precision == "tf32"
    return matmul.allow_tf32


def of_chunk(chunk: Chunk, pitch: int) -> dict[str, int]:
    return {
        "text": chunk.texts.start,
        "begin": chunk.rows.start,
        "end": chunk.rows.stop,
        "first": chunk.keys.start,
        "last": chunk.keys.stop,
        "pitch": pitch // sizes.STEP,
    }


def strides(**tensors: Tensor) -> dict[str, int]:
    names = ("batch", "head", "token")
    return {f"{of}_{name}": x.stride(axis) for of, x in tensors.items() for axis, name in enumerate(names)}


def halves(x: Tensor) -> Tensor:
    """Numbers in double as two in single precision, (..., 2): a large part, and what it leaves out."""
    large = x.float()
    return torch.stack([large, torch.where(large.isfinite(), x - large, 0.0).float()], dim=-1)
