"""Measures model repositories: of text models, of 30 models, and one with recorded answers of Triton.

`texts` asks the text classification of a repository of PaddleNLP's shape. It sends each text alone, then all
from 20 gRPC clients at once, and compares the answers. `thirty` starts 30 ONNX models, asks each, and prints
the memory of each. `recorded` sends requests that were recorded from Triton, and counts equal answers.
`python -m bench.ensemble` compares an ensemble with other servers.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as rpc
from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure
from bench.processes import resident_mb
from tests.support.ernie_repository import CHARACTERS, write_ernie
from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_explicit import write_explicit
from tests.support.triton_recordings import RECORDED
from tests.support.triton_repository import write_recorded
from tests.support.triton_repository_recordings import DIFFERENCES, LEFT
from tests.triton import test_replay, test_replay_explicit

TEXTS, CLIENTS, LONGEST = 1000, 20, 120
MODELS = 30
_MODEL = "ernie_seqcls_model"


def texts(console: Console) -> None:
    """Compare answers to texts alone and in batches. Raises CannotMeasure if one differs."""
    chance = random.Random(7)
    chosen = ["".join(chance.choices(CHARACTERS, k=chance.randrange(1, LONGEST))) for _ in range(TEXTS)]
    with (
        tempfile.TemporaryDirectory() as folder,
        RepositoryProcess(write_ernie(Path(folder))) as service,
        rpc.InferenceServerClient(service.rpc_address) as client,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        alone, alone_s = _timed(lambda: [_ask(client, text) for text in chosen])
        before = _batches(client)
        together, together_s = _timed(lambda: list(clients.map(lambda text: _ask(client, text), chosen)))
        after = _batches(client)
    for (label, confidence), (expected, expected_confidence) in zip(together, alone, strict=True):
        if label != expected or abs(confidence - expected_confidence) > 1e-4:
            raise CannotMeasure(f"a text is answered {label} ({confidence}), alone {expected}")
    runs = {size: count - before.get(size, 0) for size, count in after.items() if count > before.get(size, 0)}
    table = Table("", "seconds", "runs of the model", "largest batch")
    table.add_row("one by one", f"{alone_s:.2f}", str(TEXTS), "1")
    table.add_row(f"{CLIENTS} clients", f"{together_s:.2f}", str(sum(runs.values())), str(max(runs)))
    console.print(table)
    console.print(f"{TEXTS} texts of 1 to {LONGEST - 1} characters, all answered as alone.")


def thirty(console: Console) -> None:
    """Print the start time of the server, and the memory of each model's worker."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(MODELS):
            version = Path(folder, f"model_{number:02}", "1")
            version.mkdir(parents=True)
            shutil.copyfile(onnx_file("scaled"), version / "model.onnx")
        service, start_s = _timed(lambda: RepositoryProcess(Path(folder)))
        with service, rpc.InferenceServerClient(service.rpc_address) as client:
            rows = rpc.InferInput("x", [1, 4], "FP32")
            rows.set_data_from_numpy(np.ones((1, 4), np.float32))
            _, asked_s = _timed(lambda: [client.infer(f"model_{n:02}", [rows]) for n in range(MODELS)])
            index = client.get_model_repository_index(as_json=True)["models"]
            workers = sorted(resident_mb(pid) for pid in service.worker_pids())
            front = resident_mb(service.process.pid)
    ready = sum(row["state"] == "READY" for row in index)
    table = Table("", "")
    table.add_row("models ready", f"{ready} of {MODELS}")
    table.add_row("start to ready", f"{start_s:.1f} s")
    table.add_row("each asked once", f"{asked_s * 1000 / MODELS:.1f} ms each")
    table.add_row("resident memory of a model", f"{workers[0]:.0f} to {workers[-1]:.0f} MB")
    table.add_row("resident memory of the front", f"{front:.0f} MB")
    console.print(table)


def recorded(console: Console) -> None:
    """Compare answers with Triton's. Raises CannotMeasure for a difference that is not known."""
    with tempfile.TemporaryDirectory() as folder:
        with RepositoryProcess(write_recorded(Path(folder))) as service:
            unlike = {row["id"] for row in test_replay.ROWS if not test_replay.agrees(row, service)[0]}
        repository = write_explicit(Path(folder, "explicit"))
        with RepositoryProcess(repository, arguments=["--model-control-mode=explicit"]) as service:
            answers = test_replay_explicit.all_answers(service, repository)
            unlike |= {case for case in answers if not test_replay_explicit.agrees(case, answers)}
    known = DIFFERENCES | test_replay_explicit.DIFFERENCES
    cases = len(test_replay.ROWS) + len(answers)
    table = Table("recorded from Triton", "")
    table.add_row("cases", str(len(RECORDED)))
    table.add_row("sent here", f"{len(test_replay.ROWS)} over HTTP and gRPC, {len(answers)} orders")
    table.add_row("answered alike", f"{cases - len(unlike)} of {cases}: {1 - len(unlike) / cases:.1%}")
    console.print(table)
    for case in sorted(unlike):
        console.print(f"{case}: {known.get(case, 'unknown')}", markup=False)
    for why in dict.fromkeys(LEFT.values()):
        console.print(f"not sent, {why}: {', '.join(key for key in LEFT if LEFT[key] == why)}", markup=False)
    if unlike != set(known):
        raise CannotMeasure(f"other cases differ than are known: {', '.join(sorted(unlike ^ set(known)))}")


def _ask(client: rpc.InferenceServerClient, text: str) -> tuple[int, float]:
    tensor = rpc.InferInput("INPUT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], object))
    answer = client.infer("ernie_seqcls", [tensor])
    return int(answer.as_numpy("label").item()), float(answer.as_numpy("confidence").item())


def _batches(client: rpc.InferenceServerClient) -> dict[int, int]:
    """Return the number of the classifier's runs by their rows."""
    (statistics,) = client.get_inference_statistics(_MODEL, as_json=True)["model_stats"]
    batches = statistics.get("batch_stats", ())
    return {int(batch["batch_size"]): int(batch["compute_infer"]["count"]) for batch in batches}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.model_repository", description=__doc__)
    parser.add_argument("what", choices=("texts", "thirty", "recorded"))
    console = Console()
    try:
        {"texts": texts, "thirty": thirty, "recorded": recorded}[parser.parse_args().what](console)
    except CannotMeasure as exc:
        console.print(f"[red]{exc}[/red]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
