"""Weights are loaded whole and from safetensors, or not at all."""

from __future__ import annotations

from typing import Any


class Exact:
    """`from_pretrained` that refuses a checkpoint with tensors too many, too few or of another shape.

    `fresh` and `spare` are the beginnings of names that may be missing, and be there for nothing: those of heads.
    """

    # positions, and what is learned of them, are not kept in half precision
    _keep_in_fp32_modules_strict = ("encoding",)
    fresh: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()

    @classmethod
    def from_pretrained(cls, path: Any, *given: Any, output_loading_info: bool = False, **named: Any) -> Any:
        if named.get("use_safetensors") is False:
            raise ValueError("adapos loads weights from safetensors only, and use_safetensors=False asks for a pickle")
        named["use_safetensors"] = True
        others_too = named.pop("ignore_mismatched_sizes", False)
        named |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, found = super().from_pretrained(path, *given, **named)
        odd = {
            "lacks": sorted(name for name in found["missing_keys"] if not name.startswith(cls.fresh or "\0")),
            "has besides": sorted(name for name in found["unexpected_keys"] if not name.startswith(cls.spare or "\0")),
            "has in another shape": sorted(
                str(each[0])
                for each in found["mismatched_keys"]
                if not (others_too and str(each[0]).startswith(cls.fresh or "\0"))
            ),
        }
        said = [f"{what} {listed(names)}" for what, names in odd.items() if names]
        if said:
            raise ValueError(f"the weights in {path} are not those of its configuration: it {'; it '.join(said)}")
        return (model, found) if output_loading_info else model


def listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
