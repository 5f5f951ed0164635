"""What one run adds to the peak of memory: on a CPU that of a fresh process, on a GPU that of its allocator."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys

import torch

from adapos.profile.plan import Plan
from adapos.profile.work import Work, maker
from adapos.resident import STATUS, forget_peak, resident

WARM = 256  # tokens of a first run that loads libraries and starts threads


def extra(plan: Plan, what: str, spec: str, length: int, work: Work) -> int:
    """Bytes beyond what the run was given. What it raises says why there is no answer."""
    if plan.on_gpu:
        torch.cuda.synchronize(plan.device)
        torch.cuda.reset_peak_memory_stats(plan.device)
        before = torch.cuda.memory_allocated(plan.device)
        work.once()
        torch.cuda.synchronize(plan.device)
        return torch.cuda.max_memory_allocated(plan.device) - before
    if not STATUS.exists():
        raise RuntimeError("the peak of a process is read from /proc, which this system does not have")
    asked = json.dumps({"plan": plan.settings, "what": what, "spec": spec, "length": length})
    # -P: a file in the current folder that is called like a module is not taken for it
    command = [sys.executable, "-P", "-m", "adapos.profile.memory", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise RuntimeError(f"the process was ended by signal {-done.returncode}, as when memory runs out")
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "the process failed").splitlines()[-1])
    return int(done.stdout)


def measured(plan: Plan, what: str, spec: str, length: int) -> int:
    """In this process, which should do nothing else."""
    torch.set_num_threads(plan.threads)
    maker(plan, what, min(length, WARM))(spec).once()
    work = maker(plan, what, length)(spec)
    trim()
    forget_peak()
    before = resident("VmRSS")
    work.once()
    return max(0, resident("VmHWM") - before)


def trim() -> None:
    """Give freed memory back, or the run is handed it again and seems to need none."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if give_back is not None:
        gc.collect()
        give_back(0)


def main() -> None:
    asked = json.loads(sys.argv[1])
    print(measured(Plan(**asked["plan"]), asked["what"], asked["spec"], asked["length"]))


if __name__ == "__main__":
    main()
