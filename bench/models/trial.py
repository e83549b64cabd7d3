"""Tries one model, from its file to answers over every endpoint: `python -m bench.models.trial NAME FOLDER`.

The last line on standard output is the result, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from bench.models.endpoints import ENDPOINTS, Arrays, Ask
from bench.models.findings import Finding
from bench.models.subject import EXPECTED, GIVEN, Array, Subject
from bench.models.subjects import find_subject
from bench.running import ROOT
from convert.steps.isolation import run_isolated
from pipeline.models.serving_model import load_serving_model
from tests.support.new_services import new_service
from tests.support.service_process import ServiceProcess

_SERVED, _NAME = "served", "model"
_TOLERANCE = 1e-4  # of the largest value


def try_model(subject: Subject, folder: Path) -> Finding:
    """Convert, serve and ask the model, and return the result."""
    source: str = run_isolated(
        subject.make,
        {"folder": str(folder), **subject.arguments},
        converter=subject.family,
        needs=subject.needs,
    )
    finding = Finding(subject.name, subject.family)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "convert", "all", source, _SERVED, *subject.options],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    finding.convert_s = time.monotonic() - started
    if done.returncode:
        finding.refusal = done.stderr.strip().splitlines()[-1].replace(f"{folder}/", "")
        finding.right = bool(subject.refused) and subject.refused in finding.refusal
        return finding
    model = folder / _SERVED
    finding.route = json.loads((model / "convert.json").read_text("utf-8"))["route"]
    finding.form = "ONNX" if load_serving_model(model).format == "onnx" else "Paddle"
    with new_service(folder / "services", model, _NAME, *subject.new, measures=True) as new:
        finding.first_status = new.ask().status
        inputs, expected = (dict(np.load(folder / file)) for file in (GIVEN, EXPECTED))
        for endpoint, ask in ENDPOINTS.items():
            finding.endpoints[endpoint] = difference_at(ask, new.service, inputs, expected)
    finding.right = (
        not subject.refused
        and finding.first_status == 200
        and all(isinstance(found, float) and found <= _TOLERANCE for found in finding.endpoints.values())
    )
    return finding


def difference_at(ask: Ask, service: ServiceProcess, inputs: Arrays, expected: Arrays) -> float | str:
    """Return the largest difference over an endpoint, as a share of the largest value; else a message."""
    try:
        answered = ask(service, inputs)
    except Exception as exc:  # each client has its own exceptions
        return " ".join(str(exc).split()) or type(exc).__name__
    if missing := expected.keys() - answered.keys():
        return f"{', '.join(sorted(missing))} is not among {', '.join(answered)}"
    return max((_difference(array, answered[name]) for name, array in expected.items()), key=_weight)


def _weight(found: float | str) -> float:
    return found if isinstance(found, float) else np.inf


def _difference(expected: Array, answered: Array) -> float | str:
    if expected.dtype.kind == "U":
        texts = [one.decode() if isinstance(one, bytes) else str(one) for one in answered.ravel().tolist()]
        right = expected.ravel().tolist()
        return 0.0 if texts == right else f"{texts} where {right} is right"
    if answered.size != expected.size:
        return f"{list(answered.shape)} where {list(expected.shape)} is right"
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(answered.astype(float).ravel() - expected.astype(float).ravel()).max()) / scale


if __name__ == "__main__":
    found = try_model(find_subject(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write(f"\n{msgspec.json.encode(found).decode()}\n")
