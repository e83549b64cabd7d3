"""Compares a BERT-like ONNX file with the version that onnxruntime.transformers optimises: answers and time.

Run in the conversion environment. Both run in ONNX Runtime as it is served, with one thread, in turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.transformers.optimizer import optimize_model
from rich.console import Console
from rich.table import Table

LENGTH = 32  # tokens of a row
BATCHES = (1, 8, 32)
EXAMPLES = """examples:
  .venv/bin/paddlewheel convert to-onnx models/demo exported/onnx
  .venv-convert/bin/python -m bench.onnx_fusion exported/onnx/model.onnx
"""


class Subject:
    """An ONNX file with a session of its own."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(self, feeds: dict[str, Any]) -> tuple[list[Any], float]:
        """Run the model once. Return the outputs and the CPU ms."""
        inputs = {feed.name: feeds[feed.name] for feed in self._session.get_inputs()}
        began = time.thread_time()
        outputs = self._session.run(None, inputs)
        return outputs, (time.thread_time() - began) * 1e3


def build_feeds(batch: int) -> dict[str, Any]:
    """Return input_ids, token_type_ids and attention_mask: int64 [batch, LENGTH]."""
    ids = np.random.default_rng(batch).integers(1, 1000, (batch, LENGTH))
    mask = np.ones_like(ids)
    return {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": mask}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="as `convert to-onnx` writes it")
    parser.add_argument("--runs", type=int, default=40, help="of each batch (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fusion-") as folder:
        fused = Path(folder) / "model.onnx"
        optimized = optimize_model(str(options.model), model_type="bert", opt_level=0)
        optimized.save_model_to_file(str(fused))
        subjects = [Subject(options.model), Subject(fused)]
    found = {name: count for name, count in optimized.get_fused_operator_statistics().items() if count}
    table = Table("rows", "largest |diff|", "ms as it is", "ms fused", "of it", title=f"fused: {found}")
    for batch in BATCHES:
        feeds = build_feeds(batch)
        (plain, _), (other, _) = (subject.run(feeds) for subject in subjects)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(plain, other, strict=True))
        took = np.array([[subject.run(feeds)[1] for subject in subjects] for _ in range(options.runs)])
        as_it_is, as_fused = np.median(took, axis=0)
        ratio = f"{as_fused / as_it_is:.2f}"
        table.add_row(f"{batch}", f"{apart:.1e}", f"{as_it_is:.2f}", f"{as_fused:.2f}", ratio)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
