"""The processes that train together, each on its rows of every batch: one alone, or those that torchrun or `accelerate
launch` started, which say in the environment how many they are.

Each holds the whole model, or a part of it where the model is sharded (FSDP2). `whole` and `alike` are the way from a
part to the whole tensor and back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from adapos.model import Decoder


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def rows(self) -> slice:
        """Of every batch, those of this process."""
        return slice(self.rank, None, self.count)

    def summed(self, x: Tensor) -> Tensor:
        if self.count > 1:
            x = x.to(self.device)
            distributed.all_reduce(x)
        return x.cpu()

    def wait(self) -> None:
        if self.count > 1:
            distributed.barrier()

    def joined(self, model: Decoder, *, sharded: bool) -> nn.Module:
        """The model to call, whose gradients are then the mean over the processes. Sharding changes it in place."""
        if sharded:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
            return model
        return model if self.count == 1 else DistributedDataParallel(model)


@dataclass(frozen=True)
class Launched:
    """What `accelerate launch` was asked for, beside the number of processes."""

    sharded: bool = False
    dtype: str | None = None


def by_accelerate() -> Launched:
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    known = {"no": None, "bf16": "bfloat16", "fp16": "float16"}
    return Launched(os.environ.get("ACCELERATE_USE_FSDP") == "true", known.get(precision, precision))


@contextmanager
def together(device: str, *, sharded: bool = False) -> Iterator[Processes]:
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        if sharded:
            raise ValueError("a model is sharded over several processes; start them with torchrun, or leave it whole")
        yield Processes(device=device)
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), count, device)
    finally:
        distributed.destroy_process_group()


def whole(x: Tensor) -> Tensor:
    """All of a tensor that may be spread over processes, which must all ask for it."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def alike(value: Tensor, x: Tensor) -> Tensor:
    """A whole tensor spread as another one is."""
    if isinstance(x, DTensor):
        return distribute_tensor(value, x.device_mesh, x.placements)
    return value.to(x.device)
