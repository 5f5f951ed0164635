"""lm-evaluation-harness with adapos's models known to transformers: `python -m adapos.hf.harness --model hf ...`."""

from contextlib import suppress

from lm_eval.__main__ import cli_evaluate

import adapos.hf

with suppress(ImportError):  # adapters too, where there is PEFT
    import adapos.hf.peft  # noqa: F401

if __name__ == "__main__":
    cli_evaluate()
