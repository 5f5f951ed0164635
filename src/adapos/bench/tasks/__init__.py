"""Tasks by name: `build("addition(grid=5)")`, one small file each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from adapos.bench.task import Task
from adapos.hints import meant
from adapos.registry import check_known, parse

TASKS: dict[str, type[Task]] = {}

T = TypeVar("T", bound=type[Task])


def register(name: str) -> Callable[[T], T]:
    def put(cls: T) -> T:
        cls.name = name
        TASKS[name] = cls
        return cls

    return put


def parameters(cls: type[Task]) -> dict[str, Any]:
    """The parameters of a task and their defaults."""
    return {p.name: p.default for p in inspect.signature(cls).parameters.values()}


def find(name: str) -> type[Task]:
    if name not in TASKS:
        raise ValueError(f"no task is called {name!r}{meant(name, TASKS) or ';'} `adapos tasks` lists all")
    return TASKS[name]


def read(spec: str) -> tuple[type[Task], dict[str, Any]]:
    """The class and the parameters that a spec such as `"addition(grid=5)"` names. Nothing is built."""
    name, bracket, rest = (spec if isinstance(spec, str) else "").partition("(")
    name = name.strip()
    cls = find(name)
    (_, given), *more = parse("task" + bracket + rest)
    if more:
        raise ValueError(f"a task is one name with its parameters, such as 'addition(grid=5)', not {spec!r}")
    check_known(name, given, parameters(cls))
    return cls, given


def build(spec: str) -> Task:
    cls, given = read(spec)
    return cls(**given)


def normal(spec: str, **more: Any) -> str:
    """The shortest spec of the same task, with further parameters."""
    cls, given = read(spec)
    for parameter in more:
        if parameter not in parameters(cls):
            raise ValueError(f"{cls.name} has no parameter {parameter!r}; leave it out")
    given |= more
    known = parameters(cls).items()
    kept = [f"{name}={given[name]!r}" for name, default in known if given.get(name, default) != default]
    return f"{cls.name}({', '.join(kept)})" if kept else cls.name


# each registers its tasks
from adapos.bench.tasks import addition, chomsky, groups, retrieval, sequences, text  # noqa: E402, F401
