"""Encodings by name: `build("kerple + dape(kernel=3)", shape)` and back with `spec(encoding)`."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from adapos.encoding import Compose, Layered, PositionalEncoding, Shape
from adapos.hints import meant

REGISTRY: dict[str, type[PositionalEncoding]] = {}
ALIASES: dict[str, str] = {}

E = TypeVar("E", bound=type[PositionalEncoding])


def register(name: str, *aliases: str) -> Callable[[E], E]:
    """Make an encoding buildable by name. Its constructor takes a Shape, then keyword parameters with defaults."""

    def put(cls: E) -> E:
        if not (isinstance(cls, type) and issubclass(cls, PositionalEncoding)):
            raise ValueError(f"@register({name!r}) takes a subclass of PositionalEncoding, not {cls!r}")
        for word in (name, *aliases):
            if not word.isidentifier():
                raise ValueError(f"an encoding's name must be a word of letters, digits and _, not {word!r}")
            taken = REGISTRY.get(ALIASES.get(word, word))
            # the same class again is a module that was reloaded
            if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(
                    f"the name {word!r} is taken by {taken.__module__}.{taken.__qualname__}; choose another"
                )
        cls.name = name
        for parameter in list(inspect.signature(cls).parameters.values())[1:]:
            if parameter.default is parameter.empty:
                raise ValueError(
                    f"{name}: parameter {parameter.name!r} needs a default, so that the name alone builds it"
                )
        REGISTRY[name] = cls
        ALIASES.update(dict.fromkeys(aliases, name))
        return cls

    return put


def names() -> list[str]:
    return list(REGISTRY)


def parameters(cls: type[PositionalEncoding]) -> dict[str, Any]:
    """The parameters of an encoding and their defaults."""
    return {p.name: p.default for p in list(inspect.signature(cls).parameters.values())[1:]}


def build(spec: str, shape: Shape) -> PositionalEncoding:
    """The encoding that a spec such as `"rope(base=500000.0) + dape(kernel=3)"` names."""
    if not isinstance(shape, Shape):
        raise ValueError(f"build needs an adapos.Shape as its second argument, not {type(shape).__name__}")
    parts = [_part(name, given, shape) for name, given in parse(spec)]
    if len(parts) == 1:
        parts[0].beside([])
        return parts[0]
    return Compose(parts)


def build_layers(specs: Sequence[str], shape: Shape) -> PositionalEncoding:
    """An encoding for each layer; those of the same spec are one."""
    if len(specs) != shape.layers:
        raise ValueError(f"there are {shape.layers} layers and encodings for {len(specs)}; name one for each")
    distinct = list(dict.fromkeys(specs))
    return Layered([build(each, shape) for each in distinct], [distinct.index(each) for each in specs])


def spec(encoding: PositionalEncoding) -> str:
    """The inverse of build: the shortest spec that makes such an encoding."""
    if isinstance(encoding, Compose):
        return " + ".join(spec(part) for part in encoding)
    if REGISTRY.get(encoding.name) is not type(encoding):
        raise ValueError(f'{type(encoding).__name__} has no spec: put @adapos.register("its_name") above the class')
    given = []
    for name, default in parameters(type(encoding)).items():
        if not hasattr(encoding, name):
            raise ValueError(f"{encoding.name} must keep its parameter {name!r} as an attribute of the same name")
        value = getattr(encoding, name)
        if value != default:
            given.append(f"{name}={value!r}")
    return f"{encoding.name}({', '.join(given)})" if given else encoding.name


def label(encoding: PositionalEncoding) -> str:
    """What to call an encoding in a sentence: its spec, or its class where it has none."""
    if isinstance(encoding, Layered):
        return ", ".join(label(part) for part in encoding)
    named = all(
        REGISTRY.get(part.name) is type(part) for part in (encoding if isinstance(encoding, Compose) else [encoding])
    )
    return spec(encoding) if named else type(encoding).__name__


def parse(spec: str) -> list[tuple[str, dict[str, Any]]]:
    """The parts of a spec: names with their given parameters. Nothing is executed."""
    if not isinstance(spec, str) or not spec.strip():
        raise ValueError(f"a spec names encodings, such as 'kerple + dape(kernel=3)'; {spec!r} names none")
    brief = spec if len(spec) <= 80 else spec[:77] + "..."
    try:
        if "#" in spec:  # a comment would be dropped in silence
            raise SyntaxError
        tree = ast.parse(" ".join(spec.split()), mode="eval").body
        return [_read(node, brief) for node in _sum(tree)]
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"the spec {brief!r} does not parse; write it like 'kerple + dape(kernel=3)'") from None


def written(parts: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The inverse of parse."""
    return " + ".join(
        f"{name}({', '.join(f'{parameter}={value!r}' for parameter, value in given.items())})" if given else name
        for name, given in parts
    )


def _sum(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_sum(node.left), *_sum(node.right)]
    return [node]


def _read(node: ast.expr, spec: str) -> tuple[str, dict[str, Any]]:
    arguments: list[ast.keyword] = []
    if isinstance(node, ast.Call):
        if node.args:
            text = ast.unparse(node)
            raise ValueError(f"parameters are given by name, as in 'dape(kernel=3)'; {text!r} gives one without")
        arguments = node.keywords
        node = node.func
    if not isinstance(node, ast.Name):
        text = ast.unparse(node)
        raise ValueError(f"the spec {spec!r} must be names joined by +, as in 'kerple + dape'; {text!r} is no name")
    given: dict[str, Any] = {}
    for argument in arguments:
        if argument.arg is None:
            raise ValueError(
                f"parameters are given by name, as in 'dape(kernel=3)', not by {ast.unparse(argument.value)}"
            )
        if argument.arg in given:
            raise ValueError(f"{node.id}: {argument.arg} is given twice; give it once")
        try:
            value = given[argument.arg] = ast.literal_eval(argument.value)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{node.id}: {argument.arg} must be a plain value (a number, a quoted word, True, False or None), "
                f"not {ast.unparse(argument.value)}"
            ) from None
    return node.id, given


def _part(name: str, given: dict[str, Any], shape: Shape) -> PositionalEncoding:
    cls = find(name)
    check_known(cls.name, given, parameters(cls))
    return cls(shape, **given)


def check_known(name: str, given: Iterable[str], known: Mapping[str, Any]) -> None:
    """See that parameters that are given by name are among those that there are."""
    for parameter in given:
        if parameter not in known:
            listed = ", ".join(f"{key}={value!r}" for key, value in known.items()) or "none"
            hint = meant(parameter, known) or ";"
            raise ValueError(f"{name} has no parameter {parameter!r}{hint} it knows: {listed}")


def find(name: str) -> type[PositionalEncoding]:
    cls = REGISTRY.get(ALIASES.get(name, name))
    if cls is None:
        hint = meant(name, [*REGISTRY, *ALIASES]) or ";"
        raise ValueError(f"no encoding is called {name!r}{hint} `adapos encodings` lists all")
    return cls


def one_of(encoding: str, parameter: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{encoding}: {parameter} must be one of {listed}, not {value!r}{meant(str(value), choices)}")


def at_least(encoding: str, parameter: str, value: Any, least: float, *, whole: bool = True) -> None:
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not value >= least:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{encoding}: {parameter} must be {kind} of at least {least}, not {value!r}")


def true_or_false(encoding: str, parameter: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{encoding}: {parameter} must be True or False, not {value!r}")
