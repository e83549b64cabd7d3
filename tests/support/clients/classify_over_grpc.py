"""Classifies the sentences on standard input over gRPC, and prints the dictionary of what came back.

classify_over_grpc.py URL MODEL
"""

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput


class Runner:
    """Asks the server what the model takes and gives, and then for sentences."""

    def __init__(self, url, model, version="1"):
        self.model, self.version = model, version
        self.client = InferenceServerClient(url)
        if not self.client.is_server_live() or not self.client.is_server_ready():
            raise SystemExit("the server is not ready")
        if not self.client.is_model_ready(model, version):
            raise SystemExit(f"the model {model} is not ready")
        metadata = self.client.get_model_metadata(model, version)
        self.config = self.client.get_model_config(model, version).config
        self.inputs = [tensor.name for tensor in metadata.inputs]
        self.outputs = [tensor.name for tensor in metadata.outputs]

    def run(self, sentences):
        texts = np.array([[sentence.encode("utf-8")] for sentence in sentences], dtype=np.object_)
        given = InferInput(self.inputs[0], [len(sentences), 1], "BYTES")
        given.set_data_from_numpy(texts)
        wanted = [InferRequestedOutput(name) for name in self.outputs]
        results = self.client.infer(
            model_name=self.model,
            model_version=self.version,
            inputs=[given],
            outputs=wanted,
            client_timeout=60,
        )
        return {name: results.as_numpy(name) for name in self.outputs}


runner = Runner(*sys.argv[1:])
print(runner.run(sys.stdin.read().split("\n")))  # noqa: T201 - it is a program
