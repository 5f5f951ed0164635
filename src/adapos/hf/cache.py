"""What decoding keeps, as transformers carries it about."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from adapos.layout import Layout
from adapos.model import Cache


class Whole(CacheLayerMixin):
    """All layers of a model as one: k, v, every extra, ids and documents are cropped and reordered together."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache = cache
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return self.cache.length

    def get_max_length(self) -> int:
        return -1  # none

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length + query_length, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(self, key_states: Tensor, value_states: Tensor, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        raise ValueError("this cache is filled by adapos's layers; other models need a cache of their own")

    def offload(self) -> None:
        raise ValueError("adapos's caches stay on the model's device; leave cache_implementation='offloaded' out")

    def reset(self) -> None:
        self.cache.crop(0)

    def crop(self, tokens_to_remove: int) -> None:
        """As transformers counts: minus the number of tokens to forget."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to forget, not {tokens_to_remove}")
        self.cache.crop(max(0, self.cache.length + tokens_to_remove))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.cache.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.cache.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.cache.repeat(repeats)


class PositionsCache(transformers.Cache):
    """A transformers cache around an `adapos.model.Cache`, which is its `tokens`."""

    def __init__(self) -> None:
        self.tokens = Cache()
        self.encoding = ""  # that has filled it
        self.pending: Layout | None = None  # of a pass that is under way
        super().__init__(layers=[Whole(self.tokens)])

    def commit(self) -> None:
        """The pass is done, and its tokens belong to the cache; where layers were not given it, there are none."""
        if self.pending is not None:
            self.tokens.commit(self.pending)
        self.pending = None

    @property
    def bytes(self) -> int:
        return self.tokens.bytes


class Grows:
    """Mixed into models that decode with a PositionsCache."""

    def init_continuous_batching(self, *given: Any, **named: Any) -> None:
        raise ValueError("continuous batching keeps keys and values in pages, without positions; use generate")


def taken(given: Any, encoding: str) -> PositionsCache:
    """The cache to fill: the one that was given, or a new one in the place of an empty one of another kind."""
    if isinstance(given, PositionsCache):
        if len(given.tokens) and given.encoding != encoding:
            raise ValueError(
                f"the cache was filled with {given.encoding!r}, and the model now has {encoding!r}; start a new one"
            )
        given.encoding, given.pending = encoding, None
        return given
    if given is None or (isinstance(given, transformers.Cache) and _empty(given)):
        if getattr(given, "is_compileable", False) or getattr(given, "offloading", False):
            raise ValueError(
                f"{encoding!r} decodes with a cache that grows; leave cache_implementation out, {type(given).__name__} "
                "cannot hold it"
            )
        return taken(PositionsCache(), encoding)
    raise ValueError(
        f"past_key_values is a {type(given).__name__} that another model has filled; give None, or an "
        "adapos.hf.PositionsCache"
    )


def _empty(cache: transformers.Cache) -> bool:
    length = cache.get_seq_length()
    return int(length if not isinstance(length, torch.Tensor) else length.max()) == 0
