"""A decoder of ours as a transformers model: loads, saves, generates and trains as they do."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from adapos.hf.cache import Grows, PositionsCache, taken
from adapos.hf.config import AdaposConfig
from adapos.hf.inputs import documents_and_ids
from adapos.hf.loading import Exact
from adapos.model import Decoder
from adapos.model.layer import placed
from adapos.registry import label

logger = logging.get_logger(__name__)


class AdaposPreTrainedModel(Exact, PreTrainedModel):
    config: AdaposConfig
    config_class = AdaposConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block",)
    _skip_keys_device_placement = ("past_key_values",)
    # attention is adapos's own, whichever of these is asked for
    _supports_sdpa = True
    _supports_attention_backend = True

    head: nn.Linear | None = None  # what is not the decoder's, which has drawn its own weights when it was made

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.head:
            init.normal_(module.weight, std=self.config.initializer_range)


class AdaposModel(AdaposPreTrainedModel):
    """Tokens to what a head reads."""

    spare = ("lm_head.", "score.")

    def __init__(self, config: AdaposConfig) -> None:
        super().__init__(config)
        self.decoder = Decoder(
            config.vocab_size,
            config.shape,
            config.positions(),
            hidden=config.intermediate_size,
            mlp=config.mlp,
            head=False,
            dropout=config.attention_dropout,
            backend=config.backend,
        )
        self.post_init()

    @property
    def gradient_checkpointing(self) -> bool:
        return self.decoder.recomputes

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.decoder.recomputes = on

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embedding, self.decoder.vocabulary = value, value.num_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        decoder, config = self.decoder, self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, one of the two")
        if input_ids is not None:
            decoder.check(input_ids, None, None)
        if use_cache is None:
            use_cache = config.use_cache and decoder.encoding.promises.cacheable and not self.training
        past: PositionsCache | None = None
        if use_cache or past_key_values is not None:
            past = taken(past_key_values, label(decoder.encoding))
        cache = None if past is None else past.tokens
        x = decoder.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length = x.shape[:2]
        # as for transformers' own models, which take ids that jump for several texts where nothing else is said
        packed = attention_mask is None and past_key_values is None
        doc, pos = documents_and_ids(attention_mask, position_ids, batch, length, cache, x.device, packed=packed)
        layout = placed((batch, length), pos, doc, cache, device=x.device, window=config.window)
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        seen: list[Tensor] | None = [] if output_hidden_states else None
        weights: list[Tensor] | None = [] if output_attentions else None
        if output_attentions:
            logger.warning_once(
                "output_attentions: attention runs through the backend 'reference', in memory quadratic in length"
            )
        x = decoder.through(x, layout, cache, seen, weights)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past,
            hidden_states=None if seen is None else (*seen, x),
            attentions=None if weights is None else tuple(weights),
        )


class AdaposForCausalLM(Grows, AdaposPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embedding.weight"}  # noqa: RUF012
    spare = ("score.",)

    def __init__(self, config: AdaposConfig) -> None:
        super().__init__(config)
        self.model = AdaposModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def head(self) -> nn.Linear:
        return self.lm_head

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **named: Any,
    ) -> CausalLMOutputWithPast:
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **named,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(found.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **named)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )


class AdaposForSequenceClassification(GenericForSequenceClassification, AdaposPreTrainedModel):
    fresh = ("score.",)
    spare = ("lm_head.",)

    @property
    def head(self) -> nn.Linear:
        return self.score
