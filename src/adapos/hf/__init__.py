"""adapos and Hugging Face's transformers. To import this makes its models known to the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from adapos.hf import attention, families
from adapos.hf.cache import PositionsCache
from adapos.hf.config import AdaposConfig
from adapos.hf.convert import convert
from adapos.hf.model import AdaposForCausalLM, AdaposForSequenceClassification, AdaposModel
from adapos.hf.pretrained import pretrained, source
from adapos.model import parameter_groups

__all__ = [
    "AdaposConfig",
    "AdaposForCausalLM",
    "AdaposForSequenceClassification",
    "AdaposModel",
    "PositionsCache",
    "convert",
    "parameter_groups",
    "pretrained",
    "source",
]

AutoConfig.register("adapos", AdaposConfig, exist_ok=True)
AutoModel.register(AdaposConfig, AdaposModel, exist_ok=True)
AutoModelForCausalLM.register(AdaposConfig, AdaposForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(AdaposConfig, AdaposForSequenceClassification, exist_ok=True)
attention.offer()
families.offer()
