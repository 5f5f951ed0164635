"""What will be run: a Plan, which expands into Trials, each named with a hash of all that its weights depend on."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from adapos import files, registry
from adapos.bench import pretrained, tasks
from adapos.bench.saved import saved_plan
from adapos.bench.task import Task
from adapos.encoding import Shape
from adapos.hints import meant

FORMAT = 1
# decoders by the number of their parameters, embeddings aside
SIZES = {
    "300k": Shape(layers=3, width=96, heads=6),
    "1m": Shape(layers=5, width=128, heads=4),
    "3m": Shape(layers=6, width=192, heads=6),
    "10m": Shape(layers=8, width=320, heads=10),
    "125m": Shape(layers=12, width=768, heads=12),
    "350m": Shape(layers=24, width=1024, heads=16),
}
PROTOCOLS = ("last", "sliding", "blocks")
DTYPES = ("float32", "bfloat16", "float16")
MOST = {"layers": 10_000, "width": 1_000_000, "heads": 100_000, "seeds": 10_000}
LARGEST = 2**62  # of a seed or a length


@dataclass(frozen=True)
class Trial:
    """One model to train: everything that its weights depend on, and nothing else."""

    encoding: str
    seed: int
    task: str
    train_length: int
    steps: int
    batch: int  # texts a step, over all processes
    rate: float
    warm_up: float  # share of the steps in which the rate rises
    floor: float  # of the rate at the end, beside its peak
    decay: float  # of weights, but for those of the encoding, norms and biases
    clip: float
    dropout: float
    dtype: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    model: str = ""  # that is pretrained, and what `encoding` is done to

    @property
    def shape(self) -> Shape:
        return Shape(layers=self.layers, width=self.width, heads=self.heads, kv_heads=self.kv_heads)

    @property
    def name(self) -> str:
        """A folder's name: the encoding to be read, the hash to tell apart."""
        words = re.sub(r"[^a-z0-9]+", "-", self.encoding.lower()).strip("-")
        text = json.dumps({name: x for name, x in asdict(self).items() if name != "model" or x}, sort_keys=True)
        return f"{words[:40]}-{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Plan:
    """A comparison. Encodings, seeds and lengths may be added later; all else is the same for every trial."""

    encodings: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    task: str = "text"
    train_length: int = 128
    seeds: tuple[int, ...] = (0,)
    size: str = "1m"
    layers: int = 0  # of the size, unless given
    width: int = 0
    heads: int = 0
    kv_heads: int = 0
    steps: int = 1000
    batch: int = 32
    rate: float = 1.5e-3
    warm_up: float = 0.05
    floor: float = 0.1
    decay: float = 0.1
    clip: float = 1.0
    dropout: float = 0.0
    dtype: str = "float32"
    protocol: str = "last"
    scored: int = 0  # tokens of each text; 0: 256, or half of the shortest length
    stride: int = 0  # of the sliding window; 0: half of the length
    examples: int = 64  # texts that are read at each length, or exams at each place of a grid
    baseline: str | None = None
    model: str = ""  # a pretrained one, by name or path, that encodings are put into
    significance: float | None = None  # the greatest p of a difference that counts; None: 0.05
    command: str = ""
    checksum: str = ""  # of the data, once it has been looked at

    def __post_init__(self) -> None:
        for name in ("encodings", "lengths", "seeds"):  # lists, where they come from JSON
            if not isinstance(getattr(self, name), list | tuple):
                raise ValueError(f"plan: {name} must be a list, not {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("task", "size", "protocol", "dtype", "baseline"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (name == "baseline" and value is None):
                raise ValueError(f"plan: {name} must be a word, not {value!r}")
        object.__setattr__(self, "task", tasks.normal(self.task))
        registry.one_of("plan", "size", self.size, tuple(SIZES))
        registry.one_of("plan", "protocol", self.protocol, PROTOCOLS)
        registry.one_of("plan", "dtype", self.dtype, DTYPES)
        for name in ("train_length", "steps", "batch", "examples"):
            registry.at_least("plan", name, getattr(self, name), 1)
        for name in ("layers", "width", "heads", "kv_heads", "scored", "stride"):
            registry.at_least("plan", name, getattr(self, name), 0)
        for name in ("rate", "clip"):
            registry.at_least("plan", name, getattr(self, name), 0.0, whole=False)
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"plan: {name} must be above 0 and finite, not {getattr(self, name)!r}")
        for name in ("warm_up", "floor", "decay", "dropout", "significance"):
            value = getattr(self, name)
            if value is None and name == "significance":
                continue
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"plan: {name} must lie from 0 to 1, not {value!r}")
        if self.dropout == 1:
            raise ValueError("plan: dropout must be below 1, or nothing is left of attention")
        for name, most in MOST.items():
            given = getattr(self, name)
            if (len(given) if name == "seeds" else given) > most:
                raise ValueError(f"plan: {name} must be at most {most:,}")
        # one name for an encoding, however it was written
        shape, named = self.shape, {}
        for name in ("layers", "width", "heads", "kv_heads"):
            object.__setattr__(self, name, getattr(shape, name))
        for spec in (*self.encodings, *(() if self.baseline is None else (self.baseline,))):
            named[spec] = self.named(spec, shape)
        object.__setattr__(self, "encodings", tuple(named[spec] for spec in self.encodings))
        if self.baseline is not None:
            object.__setattr__(self, "baseline", named[self.baseline])
        if not self.encodings:
            raise ValueError("plan: encodings must name at least one, such as 'rope, kerple + dape'")
        if not self.seeds:
            raise ValueError("plan: seeds must name at least one, such as 0")
        for name in ("encodings", "seeds"):
            counts = Counter(getattr(self, name))
            twice = next((one for one in counts if counts[one] > 1), None)
            if twice is not None:
                raise ValueError(f"plan: {name}: {twice!r} appears twice; name it once")
        for name in ("lengths", "seeds"):
            for value in getattr(self, name):
                registry.at_least("plan", name, value, 0 if name == "seeds" else 1)
                if value >= LARGEST:
                    raise ValueError(f"plan: {name} must lie below 2^62, and one is {value}")
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"plan: lengths must rise, and {', '.join(map(str, self.lengths))} do not")
        if self.protocol == "sliding" and self.lengths and self.stride > self.lengths[0]:
            raise ValueError(
                f"plan: stride ({self.stride}) must not be more than the shortest length, {self.lengths[0]}, or tokens "
                "would be passed over"
            )
        protocols = tasks.read(self.task)[0].protocols
        if protocols and self.protocol == "blocks" and any(self.lengths[-1] % length for length in self.lengths):
            raise ValueError(
                f"plan: blocks score the same tokens at every length only where each divides the longest, "
                f"{self.lengths[-1]}, and {', '.join(map(str, self.lengths))} do not; choose others, or protocol last"
            )
        if self.scored and self.lengths and self.scored > self.lengths[0]:
            raise ValueError(
                f"plan: scored ({self.scored}) must not be more than the shortest length, {self.lengths[0]}: the same "
                "tokens are scored at every length"
            )

    def named(self, spec: str, shape: Shape) -> str:
        """An encoding, or what is done to a pretrained model, in its own words."""
        if not self.model:
            return registry.spec(registry.build(spec, shape))
        return str(pretrained.method(spec, pretrained.configuration(self.model)))

    @property
    def shape(self) -> Shape:
        if self.model:
            return pretrained.shape_of(self.model)
        named = SIZES[self.size]
        heads = self.heads or named.heads
        return Shape(
            layers=self.layers or named.layers,
            width=self.width or named.width,
            heads=heads,
            kv_heads=self.kv_heads or (named.kv_heads if heads == named.heads else heads),
        )

    @property
    def targets(self) -> int:
        """How many tokens of a text are scored."""
        return self.scored or max(1, min(256, min(self.lengths, default=512) // 2))

    @property
    def trials(self) -> list[Trial]:
        """Seed by seed, so that an unfinished comparison can already be read."""
        names = {each.name for each in fields(Trial)} - {"encoding", "seed"}
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        return [Trial(encoding=encoding, seed=seed, **shared) for seed in self.seeds for encoding in self.encodings]

    def checked(self) -> Plan:
        """With the checksum of its data; or what is missing, before anything is run or written."""
        return replace(self, checksum=self.check().checksum)

    def check(self) -> Task:
        """The task, with the data it needs."""
        task = tasks.build(self.task)
        task.check(self.train_length, self.lengths)
        if self.model:
            return task
        for spec in self.encodings:
            promises = registry.build(spec, self.shape).promises
            if promises.causal_only and not task.causal:
                raise ValueError(
                    f"{self.task} is read in both directions, and {spec!r} is for causal attention only: "
                    f"{promises.because}; leave it out, or give the task causal=True"
                )
            if promises.longest is not None and task.tokens_at(self.train_length) > promises.longest:
                raise ValueError(
                    f"{spec!r} takes ids below {promises.longest}, and texts of length {self.train_length} have "
                    f"{task.tokens_at(self.train_length)} tokens; train on shorter ones"
                )
        return task

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


# what may differ between a plan and the one in its folder, which then holds both
ADDED = ("encodings", "seeds", "lengths")
FREE = (*ADDED, "command", "checksum", "baseline", "significance")


def settle(plan: Plan, folder: Path) -> Plan:
    """The plan of a folder, saved before anything runs."""
    with files.locked(folder / "lock"):
        plan = merged(plan, folder)
        files.write(folder / "plan.json", plan.to_json())
        return plan


def merged(plan: Plan, folder: Path) -> Plan:
    """This plan, or this one added to the one that the folder holds."""
    path = folder / "plan.json"
    if path.exists():
        there = load(path)
        held, asked = asdict(there), asdict(plan)
        if held["checksum"] != asked["checksum"]:
            raise ValueError(
                f"the data of {plan.task} is not what it was when {folder} was begun; choose another folder"
            )
        differ = [name for name in held if name not in FREE and held[name] != asked[name]]
        if differ:
            words = ", ".join(f"{name} is {held[name]!r} there and {asked[name]!r} here" for name in differ)
            raise ValueError(f"{folder} holds another plan: {words}; choose another folder, or the same settings")
        added: dict[str, Any] = {name: tuple(dict.fromkeys([*held[name], *asked[name]])) for name in ADDED}
        added["lengths"] = tuple(sorted(added["lengths"]))
        added["baseline"] = plan.baseline or there.baseline
        added["significance"] = there.significance if plan.significance is None else plan.significance
        plan = replace(plan, **added)
        if tasks.read(plan.task)[0].protocols and there.lengths and plan.targets != there.targets:
            raise ValueError(
                f"{folder} scores the last {there.targets} tokens of each text, and with lengths from "
                f"{plan.lengths[0]} on it would be {plan.targets}; choose another folder"
            )
    if plan.baseline is not None and plan.baseline not in plan.encodings:
        listed = ", ".join(repr(spec) for spec in plan.encodings)
        raise ValueError(f"plan: baseline ({plan.baseline!r}) must be one of the encodings, {listed}")
    return plan


def load(path: Path) -> Plan:
    return from_mapping(saved_plan(path), str(path))


def from_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML, YAML or JSON file, for `Plan(**settings)`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"the plan {path} cannot be read: {problem}") from None
    try:
        if path.suffix == ".toml":
            import tomllib

            held: Any = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            try:
                import yaml  # type: ignore[import-untyped]
            except ImportError:
                raise ValueError("plans in YAML need PyYAML: pip install pyyaml; or write the plan in TOML") from None
            try:
                held = yaml.safe_load(text)
            except yaml.YAMLError as problem:
                raise ValueError(str(problem)) from None
        elif path.suffix == ".json":
            held = json.loads(text)
        else:
            raise ValueError("its name must end in .toml, .yaml or .json")
    except ValueError as problem:
        raise ValueError(f"the plan {path} does not parse: {problem}") from None
    if not isinstance(held, Mapping):
        raise ValueError(f"the plan {path} must be settings by name, such as steps: 1000")
    # a plan.json holds what a run has made of it, too
    held = {str(name).replace("-", "_"): value for name, value in held.items()}
    held = {name: value for name, value in held.items() if name not in ("format", "command", "checksum")}
    check_names({name: value for name, value in held.items() if name not in OF_TASK}, str(path))
    return held


def from_mapping(held: Any, where: str) -> Plan:
    if not isinstance(held, Mapping) or "encodings" not in held:
        raise ValueError(f"{where} is damaged: it must hold the settings of a plan, encodings among them")
    held = dict(held)
    if held.pop("format", FORMAT) != FORMAT:
        raise ValueError(f"{where} is of another format than {FORMAT}, which this version of adapos reads")
    check_names(held, where)
    return Plan(**held)


OF_TASK = ("data", "field", "tokenizer", "documents", "limit")  # parameters of text that a plan's file may name


def check_names(held: Mapping[str, Any], where: str) -> None:
    known = [each.name for each in fields(Plan)]
    for name in held:
        if name not in known:
            hint = meant(str(name), known) or ";"
            raise ValueError(f"{where}: a plan has no setting {name!r}{hint} it knows {', '.join(known)}")
