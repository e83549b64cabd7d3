"""PyTriton: `python -m bench.peers.apps.pytriton_app PORT`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.peers.apps.classifier import BATCH, INSTANCES, WAIT_MS, Classifier
from bench.running import free_ports


def inference() -> Any:
    """Return an inference function with its own predictor."""
    classifier = Classifier()

    @batch
    def infer(text: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        answers = classifier.classify([each.decode() for each in text[:, 0]])
        return {
            "label": np.array([[answer["label"].encode()] for answer in answers]),
            "confidence": np.array([[answer["confidence"]] for answer in answers], np.float32),
        }

    return infer


if __name__ == "__main__":
    rpc_port, metrics_port = free_ports(2)
    config = TritonConfig(
        http_address="127.0.0.1", http_port=int(sys.argv[1]), grpc_port=rpc_port, metrics_port=metrics_port
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="classifier",
            infer_func=[inference() for _ in range(INSTANCES)],
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[
                Tensor(name="label", dtype=bytes, shape=(1,)),
                Tensor(name="confidence", dtype=np.float32, shape=(1,)),
            ],
            config=ModelConfig(
                max_batch_size=BATCH,
                batcher=DynamicBatcher(max_queue_delay_microseconds=round(WAIT_MS * 1e3)),
            ),
        )
        triton.serve()
