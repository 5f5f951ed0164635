"""Where tokens are, and which keys a query sees."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, replace

import torch
from torch import Tensor

ALL = slice(None)
PADDING = -1
FURTHEST = 2**22  # apart, for ids that are looked up in a table


@dataclass(frozen=True, eq=False)
class Layout:
    """The ids and documents of T queries and S keys.

    Order is an index, position is an id: causality and windows go by index on the key axis, encodings read
    ids, which may jump, repeat or restart. Padding and packing are one thing: a document per token, -1 for
    padding; a query sees the keys of its own document. Without documents every token belongs to one.

    `span`, `ahead`, `last` and `consecutive` are measured from the ids, once, so that no device is asked inside a
    layer; `dense` knows them.
    """

    q_pos: Tensor  # (B, T)
    k_pos: Tensor  # (B, S), cached keys first
    q_doc: Tensor | None = None  # (B, T)
    k_doc: Tensor | None = None  # (B, S)
    start: int = -1  # index on the key axis of the first query; -1: the queries are the last keys
    span: int = 0  # max(q_pos - k_pos) + 1
    causal: bool = True
    window: int | None = None  # a query sees keys at an index distance below this
    ahead: int = 0  # max(k_pos - q_pos) over visible pairs, or 0
    last: int = 0  # max(q_pos)
    consecutive: bool = False  # q_pos - k_pos is the difference of indices for every visible pair
    known: InitVar[bool] = False  # span, ahead, last and consecutive are given and right

    def __post_init__(self, known: bool) -> None:
        self._validate()
        for name in ("q_pos", "k_pos", "q_doc", "k_doc"):
            if (ids := getattr(self, name)) is not None:
                object.__setattr__(self, name, ids.long())
        if self.start == -1:
            object.__setattr__(self, "start", self.k_pos.shape[1] - self.q_pos.shape[1])
        if not 0 <= self.start <= self.keys - self.queries:
            raise ValueError(
                f"start ({self.start}) must place {self.queries} queries among {self.keys} keys: "
                f"it lies between 0 and {self.keys - self.queries}"
            )
        if not known:
            self._measure()

    @classmethod
    def dense(
        cls,
        batch: int,
        length: int,
        *,
        device: torch.device | str | None = None,
        causal: bool = True,
        window: int | None = None,
        cached: int = 0,
    ) -> Layout:
        """One document a row with ids 0, 1, 2...: `length` queries behind `cached` keys."""
        for name, size in (("batch", batch), ("length", length), ("cached", cached)):
            if not isinstance(size, int) or isinstance(size, bool):
                raise ValueError(f"{name} must be a whole number, not {size!r}")
        if batch < 1 or length < 1:
            raise ValueError(f"batch ({batch}) and length ({length}) must be at least 1; there is nothing to attend to")
        if cached < 0:
            raise ValueError(f"cached ({cached}) must be at least 0")
        k_pos = torch.arange(cached + length, device=device)[None].expand(batch, -1)
        ahead = 0 if causal else length - 1
        return cls(
            k_pos[:, cached:],
            k_pos,
            start=cached,
            span=cached + length,
            causal=causal,
            window=window,
            ahead=ahead,
            last=cached + length - 1,
            consecutive=True,
            known=True,
        )

    @property
    def batch(self) -> int:
        return self.q_pos.shape[0]

    @property
    def queries(self) -> int:
        return self.q_pos.shape[1]

    @property
    def keys(self) -> int:
        return self.k_pos.shape[1]

    @property
    def plain(self) -> bool:
        """Causal, one document, no padding, no window: a kernel may skip the mask."""
        return self.causal and self.k_doc is None and self.window is None

    def visible(self, rows: slice = ALL) -> Tensor:
        """(B, 1, t, S): which keys the queries of `rows` see."""
        query = torch.arange(self.start, self.start + self.queries, device=self.k_pos.device)[rows, None]
        offset = query - torch.arange(self.keys, device=self.k_pos.device)  # (t, S)
        seen = torch.ones_like(offset, dtype=torch.bool)
        if self.causal:
            seen = offset >= 0
        if self.window is not None:
            seen = seen & (offset.abs() < self.window)
        if self.q_doc is None or self.k_doc is None:
            return seen.expand(self.batch, 1, -1, -1)
        q_doc, k_doc = self.q_doc[:, rows, None], self.k_doc[:, None, :]
        return (seen & (q_doc == k_doc) & (k_doc != PADDING))[:, None]

    def distance(self, rows: slice = ALL) -> Tensor:
        """(B, 1, t, S): q_pos - k_pos. A batch that repeats one row of ids is computed once and expanded."""
        q_pos, k_pos = self.q_pos, self.k_pos
        if q_pos.stride(0) == 0 and k_pos.stride(0) == 0:
            q_pos, k_pos = q_pos[:1], k_pos[:1]
        distance = q_pos[:, None, rows, None] - k_pos[:, None, None, :]
        return distance.expand(self.batch, -1, -1, -1)

    def distances(self, furthest: int | None = None) -> Tensor:
        """(R,): every distance a table must know, from -ahead to span - 1, cut at `furthest` on both sides."""
        low, high = -self.ahead, max(self.span - 1, -self.ahead)
        if furthest is not None:
            low, high = max(low, -furthest), min(high, furthest)
        if high - low >= FURTHEST:
            raise ValueError(
                f"a table of distances reaches up to {FURTHEST}, and these ids are up to {high - low} apart; "
                "number the tokens closer together"
            )
        return torch.arange(low, high + 1, device=self.k_pos.device)

    def first(self, keys: int) -> Layout:
        """The same layout with the key axis cropped. Queries keep their indices, so they may lie past the crop."""
        if keys == self.keys:
            return self
        k_doc = None if self.k_doc is None else self.k_doc[:, :keys]
        cropped = object.__new__(Layout)
        vars(cropped).update(vars(self) | {"k_pos": self.k_pos[:, :keys], "k_doc": k_doc})
        return cropped

    def to(self, device: torch.device | str) -> Layout:
        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device)

        return replace(
            self,
            q_pos=self.q_pos.to(device),
            k_pos=self.k_pos.to(device),
            q_doc=move(self.q_doc),
            k_doc=move(self.k_doc),
            known=True,
        )

    def _validate(self) -> None:
        tensors = {"q_pos": self.q_pos, "k_pos": self.k_pos, "q_doc": self.q_doc, "k_doc": self.k_doc}
        for name, ids in tensors.items():
            if ids is None:
                continue
            if not isinstance(ids, Tensor):
                raise ValueError(f"{name} must be a tensor of integers, not a {type(ids).__name__}")
            if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
                raise ValueError(
                    f"{name} must hold integers, not {ids.dtype}; positions and documents are whole, cast with .long()"
                )
            if ids.ndim != 2:
                raise ValueError(f"{name} must have shape (batch, tokens), not {tuple(ids.shape)}")
            if ids.shape[0] < 1 or ids.shape[1] < 1:
                raise ValueError(f"{name} of shape {tuple(ids.shape)} is empty; batch and length must be at least 1")
            if ids.device != self.q_pos.device:
                raise ValueError(f"{name} is on {ids.device} and q_pos on {self.q_pos.device}; move them to one device")
            if ids.shape[0] != self.q_pos.shape[0]:
                raise ValueError(f"{name} has batch {ids.shape[0]} and q_pos {self.q_pos.shape[0]}; they must agree")
        if (self.q_doc is None) != (self.k_doc is None):
            raise ValueError("q_doc and k_doc come together: give both or neither")
        for pos, doc, name in ((self.q_pos, self.q_doc, "q_doc"), (self.k_pos, self.k_doc, "k_doc")):
            if doc is not None and doc.shape != pos.shape:
                raise ValueError(
                    f"{name} has shape {tuple(doc.shape)} and its positions {tuple(pos.shape)}; they must agree"
                )
        if self.queries > self.keys:
            raise ValueError(
                f"there are more queries ({self.queries}) than keys ({self.keys}); every query is also a key"
            )
        if self.window is not None and (not isinstance(self.window, int) or self.window < 1):
            raise ValueError(f"window ({self.window!r}) must be a whole number of at least 1: a query sees itself")

    def _measure(self) -> None:
        if self.k_doc is not None and self.q_doc is not None:
            one = self.k_doc[:, :1]
            if bool((self.k_doc == one).all() & (self.q_doc == one).all() & (one != PADDING).all()):
                object.__setattr__(self, "q_doc", None)
                object.__setattr__(self, "k_doc", None)
        consecutive = self._consecutive()
        if consecutive:
            span, ahead = self.start + self.queries, self.keys - 1 - self.start
        else:
            low, high = int(self.k_pos.min()), int(self.k_pos.max())
            if low < -(2**61) or high > 2**61:
                raise ValueError(
                    f"ids must lie between -2^61 and 2^61, and they go from {low} to {high}; renumber them"
                )
            span = max(int((self.q_pos.amax(1) - self.k_pos.amin(1)).max()) + 1, 1)
            ahead = max(int((self.k_pos.amax(1) - self.q_pos.amin(1)).max()), 0)
        if self.causal and (consecutive or self._rising()):
            ahead = 0
        object.__setattr__(self, "consecutive", consecutive)
        object.__setattr__(self, "span", span)
        object.__setattr__(self, "ahead", ahead)
        object.__setattr__(self, "last", int(self.q_pos.max()))

    def _queries_are_keys(self) -> bool:
        here = slice(self.start, self.start + self.queries)
        same = torch.equal(self.q_pos, self.k_pos[:, here])
        return same and (self.q_doc is None or self.k_doc is None or torch.equal(self.q_doc, self.k_doc[:, here]))

    def _runs(self) -> tuple[Tensor, bool]:
        """Which neighbours on the key axis share a document, and whether every document is one run."""
        if self.k_doc is None:
            return torch.ones_like(self.k_pos[:, 1:], dtype=torch.bool), True
        same = self.k_doc[:, 1:] == self.k_doc[:, :-1]
        before = self.k_doc.cummax(1).values[:, :-1]
        opens = ~same & (self.k_doc[:, 1:] != PADDING)
        return same & (self.k_doc[:, 1:] != PADDING), bool(((self.k_doc[:, 1:] > before) | ~opens).all())

    def _consecutive(self) -> bool:
        together, whole = self._runs()
        steps = self.k_pos.diff(dim=1)
        return whole and bool(((steps == 1) | ~together).all()) and self._queries_are_keys()

    def _rising(self) -> bool:
        together, whole = self._runs()
        return whole and bool(((self.k_pos.diff(dim=1) >= 0) | ~together).all()) and self._queries_are_keys()


def count(doc: Tensor) -> Tensor:
    """(B, T) ids that count 0, 1, 2... within each document of a batch; padding gets 0."""
    ordered, order = doc.sort(dim=1, stable=True)
    index = torch.arange(doc.shape[1], device=doc.device).expand_as(doc)
    opens = torch.ones_like(doc, dtype=torch.bool)
    opens[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begin = torch.where(opens, index, 0).cummax(1).values
    pos = torch.empty_like(index).scatter_(1, order, index - begin)
    return pos.masked_fill(doc == PADDING, 0)
