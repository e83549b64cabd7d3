"""What the two environments hold: converters in the one that `make convert-env` made, none where we serve."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from convert.steps.conversion_environment import CONVERT_PYTHON, FOLDER
from convert.steps.isolation import run_isolated

ROOT = Path(__file__).resolve().parents[2]
CONVERTERS = ("paddlenlp", "paddle2onnx", "x2paddle", "openvino", "torch", "transformers", "datasets")
CUDA = ("torch", "triton", "nvidia", "cuda")
IMPORTS = ("paddlenlp.transformers", "paddle2onnx", "x2paddle.convert", "openvino", "torch", "transformers")


@pytest.fixture(autouse=True)
def steps_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)


def lock(name: str) -> dict[str, str]:
    """Version by name, both as `canonical` has them."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines()
    pins = (line.split(" --hash=")[0] for line in lines if "==" in line)
    return dict(canonical(*pin.split("==")) for pin in pins)


def canonical(name: str, version: str) -> tuple[str, str]:
    """A name as package indexes compare it, and a version without its local suffix (torch's +cpu)."""
    return re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0]


def test_the_conversion_environment_holds_what_its_lock_says() -> None:
    installed = run_isolated(
        "environment_steps:installed", {}, converter="the list", needs=("paddle2onnx", "torch")
    )
    assert installed["prefix"] == str(FOLDER)
    held = dict(canonical(*pair) for pair in installed["packages"])
    locked = lock("convert") | lock("torch")
    assert {name: held.get(name) for name in locked} == locked
    assert "paddlewheel" in held


def test_nothing_there_requires_pytorch_which_requires_nothing_more_but_cuda() -> None:
    """So PyTorch and CUDA come when they are asked for alone, whatever an index offers."""
    pairs = run_isolated("environment_steps:requirements", {}, converter="the list", needs=("paddle2onnx",))
    needed = [(canonical(name, "")[0], canonical(needs, "")[0]) for name, needs in pairs]
    locked = lock("convert").keys()
    assert [pair for pair in needed if pair[0] in locked and pair[1].startswith(CUDA)] == []
    assert {needs for name, needs in needed if name == "torch" and not needs.startswith(CUDA)} <= locked


@pytest.mark.parametrize("module", IMPORTS)
def test_a_converter_can_be_imported_there(module: str) -> None:
    name = run_isolated(
        "environment_steps:imported",
        {"module": module},
        converter=module,
        needs=(module.partition(".")[0],),
    )
    assert name == module


def test_the_constraints_for_paddlenlp_are_what_it_runs_with_there_on_numpy_2() -> None:
    constraints = lock("paddlenlp-constraints")
    assert constraints.items() <= lock("convert").items()
    told = run_isolated("environment_steps:paddlenlp_with", {}, converter="paddlenlp", needs=("paddlenlp",))
    assert {canonical(name, "")[0] for name in told["needs"]} <= constraints.keys()
    assert told["numpy"] == constraints["numpy"] and told["numpy"].startswith("2.")
    assert told["padded"] == [[1, 2, 3], [4, 0, 0]]
    assert told["tokenizer"] == "paddlenlp.transformers.bert.tokenizer"


def test_the_models_of_paddlenlp_are_imported_without_its_trainer_and_data_sets() -> None:
    needs = ("paddlenlp",)
    imported = run_isolated("environment_steps:imported_for_paddlenlp", {}, converter="imports", needs=needs)
    assert "paddlenlp.transformers" in imported
    assert not {"paddlenlp.taskflow", "paddlenlp.trainer", "datasets", "pandas", "pyarrow"} & set(imported)


def test_the_serving_environment_holds_no_converter_that_would_conflict() -> None:
    assert sys.prefix != str(FOLDER)
    locked = lock("serving") | lock("to-onnx")
    assert {name for name in CONVERTERS if is_installed(name)} == {"paddle2onnx", "openvino"}
    assert locked.keys() & set(CONVERTERS) == {"paddle2onnx", "openvino"}
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("x2paddle")


def test_both_environments_have_the_same_paddle_and_numpy() -> None:
    serving, convert = lock("serving"), lock("convert")
    for name in ("paddlepaddle", "numpy", "protobuf"):
        assert serving[name] == convert[name]


def test_a_user_inside_the_conversion_environment_needs_nothing_else() -> None:
    script = (
        "from convert.steps.isolation import run_isolated\n"
        "step = 'environment_steps:installed'\n"
        "print(run_isolated(step, {}, converter='x', needs=('torch', 'paddle2onnx'))['prefix'])"
    )
    done = subprocess.run(
        [FOLDER / "bin" / "python", "-c", script], cwd=ROOT.parent, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(FOLDER), done.stderr


def is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
