"""The padding proof: which models may be padded, in this process and by callers of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as rpc

from pipeline.errors import ModelFailed
from pipeline.models.onnx_file import inspect_onnx
from pipeline.padding import proof
from pipeline.padding.proof import Budget, PaddedModel, PaddingProof, prove_padding
from tests.support import padding_models
from tests.support.onnx_graphs import Graph
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

BATCHING = 'platform: "onnxruntime_onnx"\nmax_batch_size: 16\ndynamic_batching { }\n'
CALLERS, ROUNDS = 16, 15


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options)


def run(model: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
    try:
        outputs = model.run(None, dict(feeds))
    except Exception as exc:
        raise ModelFailed(str(exc)) from exc
    return dict(zip([output.name for output in model.get_outputs()], outputs, strict=True))


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.onnx"
    path.write_bytes(padding_models.model(name))
    return path


def proven(path: Path, budget: Budget | None = None, **changes: Any) -> PaddingProof:
    facts = inspect_onnx(path)
    model = PaddedModel(partial(run, session(path)), facts.feeds, facts.id_limits, checks_ids=True, **changes)
    return prove_padding(model, budget)


def test_there_are_enough_models_of_both_kinds() -> None:
    assert len(padding_models.REJECTED) >= 30
    assert len(padding_models.ACCEPTED) >= 15


@pytest.mark.parametrize("name", padding_models.REJECTED)
def test_models_whose_answers_padding_changes_are_rejected(name: str, tmp_path: Path) -> None:
    result = proven(written(tmp_path, name))
    assert not result.feeds, result.reason


@pytest.mark.parametrize("name", padding_models.ACCEPTED)
def test_models_that_hide_padding_are_accepted(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    result = proven(path)
    facts = inspect_onnx(path)
    assert result.feeds.keys() == {feed.name for feed in facts.feeds}, result.reason
    assert result.fetches == {f.name: 1 for f in facts.fetches if len(f.shape) > 1 and f.shape[1] < 0}
    assert f"up to a length of {result.max_length}" in result.reason
    reads_positions = name in ("encoder", "first_token", "sentence_embedder", "positions_of_ids_other_than_1")
    assert result.max_length == (padding_models.POSITIONS if reads_positions else proof.MAX_LENGTH)


class Spent(Budget):
    """A budget that ends after a number of runs."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self._runs = runs

    def allows(self, seconds: float) -> bool:
        self._runs -= 1
        return self._runs >= 0


@pytest.mark.parametrize(("runs", "longest"), [(40, 0), (76, 129), (1000, padding_models.POSITIONS)])
def test_a_proof_that_runs_out_of_time_covers_the_lengths_that_were_tried(
    runs: int, longest: int, tmp_path: Path
) -> None:
    result = proven(written(tmp_path, "encoder"), Spent(runs))
    assert result.max_length == longest, result.reason
    assert bool(result.feeds) == bool(longest)
    if not longest:
        assert result.reason.startswith("padding is not proven, for runs take too long")
    elif longest < padding_models.POSITIONS:
        assert "longer rows take too long to try" in result.reason


def test_ids_without_a_known_limit_are_not_padded_where_the_engine_does_not_check_them(
    tmp_path: Path,
) -> None:
    facts = inspect_onnx(path := written(tmp_path, "encoder"))
    result = prove_padding(PaddedModel(partial(run, session(path)), facts.feeds, {}, checks_ids=False))
    assert not result.feeds
    assert result.reason == ("padding is not proven, for the ids that the model takes are not known")


def test_operators_of_other_sets_are_told_from_those_that_the_file_defines(tmp_path: Path) -> None:
    graph = Graph()
    scrambled = graph.add("Scramble", graph.feed("x", "float32", "n", "length"), domain="acme")
    graph.fetch(scrambled, "y", "float32", "n", "length")
    path = tmp_path / "custom.onnx"
    path.write_bytes(graph.model({"acme": 1}))
    assert inspect_onnx(path).domains == {"", "acme"}


def waveform(chance: np.random.Generator, length: int) -> dict[str, Any]:
    return {"x": -np.abs(chance.standard_normal((1, length))).astype(np.float32)}


def text(chance: np.random.Generator, length: int) -> dict[str, Any]:
    return {"input_ids": chance.integers(1, padding_models.WORDS, (1, length))}


def masked_text(chance: np.random.Generator, length: int) -> dict[str, Any]:
    return {**text(chance, length), "attention_mask": np.ones((1, length), np.int64)}


FEEDS: dict[str, tuple[Callable[[np.random.Generator, int], dict[str, Any]], int]] = {
    "argmax": (waveform, 140),
    "top_k": (waveform, 140),
    "scaled_by_the_logarithm_of_lengths_over_64": (masked_text, 140),
    "waveform_maximum": (waveform, 140),
    "peak_normalisation": (waveform, 140),
    "maximum_of_embeddings": (text, 16),
    "wake_word": (waveform, 16),
    "encoder": (masked_text, 140),
}
DTYPES = {"float32": "FP32", "int64": "INT64"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("padding")
    for name in FEEDS:
        model = write_model(folder, name, BATCHING)
        (model / "1" / "model.onnx").write_bytes(padding_models.model(name))
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RepositoryProcess(folder, env=env) as process:
        yield process


@pytest.mark.parametrize("name", FEEDS)
def test_unequal_lengths_of_many_callers_are_answered_as_alone(
    service: RepositoryProcess, name: str, tmp_path: Path
) -> None:
    alone = session(written(tmp_path, name))
    make_feeds, longest = FEEDS[name]
    chance = np.random.default_rng(28)
    lengths = chance.integers(2, longest, CALLERS * ROUNDS)
    rows = [make_feeds(chance, int(length)) for length in lengths]
    with rpc.InferenceServerClient(service.rpc_address) as client:

        def ask(feeds: dict[str, Any]) -> Any:
            inputs = []
            for feed, value in feeds.items():
                inputs.append(rpc.InferInput(feed, value.shape, DTYPES[str(value.dtype)]))
                inputs[-1].set_data_from_numpy(value)
            return client.infer(name, inputs).as_numpy("y")

        with ThreadPoolExecutor(CALLERS) as callers:
            answers = list(callers.map(ask, rows))
        (statistics,) = client.get_inference_statistics(name, as_json=True)["model_stats"]
    wrong = 0
    for feeds, answer in zip(rows, answers, strict=True):
        expected = alone.run(None, feeds)[0]
        wrong += answer.shape != expected.shape or not np.allclose(answer, expected, 1e-3, 1e-5)
    assert wrong == 0
    padded = name == "encoder"
    assert (int(statistics["execution_count"]) < len(rows) / 2) == padded
    says = "padded rows answer as alone" if padded else "padded rows answer otherwise than alone"
    service.wait_for_log(f"Model {name}, rows of unequal length: {says}")
