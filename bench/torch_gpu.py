"""A TorchScript encoder of 12 x 768 on a GPU: a server of its repository beside a loop over the model.

`python -m bench.torch_gpu` needs a GPU, PyTorch and `wrk`. The loop runs full batches that are on the CPU
before and after, in one thread, then in two. Texts have 64 tokens. Requests are v2 over HTTP in JSON, and
responses are binary.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from bench.load import bodies_file, wrk
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY, ROWS = 12, 768, 12, 64, 21_128, 64
CONFIG = f"""
platform: "pytorch_libtorch"
max_batch_size: {ROWS}
dynamic_batching {{ }}
input {{ name: "ids" data_type: TYPE_INT64 dims: [ {TOKENS} ] }}
output {{ name: "logits__0" data_type: %s dims: [ 15 ] }}
"""


class Layer(nn.Module):
    """One layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens = x.shape[0], x.shape[1]
        q, k, v = self.qkv(x).view(rows, tokens, 3, 12, 64).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, tokens, 768)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Classifier(nn.Module):
    """Token ids [rows, tokens] to logits [rows, 15]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.classifier = nn.Linear(WIDTH, 15)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x[:, 0])


def measure_loop(path: Path, threads: int, seconds: float) -> float:
    """Return the rows/s of full batches in threads, each with a stream of its own."""
    module = torch.jit.load(str(path), map_location="cuda").eval()
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS)).pin_memory()

    def run(until: float) -> int:
        rows = 0
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            while time.monotonic() < until:
                module(ids.cuda(non_blocking=True)).cpu()
                rows += ROWS
        return rows

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, [time.monotonic() + 2] * threads))  # compiles the graph
        return sum(pool.map(run, [time.monotonic() + seconds] * threads)) / seconds


def measure_server(
    path: Path, datatype: str, instances: int, callers: list[int], seconds: float
) -> list[tuple[float, float]]:
    """Return the requests/s and the p99 in ms for each number of callers."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        group = f"instance_group {{ count: {instances} kind: KIND_GPU gpus: [ 0 ] }}"
        write_model(Path(folder), "bert", CONFIG % datatype + group)
        (Path(folder) / "bert" / "1" / "model.pt").symlink_to(path)
        rng = np.random.default_rng(1)
        rows = [rng.integers(VOCABULARY, size=TOKENS).tolist() for _ in range(200)]
        tensor = {"name": "ids", "datatype": "INT64", "shape": [1, TOKENS]}
        outputs = [{"name": "logits__0", "parameters": {"binary_data": True}}]  # JSON has no FP16
        bodies = [
            json.dumps({"inputs": [{**tensor, "data": row}], "outputs": outputs}).encode() for row in rows
        ]
        with RepositoryProcess(Path(folder)) as service, bodies_file(bodies) as file:
            url = f"http://127.0.0.1:{service.http_port}"
            for connections in callers:
                for duration in (2.0, seconds):  # the first compiles the graph for new sizes
                    load = wrk(
                        url, "/v2/models/bert/infer", connections=connections, seconds=duration, bodies=file
                    )
                if load.errors:
                    raise SystemExit(f"{load.errors} errors:\n{service.log[-2000:]}")
                figures.append((load.per_s, load.p99_ms))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each figure (default: 5)")
    options = parser.parse_args()
    table = Table("", "rows/s", "p99 ms", title=torch.cuda.get_device_name(0))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for precision, datatype in (("fp32", "TYPE_FP32"), ("fp16", "TYPE_FP16")):
            path = Path(folder, f"{precision}.pt")
            module = Classifier().eval()
            torch.jit.save(torch.jit.script(module.half() if precision == "fp16" else module), str(path))
            for threads in (1, 2):
                rows = measure_loop(path, threads, options.seconds)
                table.add_row(
                    f"{precision}, loop in {threads} threads, batches of {ROWS}", f"{rows:,.0f}", ""
                )
            for instances in (1, 2):
                callers = [1, 64, 256]
                figures = measure_server(path, datatype, instances, callers, options.seconds)
                for count, (rows, p99_ms) in zip(callers, figures, strict=True):
                    label = f"{precision}, server, {instances} instances, {count} callers"
                    table.add_row(label, f"{rows:,.0f}", f"{p99_ms:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
