"""A repository of PaddleNLP's shape, asked by many clients at once with texts of mixed length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc

from tests.support.ernie_repository import CHARACTERS, write_ernie
from tests.support.repository_process import RepositoryProcess

TEXTS, CLIENTS = 120, 20


@pytest.fixture(scope="module")
def ernie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RepositoryProcess(write_ernie(tmp_path_factory.mktemp("ernie")), env=env) as process:
        yield process


def ask(client: rpc.InferenceServerClient, model: str, text: str) -> tuple[Any, Any]:
    given = rpc.InferInput("INPUT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()]], object))
    answer = client.infer(model, [given])
    return answer.as_numpy("label")[0], answer.as_numpy("confidence")[0]


def test_texts_of_mixed_length_are_answered_as_alone_and_share_runs(ernie: RepositoryProcess) -> None:
    chance = random.Random(20)
    texts = ["".join(chance.choices(CHARACTERS, k=chance.randrange(1, 60))) for _ in range(TEXTS)]
    asked = [(("ernie_seqcls", "ernie_tokencls")[n % 2], text) for n, text in enumerate(texts)]
    with rpc.InferenceServerClient(ernie.rpc_address) as client:
        alone = [ask(client, *one) for one in asked]
        before = _runs(client, "ernie_seqcls_model")
        with ThreadPoolExecutor(CLIENTS) as clients:
            together = list(clients.map(lambda one: ask(client, *one), asked))
        after = _runs(client, "ernie_seqcls_model")
    for (label, confidence), (expected, expected_confidence) in zip(together, alone, strict=True):
        np.testing.assert_array_equal(label, expected)
        np.testing.assert_allclose(confidence, expected_confidence, rtol=1e-4, atol=1e-5)
    assert after - before < TEXTS / 4  # half of the texts, and hardly two of one length
    ernie.wait_for_log("Model ernie_seqcls_model, rows of unequal length: padded rows answer as alone")


def _runs(client: rpc.InferenceServerClient, model: str) -> int:
    (told,) = client.get_inference_statistics(model, as_json=True)["model_stats"]
    return int(told["execution_count"])
