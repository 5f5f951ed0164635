"""Executes on a CPU the PTX that Triton makes for NVIDIA's GPUs, to see what compiled code computes and touches.

All threads of all blocks that are at the same instruction execute it at once, a register being an array with a number
for each of them; blocks that branch another way than others go on by themselves. What is checked on the way:

    global memory    every byte is of an element of the tensor that its address was reckoned from, nothing is taken for
                     aligned that is not, and no two blocks write, or write and read, the same element
    shared memory    nothing is read that nobody wrote, or that another warp wrote since the last barrier, and nothing
                     is written that another warp read since; copies in the background arrive when they are waited for
    registers        nothing is read before it is written; what a guard left unwritten is NaN
    branches         all threads of a block take the same

Tensor cores take products of TF32 as the hardware does, without the last 13 bits of each number, and round once after
they have added in float64. ex2, division and the like are right to the last digit or the one before.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Kind: TypeAlias = np.dtype[Any]
WARP = 32
LINE = 16  # bytes of one access at most
SPACE = 32  # bits of an address within a tensor
POISON = 0x7FFFDEAD7FFFDEAD  # NaN
MANY = 2**30  # blocks
# who wrote or read a byte of shared memory: nobody, somebody before the last barrier, a copy in the background, several
# warps, or the warp of the number that is left
NOBODY, SETTLED, COPIED, FIRST_WARP, SEVERAL = 0, 1, 2, 3, 255
KINDS = {
    **{f"{name}{8 * size}": np.dtype(f"{kind}{size}") for name, kind in ("bu", "uu", "si") for size in (1, 2, 4, 8)},
    **{f"f{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "pred": np.dtype(bool),
}


class Fault(Exception):
    """Something that compiled code must not do."""


@dataclass(frozen=True)
class Place:
    base: str
    offset: int


Operand: TypeAlias = str | int | Place | tuple["Operand", ...]


@dataclass(frozen=True)
class Instruction:
    line: int
    source: str  # where Triton says that it comes from
    guard: str | None
    negated: bool
    name: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]

    @cached_property
    def code(self) -> str:
        return ".".join((self.name, *self.parts))

    @cached_property
    def kind(self) -> Kind:
        """The last that it names."""
        return next((KINDS[part] for part in reversed(self.parts) if part in KINDS), KINDS["b32"])


@dataclass(frozen=True)
class Program:
    instructions: list[Instruction]
    labels: dict[str, int]
    parameters: list[str]
    registers: dict[str, Kind]  # by the letters of their names
    threads: int


@cache
def parsed(text: str) -> Program:
    parameters = re.findall(r"\.param\s[^,)]*?(\w+_param_\d+)", text)
    registers = {name: KINDS[kind] for kind, name in re.findall(r"\.reg \.(\w+)\s+(%[a-z]+)<", text)}
    (threads,) = (int(size) for size in re.findall(r"\.reqntid (\d+)", text))
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    body, source = False, ""
    for number, whole in enumerate(text.splitlines(), 1):
        code, _, comment = whole.partition("//")
        line = code.strip()
        body = body or line == "{"
        if line.startswith(".loc"):
            source = comment.strip()
        elif found := re.fullmatch(r"(\$\w+):", line):
            labels[found[1]] = len(instructions)
        elif body and (found := re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z]\w*)((?:[.:]+\w+)*)\s*(.*?);", line)):
            negated, guard, name, parts, rest = found.groups()
            split = tuple(part for part in re.split(r"[.:]+", parts) if part)
            instructions.append(Instruction(number, source, guard, negated == "!", name, split, operands(rest)))
        elif body and line == "}":
            break
        elif body and line and line[0] not in ".{)":
            raise NotImplementedError(f"line {number}: {line}")
    return Program(instructions, labels, parameters, registers, threads)


def operands(text: str) -> tuple[Operand, ...]:
    return tuple(operand(part.strip()) for part in re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,{}\[\]]+", text) if part.strip())


def operand(text: str) -> Operand:
    if text[0] == "{":
        return operands(text[1:-1])
    if text[0] == "[":
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        return Place(base, int(offset or "0", 0))
    if re.fullmatch(r"0[fd][0-9A-Fa-f]+", text):
        return int(text[2:], 16)
    return int(text.rstrip("U"), 0) if re.fullmatch(r"-?\d\w*", text) else text


def several(x: Operand) -> tuple[Operand, ...]:
    return x if isinstance(x, tuple) else (x,)


def unsigned(kind: Kind) -> Kind:
    return kind if kind.kind == "b" else np.dtype(f"u{kind.itemsize}")


class Region:
    """The memory of a tensor, and which blocks wrote and read its elements."""

    def __init__(self, name: str, x: Tensor) -> None:
        self.name, self.size = name, x.element_size()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        self.before = x.data_ptr() % LINE
        length = -(-(self.before + extent * self.size) // LINE) * LINE if x.numel() else 0
        self.held = x.untyped_storage()  # or it may be freed
        self.bytes: Array = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(x.data_ptr() - self.before))
        self.there = np.zeros(length // self.size, bool)
        if x.numel():
            begin = self.there[self.before // self.size :]
            np.lib.stride_tricks.as_strided(begin, tuple(x.shape), x.stride())[...] = True
        self.writer, self.reader = (np.full(length // self.size, -1, np.int32) for _ in range(2))

    def elements(self, offset: Array, width: int) -> Array:
        """(n, .): the elements of so many bytes from each offset on."""
        found = (offset // self.size)[:, None] + np.arange(max(1, width // self.size))
        if width % self.size or (found >= len(self.there)).any():
            raise Fault(f"past the end of {self.name}")
        if (offset % width).any():
            raise Fault(f"{width} bytes of {self.name} that are not aligned")
        if not self.there[found].all():
            raise Fault(f"beside the elements of {self.name}")
        return found

    def read(self, offset: Array, width: int, block: Array) -> Array:
        """(n, width): bytes."""
        found, me = self.elements(offset, width), block[:, None]
        writer, reader = self.writer[found], self.reader[found]
        if ((writer >= 0) & (writer != me)).any():
            raise Fault(f"{self.name} is read where another block has written")
        self.reader[found] = np.where((reader < 0) | (reader == me), me, MANY)
        self.reader[found[self.reader[found] != me]] = MANY
        return self.bytes.reshape(-1, width)[offset // width]

    def claim(self, offset: Array, width: int, block: Array, *, atomic: bool = False) -> None:
        """To be written."""
        found, me = self.elements(offset, width), block[:, None]
        before = [(who >= 0) & (who != me) for who in (self.writer[found], self.reader[found])]
        self.writer[found] = me
        if not atomic and (np.any(before) or (self.writer[found] != me).any()):
            raise Fault(f"{self.name} is written where another block reads or writes")

    def write(self, offset: Array, rows: Array, block: Array) -> None:
        width = rows.shape[1]
        self.claim(offset, width, block)
        whole = self.bytes.reshape(-1, width)
        whole[offset // width] = rows
        if (whole[offset // width] != rows).any():
            raise Fault(f"two threads write other numbers to an element of {self.name}")


class Shared:
    """The shared memory of some blocks, and which warps wrote and read its bytes."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = -(-size // LINE) * LINE
        self.bytes, self.writer, self.reader = (np.zeros(blocks * self.size, np.uint8) for _ in range(3))

    def part(self, blocks: Array) -> Shared:
        found = Shared(0, self.size)
        for name in ("bytes", "writer", "reader"):
            setattr(found, name, getattr(self, name).reshape(-1, self.size)[blocks].ravel())
        return found

    def barrier(self) -> None:
        np.copyto(self.writer, SETTLED, where=self.writer >= FIRST_WARP)
        self.reader[:] = NOBODY

    @staticmethod
    def words(of: Array, width: int) -> Array:
        """The same memory in numbers of so many bytes, which are quicker to find than bytes."""
        return of.view("c16" if width == LINE else f"u{width}")

    def found(self, of: Array, at: Array, width: int) -> Array:
        """(n, width): bytes."""
        if (at % width).any():
            raise Fault("shared memory that is not aligned")
        return self.words(of, width)[at // width].view(np.uint8).reshape(-1, width)

    def put(self, of: Array, at: Array, rows: Array) -> None:
        width = rows.shape[1]
        self.words(of, width)[at // width] = self.words(np.ascontiguousarray(rows), width)[:, 0]

    def read(self, at: Array, width: int, warp: Array) -> Array:
        me = (warp + FIRST_WARP).astype(np.uint8)[:, None]
        writer, reader = self.found(self.writer, at, width), self.found(self.reader, at, width)
        if (wrong := (writer != SETTLED) & (writer != me)).any():
            why = {NOBODY: "that nobody wrote", COPIED: "that is still being copied"}
            who = int(writer[wrong][0])
            raise Fault(f"shared memory is read {why.get(who, 'that another warp wrote, with no barrier between')}")
        known = np.where((reader == NOBODY) | (reader == me), me, np.uint8(SEVERAL))
        self.put(self.reader, at, known)
        again = (self.found(self.reader, at, width) != known).any(1)
        self.put(self.reader, at[again], np.full_like(known[again], SEVERAL))
        return self.found(self.bytes, at, width)

    def claim(self, at: Array, rows: Array, warp: Array) -> None:
        """To be written; what is there already may be written again."""
        width, me = rows.shape[1], (warp + FIRST_WARP).astype(np.uint8)[:, None]
        writer, reader = self.found(self.writer, at, width), self.found(self.reader, at, width)
        if ((reader != NOBODY) & (reader != me)).any():
            raise Fault("shared memory is written that another warp reads, with no barrier between")
        free = (writer == NOBODY) | (writer == SETTLED) | (writer == me)
        if (~free & (self.found(self.bytes, at, width) != rows)).any():
            raise Fault("shared memory is written that another warp wrote, with no barrier between")

    def write(self, at: Array, rows: Array, warp: Array) -> None:
        self.put(self.bytes, at, rows)
        if (self.found(self.bytes, at, rows.shape[1]) != rows).any():
            raise Fault("two threads write other numbers to the same shared memory")
        self.put(self.writer, at, np.broadcast_to((warp + FIRST_WARP).astype(np.uint8)[:, None], rows.shape))


@dataclass(frozen=True)
class Copy:
    """Of global memory, in the background."""

    at: Array
    rows: Array
    warp: Array

    def part(self, chosen: Array, size: int) -> Copy:
        """Of some of the blocks, with so many bytes of shared memory each."""
        block, inside = np.divmod(self.at, size)
        which = chosen[block]
        at = (np.cumsum(chosen) - 1)[block] * size + inside
        return Copy(at[which], self.rows[which], self.warp[which])


@dataclass
class Group:
    """Blocks that are at the same instruction."""

    program: Program
    grid: tuple[int, int, int]
    blocks: Array  # their numbers
    shared: Shared
    registers: dict[str, Array] = field(default_factory=dict)  # of all threads, or one number for all
    at: int = 0
    copies: list[Copy] = field(default_factory=list)
    copied: list[list[Copy]] = field(default_factory=list)  # those that can be waited for

    def __post_init__(self) -> None:
        threads = self.program.threads
        self.lanes = len(self.blocks) * threads
        self.thread, self.block = np.tile(np.arange(threads), len(self.blocks)), np.repeat(self.blocks, threads)
        self.warp = self.thread // WARP
        self.home = np.repeat(np.arange(len(self.blocks)), threads) * self.shared.size

    def part(self, chosen: Array, at: int) -> Group:
        """Some of the blocks, which go on elsewhere."""
        size, threads = self.shared.size, np.repeat(chosen, self.program.threads)
        registers = {name: x if len(x) == 1 else x[threads] for name, x in self.registers.items()}
        copies, *copied = [[copy.part(chosen, size) for copy in each] for each in (self.copies, *self.copied)]
        blocks, shared = self.blocks[chosen], self.shared.part(chosen)
        return Group(self.program, self.grid, blocks, shared, registers, at, copies, copied)

    def special(self, name: str) -> Array:
        x, y, _ = self.grid
        places = {"x": self.block % x, "y": self.block // x % y, "z": self.block // (x * y)}
        kind, axis = name.split(".")
        found = {"%tid": self.thread, "%ctaid": places[axis], "%nctaid": np.array([self.grid["xyz".index(axis)]])}
        return found[kind].astype(np.uint32)

    def read(self, source: Operand, kind: Kind) -> Array:
        if isinstance(source, int):
            bits = 1 if kind.kind == "b" else 8 * kind.itemsize
            return np.array([source & 2**bits - 1], f"u{kind.itemsize}").view(kind)
        assert isinstance(source, str)
        if source in self.registers:
            found = self.registers[source]
        elif not source.startswith("%"):
            found = np.zeros(1, f"u{kind.itemsize}")  # the beginning of shared memory
        elif source.rstrip("0123456789") in self.program.registers:
            raise Fault(f"{source} is read before it is written")
        else:
            found = self.special(source)
        if found.dtype.itemsize < kind.itemsize:
            raise NotImplementedError(f"{source} as {kind}")
        return found.astype(unsigned(kind), copy=False).view(kind)

    def write(self, target: Operand, value: Array, guard: Array | None = None) -> None:
        assert isinstance(target, str)
        if target == "_":
            return
        kind = unsigned(self.program.registers[target.rstrip("0123456789")])
        if value.dtype.kind == "f":
            value = np.ascontiguousarray(value).view(unsigned(value.dtype))
        value = value.astype(kind, copy=False)
        if guard is not None:
            before = self.registers.get(target, np.array([POISON], np.uint64).astype(kind))
            value = np.where(guard, value, before)
        self.registers[target] = value

    def all(self, source: Operand, kind: Kind) -> Array:
        return np.broadcast_to(self.read(source, kind), (self.lanes,))

    def guard(self, instruction: Instruction) -> Array | None:
        """Which threads execute it, None for all."""
        if instruction.guard is None:
            return None
        found = self.read(instruction.guard, KINDS["pred"])
        return ~found if instruction.negated else found

    def active(self, instruction: Instruction) -> Array:
        """The threads that execute it."""
        guard = self.guard(instruction)
        return np.arange(self.lanes) if guard is None else np.flatnonzero(np.broadcast_to(guard, (self.lanes,)))

    def address(self, place: Operand, threads: Array) -> Array:
        assert isinstance(place, Place)
        kind = KINDS["s64" if place.base.startswith("%rd") else "u32"]
        return self.all(place.base, kind)[threads].astype(np.int64) + place.offset

    def in_shared(self, place: Operand, threads: Array, width: int) -> Array:
        at = self.address(place, threads)
        if ((at < 0) | (at + width > self.shared.size)).any():
            raise Fault("past the end of shared memory")
        return at + self.home[threads]


def shifted(x: Array, by: Array, *, left: bool) -> Array:
    bits = 8 * x.dtype.itemsize
    near = np.minimum(by, bits - 1).astype(x.dtype)
    past = (by >= bits) & (left | (x >= 0))
    return np.where(past, x.dtype.type(0), x << near if left else x >> near)


def divided(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return x / y
    quotient = np.abs(x) // np.abs(y)
    return np.where((x < 0) != (y < 0), -quotient, quotient) if x.dtype.kind == "i" else x // y


def upper(x: Array, y: Array) -> Array:
    """The upper half of a product."""
    double = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
    return (x.astype(double) * y.astype(double) >> double.type(8 * x.dtype.itemsize)).astype(x.dtype)


def permuted(x: Array, y: Array, selector: Array) -> Array:
    both = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
    if (selector & np.uint32(0x8888)).any():
        raise NotImplementedError("a permutation of signs")
    total = np.zeros(1, np.uint64)
    for place in range(4):
        which = (selector >> np.uint32(4 * place) & np.uint32(7)).astype(np.uint64) * np.uint64(8)
        total = total | (both >> which & np.uint64(255)) << np.uint64(8 * place)
    return total.astype(np.uint32)


def extracted(x: Array, begin: Array, length: Array) -> Array:
    """Some bits, the uppermost of which may be a sign."""
    bits, kind = 8 * x.dtype.itemsize, x.dtype.type
    if not 0 < int(length[0]) <= bits - int(begin[0]):
        raise NotImplementedError("bits past the end")
    return x << kind(bits - int(begin[0]) - int(length[0])) >> kind(bits - int(length[0]))


def to_bf16(x: Array) -> Array:
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def seen_by_tensor_cores(bits: Array, of: str) -> Array:
    """(..., numbers of a register)."""
    if of == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)[..., None]
    halves = np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], -1)
    if of == "bf16":
        return (halves << np.uint32(16)).view(np.float32)
    return halves.astype(np.uint16).view(np.float16).astype(np.float32)


PLAIN: dict[str, Callable[..., Array]] = {
    "mov": lambda x: x, "add": np.add, "sub": np.subtract, "neg": np.negative, "abs": np.abs, "not": np.invert,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": partial(shifted, left=True),
    "shr": partial(shifted, left=False),
    "mul": np.multiply, "mad": lambda x, y, z: x * y + z, "div": divided, "rem": lambda x, y: x - divided(x, y) * y,
    "fma": lambda x, y, z: (x.astype(np.float64) * y + z).astype(np.float32), "min": np.fmin, "max": np.fmax,
    "ex2": np.exp2, "lg2": np.log2, "sqrt": np.sqrt, "rcp": np.reciprocal, "bfe": extracted, "prmt": permuted,
    "selp": lambda x, y, which: np.asarray(np.where(which, x, y)),
}  # fmt: skip
COMPARED: dict[str, Callable[..., Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip


@dataclass
class Machine:
    """What was executed is counted: warps by instruction, and bytes by memory and direction."""

    executed: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    regions: dict[int, Region] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)

    def launch(self, text: str, shared: int, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> None:
        """Tensors and numbers by name, in the order of the kernel's parameters."""
        program = parsed(text)
        # a kernel has two parameters more, for memory of Triton's own
        for parameter, (name, value) in zip(program.parameters, [*arguments, ("", 0), ("", 0)], strict=True):
            if isinstance(value, Tensor):
                self.regions[number := len(self.regions) + 1] = region = Region(name, value)
                self.parameters[parameter] = np.array([(number << SPACE) + region.before], np.uint64)
            elif isinstance(value, float):
                self.parameters[parameter] = np.array([value], np.float32).view(np.uint32).astype(np.uint64)
            else:
                self.parameters[parameter] = np.array([value], np.int64).view(np.uint64)
        x, y, z = (*grid, 1, 1)[:3]
        groups = [Group(program, (x, y, z), np.arange(x * y * z), Shared(x * y * z, shared))]
        with np.errstate(all="ignore"):
            while groups:
                groups += self.run(groups.pop())

    def run(self, group: Group) -> list[Group]:
        """Until blocks part, or to the end."""
        while True:
            instruction = group.program.instructions[group.at]
            group.at += 1
            self.executed[instruction.code] += group.lanes // WARP
            try:
                if instruction.name in ("bra", "ret"):
                    if (parts := self.branch(group, instruction)) is not None:
                        return parts
                else:
                    getattr(self, f"_{instruction.name}", self.compute)(group, instruction)
            except Exception as error:
                blocks = f"blocks {group.blocks[0]} to {group.blocks[-1]}"
                error.add_note(f"line {instruction.line} of {instruction.source}, {blocks}: {instruction}")
                raise

    def branch(self, group: Group, instruction: Instruction) -> list[Group] | None:
        ends = instruction.name == "ret"
        goal = -1 if ends else group.program.labels[str(instruction.operands[0])]
        taken = np.zeros((len(group.blocks), group.program.threads), bool)
        taken.ravel()[group.active(instruction)] = True
        each = taken[:, 0]
        if (taken != each[:, None]).any():
            raise NotImplementedError("threads of a block part")
        if not each.any():
            return None
        if each.all() and not ends:
            group.at = goal
            return None
        goals = [(~each, group.at), (each, goal)]
        return [group.part(which, at) for which, at in goals if which.any() and at >= 0]

    def compute(self, group: Group, instruction: Instruction) -> None:
        """A number of each thread, of others of its own."""
        name, parts, kind = instruction.name, instruction.parts, instruction.kind
        target, *sources = instruction.operands
        guard = group.guard(instruction)
        if name not in PLAIN or (name == "fma" and kind != np.float32):
            raise NotImplementedError(instruction.code)
        kinds = [kind] * len(sources)
        if name in ("shl", "shr", "bfe"):
            kinds[1:] = [KINDS["u32"]] * (len(sources) - 1)
        elif name == "selp":
            kinds[2] = KINDS["pred"]
        elif "wide" in parts:
            kinds[2:] = [double := np.dtype(f"{kind.kind}{2 * kind.itemsize}")] * (len(sources) - 2)
        if name == "mov" and isinstance(target, tuple):
            whole, piece = group.read(sources[0], unsigned(kind)), kind.itemsize // len(target)
            for place, each in enumerate(target):
                group.write(each, (whole >> whole.dtype.type(8 * piece * place)).astype(f"u{piece}"), guard)
            return
        if name == "mov" and isinstance(sources[0], tuple):
            piece, unit = kind.itemsize // len(sources[0]), unsigned(kind).type
            values = [group.read(each, np.dtype(f"u{piece}")).astype(unit) for each in sources[0]]
            shifted = [x << unit(8 * piece * place) for place, x in enumerate(values)]
            group.write(target, sum(shifted[1:], shifted[0]), guard)
            return
        values = [group.read(source, of) for source, of in zip(sources, kinds, strict=True)]
        if "wide" in parts:
            values[:2] = [x.astype(double) for x in values[:2]]
        strict: dict[str, Callable[..., Array]] = {"min": np.minimum, "max": np.maximum}
        function = upper if "hi" in parts else strict[name] if "NaN" in parts else PLAIN[name]
        group.write(target, function(*values), guard)

    def _setp(self, group: Group, instruction: Instruction) -> None:
        target, *sources = instruction.operands
        how, _ = instruction.parts
        x, y = (group.read(source, instruction.kind) for source in sources)
        neither = np.isnan(x) | np.isnan(y) if instruction.kind.kind == "f" else np.zeros_like(x, dtype=bool)
        if how in ("num", "nan"):
            found = neither if how == "nan" else ~neither
        else:
            unordered = how not in COMPARED
            found = COMPARED[how[:-1] if unordered else how](x, y)
            found = found | neither if unordered else found & ~neither
        group.write(target, found, group.guard(instruction))

    def _cvt(self, group: Group, instruction: Instruction) -> None:
        target, *sources = instruction.operands
        to, of = instruction.parts[-2:]
        values = [group.read(source, KINDS[of]) for source in sources]
        if to == "tf32":
            found = values[0].view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)
        elif to.startswith(("bf16", "f16")):
            halves = [to_bf16(x) if to[0] == "b" else x.astype(np.float16).view(np.uint16) for x in values]
            found = halves[0] if len(halves) == 1 else halves[0].astype(np.uint32) << np.uint32(16) | halves[1]
        elif KINDS[of].kind == "f" and KINDS[to].kind != "f":
            raise NotImplementedError(instruction.code)
        else:
            found = values[0].astype(KINDS[to])
        group.write(target, found, group.guard(instruction))

    def tensors(self, at: Array) -> list[tuple[Region, Array, Array]]:
        """The tensors that addresses are of, which of the addresses are of each, and how far from its beginning."""
        number, found = at >> SPACE, []
        for each in np.unique(number):
            which = np.flatnonzero(number == each)
            if int(each) not in self.regions:
                raise Fault(f"the address {at[which[0]]:#x} is of no tensor")
            found.append((self.regions[int(each)], which, at[which] & (1 << SPACE) - 1))
        return found

    def loaded(self, at: Array, width: int, block: Array) -> Array:
        rows = np.zeros((len(at), width), np.uint8)
        for region, which, offset in self.tensors(at):
            rows[which] = region.read(offset, width, block[which])
        return rows

    def touched(self, group: Group, instruction: Instruction, threads: Array, at: Array, width: int, way: str) -> None:
        """Threads read or wrote so many bytes each."""
        self.moved[way] += len(threads) * width

    def _ld(self, group: Group, instruction: Instruction) -> None:
        target, place = instruction.operands
        kind, space, threads = instruction.kind, instruction.parts[0], group.active(instruction)
        if space == "param":
            assert isinstance(place, Place)
            group.write(target, self.parameters[place.base].astype(unsigned(kind)).view(kind))
            return
        width = kind.itemsize * len(several(target))
        rows = np.zeros((group.lanes, width), np.uint8)
        if space == "shared":
            at = group.in_shared(place, threads, width)
            rows[threads] = group.shared.read(at, width, group.warp[threads])
        else:
            at = group.address(place, threads)
            rows[threads] = self.loaded(at, width, group.block[threads])
        self.touched(group, instruction, threads, at, width, {"shared": "shared", "global": "global read"}[space])
        for each, values in zip(several(target), rows.view(kind).T, strict=True):
            group.write(each, np.ascontiguousarray(values), group.guard(instruction))

    def _st(self, group: Group, instruction: Instruction) -> None:
        place, source = instruction.operands
        kind, space, threads = unsigned(instruction.kind), instruction.parts[0], group.active(instruction)
        rows = np.stack([group.all(each, kind)[threads] for each in several(source)], 1).view(np.uint8)
        width = rows.shape[1]
        if space == "shared":
            at, warp = group.in_shared(place, threads, width), group.warp[threads]
            group.shared.claim(at, rows, warp)
            group.shared.write(at, rows, warp)
        else:
            at = group.address(place, threads)
            for region, which, offset in self.tensors(at):
                region.write(offset, rows[which], group.block[threads][which])
        self.touched(group, instruction, threads, at, width, {"shared": "shared", "global": "global written"}[space])

    def _red(self, group: Group, instruction: Instruction) -> None:
        """Numbers that are added in place, in the order of threads."""
        place, source = instruction.operands[-2:]
        kind, threads = instruction.kind, group.active(instruction)
        if "add" not in instruction.parts or isinstance(source, tuple):
            raise NotImplementedError(instruction.code)
        at, values = group.address(place, threads), group.all(source, kind)[threads]
        for region, which, offset in self.tensors(at):
            region.claim(offset, kind.itemsize, group.block[threads][which], atomic=True)
            np.add.at(region.bytes.view(kind), offset // kind.itemsize, values[which])
        self.touched(group, instruction, threads, at, kind.itemsize, "global added")

    def _atom(self, group: Group, instruction: Instruction) -> None:
        """The same; what was there before is told to nobody, and whoever looks finds NaN."""
        group.write(instruction.operands[0], np.array([POISON], np.uint64))
        self._red(group, instruction)

    def _cp(self, group: Group, instruction: Instruction) -> None:
        if "commit_group" in instruction.parts:
            group.copied.append(group.copies)
            group.copies = []
            return
        if "wait_group" in instruction.parts:
            (left,) = instruction.operands
            assert isinstance(left, int)
            done = max(0, len(group.copied) - left)
            for copy in (copy for each in group.copied[:done] for copy in each):
                group.shared.write(copy.at, copy.rows, copy.warp)
            group.copied = group.copied[done:]
            return
        place, source, width, *size = instruction.operands
        assert isinstance(width, int)
        threads = group.active(instruction)
        given = group.all(size[0] if size else width, KINDS["u32"])[threads]
        if not np.isin(given, (0, width)).all():
            raise NotImplementedError("a part of what is copied")
        at, there, warp = group.in_shared(place, threads, width), threads[given > 0], group.warp[threads]
        rows = np.zeros((len(threads), width), np.uint8)
        taken = group.address(source, there)
        rows[given > 0] = self.loaded(taken, width, group.block[there])
        group.shared.claim(at, rows, warp)
        group.shared.put(group.shared.writer, at, np.full_like(rows, COPIED))
        group.copies.append(Copy(at, rows, warp))
        self.touched(group, instruction, threads, at, width, "shared")
        self.touched(group, instruction, there, taken, width, "global read")

    def _bar(self, group: Group, instruction: Instruction) -> None:
        if "warp" not in instruction.parts:
            group.shared.barrier()

    def _shfl(self, group: Group, instruction: Instruction) -> None:
        target, source, by, clamp, _ = instruction.operands
        if clamp != WARP - 1 or instruction.guard is not None:
            raise NotImplementedError(instruction.code)
        lane, step = group.thread % WARP, group.all(by, KINDS["u32"]).astype(np.int64)
        of = {"idx": step % WARP, "bfly": lane ^ step, "up": lane - step, "down": lane + step}[instruction.parts[1]]
        of = np.where((of < 0) | (of >= WARP), lane, of)
        group.write(target, group.all(source, KINDS["b32"])[np.arange(group.lanes) - lane + of])

    def _redux(self, group: Group, instruction: Instruction) -> None:
        target, source, _ = instruction.operands
        reduce = {"max": np.maximum, "min": np.minimum, "add": np.add}[instruction.parts[1]].reduce
        group.write(target, np.repeat(reduce(group.all(source, instruction.kind).reshape(-1, WARP), axis=1), WARP))

    def _ldmatrix(self, group: Group, instruction: Instruction) -> None:
        """Matrices of 8 x 8 numbers of 16 bits; each of eight threads tells where a row is."""
        target, place = instruction.operands
        count = len(several(target))
        threads = np.flatnonzero(group.thread % WARP < 8 * count)
        at = group.in_shared(place, threads, LINE)
        rows = group.shared.read(at, LINE, group.warp[threads])
        matrices = rows.view(np.uint16).reshape(-1, count, 8, 8)
        if "trans" in instruction.parts:
            matrices = matrices.swapaxes(2, 3)
        words = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
        for number, each in enumerate(several(target)):
            group.write(each, words[:, number].ravel())
        self.touched(group, instruction, threads, at, LINE, "shared")

    def _mma(self, group: Group, instruction: Instruction) -> None:
        """A tile of 16 x 8 by a warp: x (16, k) times y (k, 8), added to z."""
        shape, of = instruction.parts[2], instruction.parts[-3]
        if (shape, of) not in (("m16n8k8", "tf32"), ("m16n8k16", "bf16"), ("m16n8k16", "f16")):
            raise NotImplementedError(instruction.code)
        target, *sources = instruction.operands
        x, y, z = (np.stack([group.all(each, KINDS["u32"]) for each in several(source)], 1) for source in sources)
        x, y = (seen_by_tensor_cores(part, of) for part in (x, y))
        inner = x.shape[-1]
        # registers of x are half of k, half of the rows; those of y half of k; those of z half of the rows, a column
        left = x.reshape(-1, 8, 4, 2, 2, inner).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, 8 * inner)
        right = y.reshape(-1, 8, 4, 2, inner).transpose(0, 3, 2, 4, 1).reshape(-1, 8 * inner, 8)
        total = z.view(np.float32).reshape(-1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)
        found = (total + left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)
        back = found.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)
        for number, each in enumerate(several(target)):
            group.write(each, back[:, number])
