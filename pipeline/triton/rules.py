"""What a model's configuration may not say, and what is not built yet: told when the model is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelOutput
from pipeline.plugins import ENGINES, find

_NOT_HERE = {  # backends of Triton's that this server has none for, and the way instead
    "tensorrt": "TensorRT plans run on the card that they were built for alone: serve the ONNX model",
    "tensorflow": "TensorFlow models are not run here: convert the model to ONNX with tf2onnx",
    "pytorch": "TorchScript is not run here yet: export the model to ONNX (torch.onnx.export)",
    "dali": "DALI pipelines need a GPU and NVIDIA's library: preprocess in a Python model",
    "fil": "forests are not run here: convert the model to ONNX with skl2onnx or hummingbird",
    "vllm": "vLLM's answers are streams, which are not served yet",
    "tensorrtllm": "TensorRT-LLM's answers are streams, which are not served yet",
}
_RUN_HERE = ("python", "identity", "ensemble")  # beside the engines
_NOT_YET = {
    "sequence_batching": "models of sequences (sequence_batching) are not served yet",
    "response_cache": "the response cache is not built yet: take response_cache out",
    "batch_input": "inputs that are made of a batch (batch_input, batch_output) are not made yet: send them",
    "rate_limiter": "the rate limiter is not built yet: take rate_limiter out of instance_group",
}


def check_config(config: ModelConfig, backend: str) -> list[str]:
    """What is wrong with the configuration, each in a sentence."""
    return [
        *_of_backend(config, backend),
        *_of_batching(config),
    ]


def flaws_of_tensors(config: ModelConfig, backend: str) -> list[str]:
    """What is wrong with the completed inputs and outputs, or with what is to run them."""
    flaws = [*_of_tensors(config, "input", config.input), *_of_tensors(config, "output", config.output)]
    if backend not in (*_RUN_HERE, *find(ENGINES)):
        flaws.append(
            f"unable to find backend library for backend '{backend}', try specifying runtime on the model "
            f"configuration; backends here are {', '.join((*_RUN_HERE, *find(ENGINES)))}"
        )
    return flaws


def _of_backend(config: ModelConfig, backend: str) -> Iterator[str]:
    if backend in _NOT_HERE:
        yield f"backend {backend!r}: {_NOT_HERE[backend]}"
    if config.WhichOneof("scheduling_choice") == "sequence_batching":
        yield _NOT_YET["sequence_batching"]
    if config.batch_input or config.batch_output:
        yield _NOT_YET["batch_input"]
    if config.response_cache.enable:
        yield _NOT_YET["response_cache"]
    if config.model_transaction_policy.decoupled:
        yield "models of several answers a request (decoupled) are not served yet"
    if any(group.HasField("rate_limiter") for group in config.instance_group):
        yield _NOT_YET["rate_limiter"]
    if (least := min((group.count for group in config.instance_group), default=0)) < 0:
        yield f"instance_group of {config.name} has the count {least}; it is a number from 1 on"
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {config.name}"


def _of_tensors(
    config: ModelConfig, kind: str, tensors: Sequence[ModelInput] | Sequence[ModelOutput]
) -> Iterator[str]:
    for one in tensors:
        if not one.name:
            yield f"model {kind} must specify 'name' for {config.name}"
        if not one.dims:
            yield f"model {kind} '{one.name}' must specify 'dims' for {config.name}"
        if any(dim == 0 or dim < -1 for dim in one.dims):
            yield (
                f"model {kind} '{one.name}' dimension must be integer >= 1, or -1 to indicate a "
                f"variable-size dimension for {config.name}"
            )
        if one.HasField("reshape") and not _same_size(one.dims, one.reshape.shape):
            yield f"model {kind} '{one.name}' has different size for dims and reshape for {config.name}"


def _same_size(dims: Sequence[int], shape: Sequence[int]) -> bool:
    if -1 in dims or -1 in shape:
        return [*dims].count(-1) == [*shape].count(-1)
    return math.prod(dims) == math.prod(shape)


def _of_batching(config: ModelConfig) -> Iterator[str]:
    if config.WhichOneof("scheduling_choice") != "dynamic_batching":
        return
    batching, most = config.dynamic_batching, config.max_batch_size
    if not most:
        yield f"dynamic batching requires max_batch_size > 0 for {config.name}"
    for size in batching.preferred_batch_size:
        if size <= 0:
            yield f"dynamic batching preferred size must be positive for {config.name}"
        elif size > most:
            yield f"dynamic batching preferred size must be <= max batch size for {config.name}"
    if batching.priority_levels:
        default = batching.default_priority_level
        if not 0 < default <= batching.priority_levels:
            yield f"default priority level must be in range [1, priority_levels] for {config.name}"
        if batching.preserve_ordering:
            yield f"priority levels can't be used with preserve_ordering for {config.name}"
