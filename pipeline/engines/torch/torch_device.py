"""The device that runs a PyTorch model: the CPU or a GPU with a stream for each instance.

Traced graphs name the device that they were traced on. `move_constants` rewrites it for the device here.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, resolve_device, select_card
from pipeline.errors import ConfigError

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CUDA = re.compile(r"cuda(:\d+)?")


class TorchDevice:
    """A device of PyTorch, and the transfers of arrays to it and from it.

    On a GPU, each thread (each instance) has its own stream and copies through pinned memory.
    """

    def __init__(self, conf: PredictorConf, instance_index: int) -> None:
        """Select the device of `device_type` and `devices`.

        Raises ConfigError if PyTorch can't use the device.
        """
        kind = resolve_device(conf)
        if kind is Device.TENSORRT:
            raise ConfigError(
                "device_type 2 (tensorRT) is not for PyTorch: convert the model to ONNX, or use 1"
            )
        self.is_cuda = kind is Device.GPU
        self.autocast = _AUTOCAST.get(conf.precision)
        if not self.is_cuda:
            self.device = torch.device("cpu")
            return
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device_type 1 needs a GPU, and PyTorch {torch.__version__} finds none: install a CUDA "
                "build of PyTorch and a driver (paddlewheel doctor), or set device_type: 0"
            )
        card = select_card(conf, instance_index)
        if card >= torch.cuda.device_count():
            raise ConfigError(f"devices: there is no GPU {card}, only {torch.cuda.device_count()} of them")
        self.device = torch.device("cuda", card)
        self._local = threading.local()

    @property
    def name(self) -> str:
        """Name of the device for PyTorch and for messages, such as "cuda:0"."""
        return str(self.device)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context manager: run inference on this thread's own stream, in the configured precision."""
        with contextlib.ExitStack() as stack:
            if self.is_cuda:
                stack.enter_context(torch.cuda.stream(self._get_stream()))
            if self.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=self.autocast))
            yield

    def _get_stream(self) -> Any:
        stream = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = torch.cuda.Stream(self.device)
        return stream

    def move_in(self, tensor: Any) -> Any:
        """Copy a tensor from the host to the device, without waiting for the copy."""
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.is_cuda else tensor

    def move_out(self, tensors: Sequence[Any]) -> list[Any]:
        """Copy tensors from the device to the host, and wait for this thread's stream."""
        if not self.is_cuda:
            return list(tensors)
        hosts = []
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            hosts.append(host.copy_(tensor, non_blocking=True))
        self._get_stream().synchronize()
        return hosts


def set_threads(conf: PredictorConf) -> None:
    """Set the number of threads in an operator, and of parallel operators, for this process."""
    torch.set_num_threads(conf.thread_num)
    # PyTorch raises an error once operators have run beside each other; a process sets it once.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(max(1, conf.inter_op_thread_num))


def disable_fusion() -> None:
    """Make TorchScript run graphs on a GPU without fused kernels.

    Fused kernels are compiled for one input shape, but batch sizes vary. With random batch sizes of 1 to 64,
    a 12 x 768 model in fp16 reached 7,600 rows/s with the default strategy and 17,500 without fusion (H200).
    Triton's backend disables its fuser as well.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit in favour of torch.compile
        torch.jit.set_fusion_strategy([("STATIC", 0), ("DYNAMIC", 0)])


def move_constants(module: Any, device: Any) -> int:
    """Replace the device constants in a TorchScript module's graph, in place.

    Returns how many GPU constants and calls of `.cuda()` the graph had. A `.cuda()` inside `forward` becomes
    a constant of the traced graph, which `map_location` does not change. A graph traced on the CPU has the
    CPU as a constant, which is replaced for a GPU.
    """
    graph = module.forward.graph
    torch._C._jit_pass_inline(graph)  # graphs of submodules and functions become part of this graph
    nodes = [node for node in graph.findAllNodes("prim::Constant") if _names_device(node)]
    traced_on_gpu = [node for node in nodes if _CUDA.fullmatch(node.s("value"))]
    for node in traced_on_gpu or (nodes if device.type == "cuda" else []):
        node.s_("value", str(device))
    moves = graph.findAllNodes("aten::cuda")
    if device.type == "cpu":
        for node in moves:
            node.output().replaceAllUsesWith(node.inputsAt(0))
            node.destroy()
    return len(traced_on_gpu) + len(moves)


def _names_device(node: Any) -> bool:
    if not node.hasAttribute("value") or node.kindOf("value") != "s":
        return False
    kind = node.output().type().kind()
    return kind == "DeviceObjType" or (kind == "StringType" and bool(_CUDA.fullmatch(node.s("value"))))
