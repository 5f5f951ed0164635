"""A decoder that calls the five hooks and knows no encoding, its cache, and one attention layer by itself."""

from adapos.model.cache import Cache
from adapos.model.decay import parameter_groups
from adapos.model.decoder import Decoder
from adapos.model.layer import SelfAttention

__all__ = ["Cache", "Decoder", "SelfAttention", "parameter_groups"]
