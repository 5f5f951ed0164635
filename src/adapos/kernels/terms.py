"""What fused backends compute with: ids and documents that matter, and one table and one ramp in place of several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adapos.layout import Layout
from adapos.pairs import Bias, DistanceTable, Ramp


def one_table(bias: Sequence[Bias]) -> tuple[Tensor | None, int]:
    """All tables over distance as one in float32, and its column of distance 0."""
    terms = [term for term in bias if isinstance(term, DistanceTable)]
    if not terms:
        return None, 0
    if len(terms) == 1:
        return terms[0].table.float().contiguous(), terms[0].zero
    zero = max(term.zero for term in terms)
    furthest = max(term.table.shape[1] - 1 - term.zero for term in terms)
    distance = torch.arange(-zero, furthest + 1, device=terms[0].table.device)
    columns = [(distance + term.zero).clamp(0, term.table.shape[1] - 1) for term in terms]
    total = torch.stack([term.table.float()[:, column] for term, column in zip(terms, columns, strict=True)]).sum(0)
    return total, zero


def one_ramp(bias: Sequence[Bias]) -> tuple[Tensor | None, Tensor | None]:
    """All ramps as one in double: the halves are far larger than their sum."""
    terms = [term for term in bias if isinstance(term, Ramp)]
    if not terms:
        return None, None
    first, *rest = terms
    q = sum((term.q.double() for term in rest), first.q.double())
    k = sum((term.k.double() for term in rest), first.k.double())
    return q.contiguous(), k.contiguous()


def placed(layout: Layout) -> tuple[tuple[Tensor | None, ...], int]:
    """Ids where they are not consecutive, documents where there are some, of queries and keys; and the window or 0."""
    places = (
        None if layout.consecutive else layout.q_pos.contiguous(),
        None if layout.consecutive else layout.k_pos.contiguous(),
        None if layout.q_doc is None else layout.q_doc.contiguous(),
        None if layout.k_doc is None else layout.k_doc.contiguous(),
    )
    # a window of all keys is none
    furthest = max(layout.keys, layout.start + layout.queries)
    return places, 0 if layout.window is None or layout.window >= furthest else layout.window
