"""Environment variables of native libraries, and memory settings of a process that is ready."""

from __future__ import annotations

import ctypes
import gc
import os

# Only while unset, so that a user may ask for something else.
FRONT_PROCESS = {
    "GRPC_VERBOSITY": "NONE",  # it would log every stranger's bad handshake, without a bound
    # gRPC allocates in a dozen threads, and glibc has a heap for each, of which none gives memory back.
    "MALLOC_ARENA_MAX": "2",
}
MODEL_PROCESS = {
    # Threads that spin while they wait starve the front, and other workers, of their core.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime 1.31 keeps an id in the home folder, and tells its makers
    "GLOG_minloglevel": "2",  # Paddle's native log; 2 lets errors through
    # GiB of freed tensors that Paddle gathers before it wakes a thread to give them back. 0 wakes the thread
    # for each: a 2 x 128 BERT then takes some 1.5 times the CPU. Small batches keep theirs, see
    # pipeline/engines/paddle/session.py.
    "FLAGS_eager_delete_tensor_gb": "0.0625",
    # glibc maps every block over 32 MB afresh, gives the top of the heap back, and has the kernel clear both
    # again at the next run: up to half of the CPU of a large batch (bench/worker_memory.py). Blocks up to
    # 256 MB stay in the heap.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}


def set_variables() -> None:
    """Set a model process's variables; without effect on a library that is loaded already."""
    for name, value in MODEL_PROCESS.items():
        os.environ.setdefault(name, value)


YOUNG_OBJECTS = 50_000  # allocations between two collections; Python's 700 would run several a millisecond


def settle_memory() -> None:
    """Leave everything that start-up made out of later collections, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def trim_heap() -> None:
    """Return the free pages of glibc's heaps to the system (malloc_trim(3)).

    By itself glibc shortens its heaps at their ends alone.
    """
    ctypes.CDLL(None).malloc_trim(0)


def release_memory() -> None:
    """Free reference cycles, such as the traceback of a refused request, and trim the heap."""
    gc.collect()
    trim_heap()
