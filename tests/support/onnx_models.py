"""The ONNX models of tests/fixtures/onnx, alone and as serving models; make.py there tells what they are."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import FeedPadding, Padding, write_serving_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "onnx"
FEEDS = ("input_ids", "token_type_ids", "attention_mask")
LABELS = ("sports", "finance", "tech")


def onnx_file(name: str) -> Path:
    return FIXTURES / f"{name}.onnx"


def bare(folder: Path, name: str) -> Path:
    """A folder that holds the model and nothing else."""
    target = folder / name
    target.mkdir(parents=True)
    shutil.copy(onnx_file(name), target / "model.onnx")
    return target


def serving(folder: Path, name: str = "classifier", *, padded: bool = True) -> Path:
    """A serving model directory; of the classifiers it declares that all feeds may be padded."""
    source = onnx_file(name)
    facts = inspect_onnx(source)
    padding = Padding({feed: FeedPadding(1) for feed in FEEDS}, {}) if padded else None
    target = folder / f"served_{name.replace('/', '_')}"
    write_serving_model(
        target, source, None, facts.feeds, facts.fetches, padding=padding, labels=LABELS,
        extra_files=[source.parent / file for file in facts.data_files],
    )  # fmt: skip
    return target


def versions(folder: Path) -> Path:
    """A model directory with the versions 1, 2 and 3."""
    target = folder / "versions"
    for number in (1, 2, 3):
        bare(target, "mixes_rows").rename(target / str(number))
    return target
