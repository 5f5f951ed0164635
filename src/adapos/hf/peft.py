"""Positions as an adapter: a PEFT method that trains an encoding inside a pretrained model, and with it norms,
embeddings or low-rank updates if they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.lora import LoraConfig, LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import PeftType, register_peft_method
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS
from torch import Tensor, nn

from adapos.encoding import PositionalEncoding
from adapos.hf.convert import checked
from adapos.hf.families import NAMES, family
from adapos.hf.loading import listed
from adapos.hf.travel import Positions, fitting, place, remove
from adapos.registry import parse

METHOD = "adapos"
PREFIX = "lora_"  # of the names of all that is trained: a method has one, and low-rank updates have this
ROTARY = "rotary_emb"
NORMS = ("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm")
EMBEDDINGS = ("embed_tokens", "lm_head")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def _known() -> PeftType:
    """PEFT lists its methods in an enumeration, and has no way to add one but this."""
    name = METHOD.upper()
    if name not in PeftType.__members__:
        member = str.__new__(PeftType, name)
        member._name_, member._value_ = name, name
        PeftType._member_map_[name] = PeftType._value2member_map_[name] = member
        PeftType._member_names_.append(name)
    return PeftType[name]


KIND = _known()


@dataclass
class AdaposPeftConfig(LoraConfig):
    """`encoding` is put into the model and trained; so are its norms or embeddings, if they are asked for.

    With `r` above 0, low-rank updates (LoRA) are trained beside it, on the projections of attention unless
    `target_modules` names others; all parameters of LoraConfig say how.
    """

    encoding: str = "tape"
    train_norms: bool = False
    train_embeddings: bool = False
    r: int = 0
    family: str | None = None  # of the model that it was trained on; written by the adapter itself

    def __post_init__(self) -> None:
        parse(self.encoding)
        if self.target_modules and not self.r and {*self.target_modules} != {ROTARY}:
            raise ValueError(
                f"target_modules ({self.target_modules}) are for low-rank updates; give their rank too, such as r=8"
            )
        if self.layer_replication is not None:
            raise ValueError("layer_replication makes a model of more layers, which an encoding cannot be put into")
        saved = {*(self.modules_to_save or ())}
        saved |= {*(NORMS if self.train_norms else ())} | {*(EMBEDDINGS if self.train_embeddings else ())}
        self.modules_to_save = sorted(saved) or None
        # the tuner finds the place of an encoding by itself, and PEFT wants something to be named
        self.target_modules = (self.target_modules or {*PROJECTIONS}) if self.r else {ROTARY}
        super().__post_init__()
        self.peft_type = KIND


class AdaposLayer(Positions, BaseTunerLayer):
    """The encodings of all adapters, of which one is at work."""

    adapter_layer_names = ("lora_encoding",)
    kept = "base_layer"

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__(rotary)
        self.lora_encoding = nn.ModuleDict()
        self.merged_adapters: list[str] = []

    @property
    def encoding(self) -> PositionalEncoding | None:
        if self.disable_adapters:
            return None
        active = [name for name in self.active_adapters if name in self.lora_encoding]
        if len(active) > 1:
            raise ValueError(
                f"the adapters {', '.join(active)} each bring an encoding, and a model has one; activate one"
            )
        encoding: Any = self.lora_encoding[active[0]] if active else None
        return encoding

    def enable_adapters(self, enabled: bool) -> None:
        """Without them the model attends as it did."""
        super().enable_adapters(enabled)
        self.attends(adapos=enabled)


class AdaposTuner(LoraModel):
    """Puts encodings where PEFT finds a rotary embedding, and low-rank updates elsewhere."""

    prefix = PREFIX
    tuner_layer_cls = BaseTunerLayer

    def inject_adapter(self, model: Any, adapter_name: str, *given: Any, **named: Any) -> None:
        """What is refused is refused before anything is changed."""
        config: Any = self.peft_config[adapter_name]
        body = model.base_model
        held = body.rotary_emb.lora_encoding if isinstance(getattr(body, ROTARY, None), AdaposLayer) else None
        if held is None:
            checked(model)
        kind = model.config.model_type
        if config.family not in (None, kind):
            raise ValueError(
                f"the adapter is of another model, a {config.family}, and this is a {kind}; load it onto "
                f"{config.base_model_name_or_path or 'the model that it was trained on'}"
            )
        if "." in adapter_name:
            raise ValueError(f"the name of an adapter must be without dots, and is {adapter_name!r}")
        for encoding in (fitting(body, config.encoding), *(held or {}).values()):
            names = {part for name, _ in encoding.named_parameters() for part in name.split(".")}
            if clash := sorted(names & {adapter_name, *(held or ())}):
                raise ValueError(f"an adapter cannot be called {clash[0]!r}, as a parameter is; choose another name")
        config.family = kind
        targets = config.target_modules
        trained = {*(() if isinstance(targets, str) else targets), *(config.modules_to_save or ())}
        # a head that is the embedding stays so
        config.ensure_weight_tying = bool(trained & {*EMBEDDINGS} and self._get_module_names_tied_with_embedding())
        super().inject_adapter(model, adapter_name, *given, **named)

    @staticmethod
    def _check_target_module_exists(config: Any, key: str) -> Any:
        """Which layers are named, or excluded, is said of low-rank updates."""
        found: Any = LoraModel._check_target_module_exists(config, key)
        return key.rpartition(".")[2] == ROTARY or found

    def _create_and_replace(
        self, config: Any, adapter_name: str, target: Any, target_name: str, parent: Any, *rest: Any, **named: Any
    ) -> None:
        if target_name != ROTARY:
            super()._create_and_replace(config, adapter_name, target, target_name, parent, *rest, **named)
            return
        if not isinstance(target, AdaposLayer):
            target = AdaposLayer(target)
            place(parent, target)
            parent.__class__ = family(config.family).new_model
        target.lora_encoding[adapter_name] = fitting(parent, config.encoding)
        target.set_adapter(self.active_adapters)

    def _enable_peft_forward_hooks(self, *given: Any, **named: Any) -> Any:
        if named.get("adapter_names") is not None:
            raise ValueError("a batch has one encoding, and adapter_names gives its rows several; part the batch")
        return super()._enable_peft_forward_hooks(*given, **named)

    def add_weighted_adapter(self, *given: Any, **named: Any) -> None:
        raise ValueError("encodings have no weighted sum; activate one adapter with set_adapter")

    def _check_merge_allowed(self) -> None:
        raise ValueError(
            "an encoding cannot be merged into the weights of another; save the adapter, or convert the model with "
            "adapos.hf.convert"
        )

    def _unload_and_optionally_merge(self, merge: bool = True, *given: Any, **named: Any) -> Any:
        if merge:
            self._check_merge_allowed()
        body = self.model.base_model
        remove(body)
        body.__class__ = type(body).__bases__[1]
        return super()._unload_and_optionally_merge(merge, *given, **named)

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: Any, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """For the model's own names; an adapter of another model is refused here, for torch would say it in pages."""
        found = super()._remap_adapter_state_dict_for_load(model, config, adapter_name, state_dict)
        there = dict(model.named_parameters(remove_duplicate=False))
        wanted = {name for name in there if f".lora_encoding.{adapter_name}." in name}
        odd = sorted(name for name, x in found.items() if name not in there or there[name].shape != x.shape)
        odd += sorted(wanted - found.keys())
        if odd:
            raise ValueError(
                f"the adapter is of another model: {listed(odd)} {'is' if len(odd) == 1 else 'are'} missing or of "
                f"another shape; load it onto {config.base_model_name_or_path or 'the model that it was trained on'}"
            )
        return found

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        before, found, after = key.partition(f".lora_encoding.{adapter_name}.")
        return f"{before}.lora_encoding.{after}" if found else super()._remove_adapter_name_from_key(key, adapter_name)


def offer() -> None:
    """Make the method known to PEFT, and to its LoRA what converted models are made of."""
    for name in NAMES:
        TARGETS.setdefault(f"adapos_{name}", TARGETS[name])
    if KIND not in PEFT_TYPE_TO_TUNER_MAPPING:
        register_peft_method(name=METHOD, config_cls=AdaposPeftConfig, model_cls=AdaposTuner, prefix=PREFIX)


offer()
