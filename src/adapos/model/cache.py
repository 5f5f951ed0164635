"""What decoding keeps: k, v and every extra per layer, positions and documents once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adapos.encoding import Keys, Tokens
from adapos.layout import PADDING, Layout, count


class Cache:
    """Tokens seen so far. `length` counts them; it moves on only when a whole pass has succeeded.

    Buffers grow by doubling, so that a step copies its own tokens and nothing else. While gradients are
    recorded tensors are joined instead, for a buffer that is written again cannot be differentiated.
    """

    def __init__(self) -> None:
        self.length = 0
        self._layers: dict[int, dict[str, Tensor]] = {}
        self._pos: Tensor | None = None  # (B, S)
        self._doc: Tensor | None = None  # (B, S)
        self._plain = True  # ids 0, 1, 2... and one document in every row
        self._dense: Layout | None = None  # the last layout given out that keeps it so
        self._k_doc: Tensor | None = None  # the documents of that or another: a layout forgets the number of a lone one

    def __len__(self) -> int:
        return self.length

    @property
    def plain(self) -> bool:
        """Whether all tokens so far count 0, 1, 2... in one document a row."""
        return self._plain

    def layout(
        self,
        batch: int,
        length: int,
        pos: Tensor | None = None,
        doc: Tensor | None = None,
        *,
        device: torch.device | str | None = None,
        window: int | None = None,
    ) -> Layout:
        """Where `length` new tokens are, behind those in the cache."""
        if self._pos is not None and self._pos.shape[0] != batch:
            raise ValueError(
                f"the cache holds a batch of {self._pos.shape[0]} and the new tokens are {batch}; start a new Cache"
            )
        if self._plain and pos is None and doc is None:
            self._k_doc = None
            self._dense = Layout.dense(batch, length, cached=self.length, device=device, window=window)
            return self._dense
        if doc is None and self._doc is not None:
            doc = _last(self._doc).expand(-1, length)
        if doc is None:
            doc = torch.zeros(batch, length, dtype=torch.long, device=device)
        k_doc = doc if self._doc is None else torch.cat([self._doc, doc], dim=1)
        if self._doc is None and self.length:
            k_doc = torch.cat([doc.new_zeros(batch, self.length), doc], dim=1)
        if pos is None:
            pos = self._following(k_doc)
        k_pos = pos if self._pos is None else torch.cat([self._pos, pos], dim=1)
        self._k_doc = k_doc
        return Layout(pos, k_pos, doc, k_doc, start=self.length, window=window)

    def _following(self, k_doc: Tensor) -> Tensor:
        """Ids that go on counting in each document."""
        new = k_doc[:, self.length :]
        if self._pos is None:
            return count(new)
        _, number = k_doc.unique(return_inverse=True)  # (B, S), documents numbered 0, 1, 2...
        last = torch.full((len(k_doc), int(number.max()) + 1), -1, dtype=self._pos.dtype, device=new.device)
        last.scatter_reduce_(1, number[:, : self.length], self._pos, "amax")
        return (last.gather(1, number[:, self.length :]) + 1 + count(new)).masked_fill(new == PADDING, 0)

    def append(self, layer: int, t: Tokens) -> Keys:
        """All tokens of a layer, the new ones last. They stay only if `commit` follows."""
        new = {"k": t.k, "v": t.v, **{f"extra.{name}": x for name, x in t.extra.items()}}
        # what a first pass left behind that failed is nothing to go on with
        old = self._layers.get(layer) if self.length else None
        if old is not None and old.keys() != new.keys():
            raise ValueError(
                f"the cache holds {', '.join(old)} and the layer now gives {', '.join(new)}; start a new Cache"
            )
        kept = {name: self._joined(None if old is None else old[name], x, name) for name, x in new.items()}
        self._layers[layer] = kept
        whole = {name: x[:, :, : self.length + t.k.shape[2]] for name, x in kept.items()}
        return Keys(whole.pop("k"), whole.pop("v"), {name.removeprefix("extra."): x for name, x in whole.items()})

    def _joined(self, old: Tensor | None, new: Tensor, name: str) -> Tensor:
        """A buffer (B, ., S or more, ...) whose first tokens are the cached and the new ones."""
        end = self.length + new.shape[2]
        if old is None:
            return new
        if (
            (old.shape[:2], old.shape[3:]) != (new.shape[:2], new.shape[3:])
            or old.dtype != new.dtype
            or old.device != new.device
        ):
            raise ValueError(
                f"the cache holds {name} as {tuple(old.shape)} {old.dtype} on {old.device} and the new tokens are "
                f"{tuple(new.shape)} {new.dtype} on {new.device}; start a new Cache"
            )
        if torch.is_grad_enabled() and (new.requires_grad or old.requires_grad):
            return torch.cat([old[:, :, : self.length], new], dim=2)
        locked = old.is_inference() and not torch.is_inference_mode_enabled()
        if old.shape[2] < end or old.requires_grad or locked:
            grown = old.new_empty(*old.shape[:2], 2 * end, *old.shape[3:])
            grown[:, :, : self.length] = old[:, :, : self.length]
            old = grown
        old[:, :, self.length : end] = new
        return old

    def commit(self, layout: Layout) -> None:
        """The pass over the new tokens of `layout` is done: they belong to the cache."""
        self._plain = layout is self._dense
        self._pos, self._doc = layout.k_pos, self._k_doc
        self.length = layout.keys

    def cover(self, seen: Tensor) -> None:
        """Which of the cached tokens (B, length) are seen from now on; the others are padding."""
        if self.plain and bool(seen.all()):
            return
        if self._doc is None:
            self._doc = torch.zeros_like(seen, dtype=torch.long)
        doc = torch.where(seen, self._doc.clamp(min=0), PADDING)
        if not torch.equal(doc, self._doc):
            self._doc, self._plain = doc, False

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"the cache holds {self.length} tokens and cannot be cropped to {length}")
        self.length = length
        self._pos = None if self._pos is None else self._pos[:, :length]
        self._doc = None if self._doc is None else self._doc[:, :length]
        if length == 0:
            self.__init__()  # type: ignore[misc]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: beams are reordered so."""
        if rows.ndim != 1 or len(rows) < 1 or rows.dtype == torch.bool or rows.is_floating_point():
            raise ValueError(
                "rows must be the numbers of the rows to keep, one or more, "
                f"not {rows.dtype} of shape {tuple(rows.shape)}"
            )
        self._layers = {layer: {name: x[rows] for name, x in kept.items()} for layer, kept in self._layers.items()}
        if self._pos is not None:
            self._pos = self._pos[:1].expand(len(rows), -1) if self._plain else self._pos[rows]
        self._doc = None if self._doc is None else self._doc[rows]

    def repeat(self, times: int) -> None:
        """Each row of the batch so many times, one after another."""
        rows = next(iter(self._layers.values()), {}).get("k")
        if rows is not None:
            self.select(torch.arange(len(rows), device=rows.device).repeat_interleave(times))

    @property
    def bytes(self) -> int:
        """What the cached tokens take, without the room to grow."""
        return sum(
            x[:, :, : self.length].numel() * x.element_size() for kept in self._layers.values() for x in kept.values()
        )

    @property
    def tensors(self) -> Mapping[int, Mapping[str, Tensor]]:
        """The cached tokens of each layer, by name."""
        return {
            layer: {name: x[:, :, : self.length] for name, x in kept.items()} for layer, kept in self._layers.items()
        }


def _last(doc: Tensor) -> Tensor:
    """(B, 1): the document of the last token of each row that is no padding; 0 where there is none."""
    index = torch.arange(doc.shape[1], device=doc.device).masked_fill(doc == PADDING, -1).amax(1, keepdim=True)
    return doc.gather(1, index.clamp(min=0)).clamp(min=0)
