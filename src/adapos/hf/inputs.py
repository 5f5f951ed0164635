"""Masks and ids as transformers gives them, as documents and ids of a Layout, or nothing where all is plain."""

from __future__ import annotations

import torch
from torch import Tensor

from adapos.layout import PADDING
from adapos.model import Cache


def documents_and_ids(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    batch: int,
    length: int,
    cache: Cache | None,
    device: torch.device,
    *,
    packed: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """`doc` and `pos` of the new tokens, (B, T), each None where it is what a Layout takes by itself.

    Where they are `packed`, each run of ids that rise by one is a text of its own.
    """
    cached = 0 if cache is None else cache.length
    if cache is not None and cached and attention_mask is not None and attention_mask.shape[-1] == cached + length:
        cache.cover(attention_mask[:, :cached].to(device) != 0)
    doc = None if attention_mask is None else padding(attention_mask, batch, length, cached, device)
    if position_ids is None:
        return doc, None
    pos = ids_of_all(position_ids, batch, length).to(device)
    plain = torch.arange(cached, cached + length, device=device)
    if doc is None and (cache is None or cache.plain) and torch.equal(pos, plain.expand(batch, -1)):
        return None, None
    if packed and length > 1:
        breaks = pos.diff(dim=1) != 1
        if bool(breaks.any()):
            doc = torch.cat([breaks.new_zeros(batch, 1), breaks], dim=1).cumsum(1)
    return doc, pos


def ids_of_all(position_ids: Tensor, batch: int, length: int) -> Tensor:
    """(B, T), where one row may stand for all."""
    if tuple(position_ids.shape) not in ((1, length), (batch, length)):
        raise ValueError(
            f"position_ids must have shape (batch, tokens), ({batch}, {length}), not {tuple(position_ids.shape)}"
        )
    return position_ids.expand(batch, -1)


def padding(mask: Tensor, batch: int, length: int, cached: int, device: torch.device) -> Tensor | None:
    """Documents of the new tokens: 0, or -1 where the mask is zero; None where it is nowhere."""
    if mask.ndim != 2:
        raise ValueError(
            f"attention_mask must have shape (batch, tokens), with 0 for padding, not {tuple(mask.shape)}; for several "
            "texts in a row give position_ids that begin anew in each"
        )
    if mask.shape[0] != batch or mask.shape[1] not in (length, cached + length):
        raise ValueError(
            f"attention_mask must have shape ({batch}, {cached + length}), a number for each token, not "
            f"{tuple(mask.shape)}"
        )
    there = mask[:, -length:].to(device) != 0
    return None if bool(there.all()) else torch.where(there, 0, PADDING)
