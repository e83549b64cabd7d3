"""The versions in pickles that are searched, not loaded."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.from_tables.pickle_facts import PickleFacts, read_pickle_facts
from convert.steps import new_environment

STATE = {"weights": bytes(3 << 20), "_sklearn_version": "1.2.2", "again": {"_sklearn_version": "1.0.0"}}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("padding", range(0, 48, 7))
def test_every_protocol_at_every_place(protocol: int, padding: int, tmp_path: Path) -> None:
    """The version may lie across the end of a piece."""
    file = tmp_path / "model.pkl"
    data = pickle.dumps({"_sklearn_version": "1.2.2"}, protocol)
    file.write_bytes(bytes((1 << 20) - padding) + data)
    assert read_pickle_facts(file) == PickleFacts("1.2.2")


@pytest.mark.parametrize(
    "compress", [bytes, zlib.compress, gzip.compress, bz2.compress, lzma.compress], ids=lambda f: f.__module__
)
def test_every_compression_of_joblib(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "model.joblib"
    file.write_bytes(compress(pickle.dumps(STATE)))
    assert read_pickle_facts(file) == PickleFacts("1.2.2")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x\x9cbroken",
        b"_sklearn_version",
        b"_sklearn_version\x94\x8c\xff1.2.2",
        pickle.dumps({"_sklearn_version": "1.2.2; rm -rf"}),
        pickle.dumps({"_sklearn_version": 3}),
    ],
)
def test_other_bytes_have_no_version(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.pkl"
    file.write_bytes(data)
    assert read_pickle_facts(file) == PickleFacts()


def test_boosters_need_onnxmltools(tmp_path: Path) -> None:
    file = tmp_path / "model.pkl"
    file.write_bytes(b"\x80\x04\x8c\x10lightgbm.sklearn\x94\x8c\x0eLGBMClassifier\x94\x93.")
    assert read_pickle_facts(file).packages == ("lightgbm", "onnxmltools")


@pytest.mark.parametrize(
    ("packages", "expected", "unexpected"),
    [
        ([], {"scikit-learn", "skl2onnx", "onnxruntime"}, {"onnxmltools", "numpy<2"}),
        (["scikit-learn==1.2.2"], {"scikit-learn==1.2.2", "numpy<2"}, {"scikit-learn", "onnxmltools"}),
        (["scikit-learn==1.5.0", "lightgbm"], {"lightgbm", "onnxmltools"}, {"numpy<2", "scikit-learn"}),
    ],
)
def test_an_environment_for_tables_has_no_paddle(
    packages: list[str],
    expected: set[str],
    unexpected: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(new_environment, "_run_program", lambda command: commands.append(list(command)))
    assert new_environment.main([str(tmp_path / "env"), "--tables", *packages]) == 0
    _, install = commands
    assert expected <= set(install) and not unexpected & set(install)
    assert not any("paddle" in word for word in install)
