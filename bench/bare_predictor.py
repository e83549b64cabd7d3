"""The baseline of the workers: the same tokenizer and predictor in a process of their own, without a server.

Run as `python -m bench.bare_predictor MODEL CONFIG`: for each line "BATCH SECONDS" it prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.instrumented_service import FOLDER_VARIABLE, Counter
from pipeline.config.config_file import load_config
from pipeline.engines import create_predictor
from pipeline.models.variants import load_for_engine


class BarePredictor:
    """Tokenizer and predictor of the default service, configured by its `op.bert.local_service_conf`.

    engine: in place of the engine of the model's files. precision: in place of the configuration's.
    """

    def __init__(
        self,
        model_directory: Path,
        config: Path | Mapping[str, Any],
        engine: str | None = None,
        precision: str | None = None,
    ) -> None:
        from tokenizers import BertWordPieceTokenizer

        model = load_for_engine(model_directory, engine)
        conf = load_config(config).op["bert"].local_service_conf
        assert conf is not None
        if precision is not None:
            conf = conf.model_copy(update={"precision": precision, "strict_precision": True})
        self.labels = model.labels
        self._predictor = create_predictor(model, conf)
        self._tokenizer: Any = BertWordPieceTokenizer(str(model.directory / "vocab.txt"), lowercase=True)
        self._encode_batch, self._run = self._tokenizer.encode_batch, self._predictor.run
        if FOLDER_VARIABLE in os.environ:
            counter = Counter()
            self._encode_batch = counter.counted(self._encode_batch, 0, len)
            self._run = counter.counted(self._run, 1, lambda feeds: 0)

    def logits(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Run the model once for all texts, padded to the longest. Return float32 [texts, classes]."""
        ids = [encoded.ids for encoded in self._encode_batch(list(texts))]
        input_ids = np.zeros((len(ids), max(map(len, ids))), "int64")
        for row, text_ids in zip(input_ids, ids, strict=True):
            row[: len(text_ids)] = text_ids
        mask = (input_ids != 0).astype("int64")
        feeds = {"input_ids": input_ids, "token_type_ids": np.zeros_like(input_ids), "attention_mask": mask}
        logits: np.ndarray[Any, Any] = self._run(feeds)["logits"]
        return logits


def measure(predictor: BarePredictor, texts: Sequence[str], batch: int, seconds: float) -> dict[str, float]:
    """Return texts per second, CPU ms per text, and percentiles of a call in ms, over `seconds`."""
    calls_ms: list[float] = []
    began, cpu_began = time.perf_counter(), time.process_time()
    at = 0
    while (now := time.perf_counter()) - began < seconds:
        predictor.logits([texts[(at + i) % len(texts)] for i in range(batch)])
        calls_ms.append((time.perf_counter() - now) * 1e3)
        at += batch
    cpu_s = time.process_time() - cpu_began
    p50, p90, p99 = np.percentile(calls_ms, (50, 90, 99))
    return {
        "per_s": at / (now - began), "cpu_ms": cpu_s * 1e3 / at,
        "p50_ms": float(p50), "p90_ms": float(p90), "p99_ms": float(p99),
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    from bench.texts import headlines  # later, because it loads our protobuf

    predictor = BarePredictor(Path(arguments[0]), Path(arguments[1]))
    texts = headlines()
    measure(predictor, texts, 1, 0.2)
    for line in sys.stdin:
        batch, seconds = line.split()
        sys.stdout.write(json.dumps(measure(predictor, texts, int(batch), float(seconds))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
