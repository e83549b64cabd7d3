"""Programs of users, written against Triton, that ask a text classifier of ours and know nothing of us."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as v2

from tests.support.service_process import APPS, ROOT, ServiceProcess

SENTENCES = ["good", "so bad", "good good good bad"]


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "classifier.py", name="sentiment") as process:
        yield process


def program(name: str, port: int) -> str:
    """What it printed about the sentences."""
    command = [
        sys.executable,
        str(ROOT / "tests" / "support" / "clients" / name),
        f"127.0.0.1:{port}",
        "sentiment",
    ]
    given = "\n".join(SENTENCES)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metadata_and_configuration_are_asked_and_json_is_read_as_arrays(service: ServiceProcess) -> None:
    told = program("classify_over_http.py", service.http_port).splitlines()
    assert told[0] == "sentiment sentiment 0 TYPE_STRING"
    assert told[1:] == ["label INT64 [1, 0, 1]", "confidence FP32 [1.0, 0.5, 0.75]"]


def test_sentences_of_a_column_come_back_as_a_dictionary_of_arrays(service: ServiceProcess) -> None:
    told = program("classify_over_grpc.py", service.rpc_port)
    expected = "{'label': array([1, 0, 1]), 'confidence': array([1.  , 0.5 , 0.75], dtype=float32)}\n"
    assert told == expected


def test_a_table_of_texts_is_no_column(service: ServiceProcess) -> None:
    texts = v2.InferInput("text", [1, 2], "BYTES")
    texts.set_data_from_numpy(np.array([["good", "bad"]], object))
    refused = pytest.raises(v2.InferenceServerException, match=r"shape for input 'text' .* got \[1,2\]")
    with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}") as client, refused:
        client.infer("sentiment", [texts])
