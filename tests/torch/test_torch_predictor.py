"""Models in PyTorch: names and types of tensors, results of any form, threads, and files that are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.engines import create_predictor
from pipeline.engines.base import Predictor
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.serving_model import load_serving_model
from pipeline.models.signature import Variable, signature_text
from tests.support.models import local_conf
from tests.torch import torch_files

ROW = np.array([[1, 2, 3, 4]], np.float32)


def described(folder: Path, feeds: Sequence[Variable], fetches: Sequence[Variable]) -> Path:
    (folder / "serving_server_conf.prototxt").write_text(signature_text(feeds, fetches), "utf-8")
    (folder / "serving.yml").write_text("batched: false\n", "utf-8")
    return folder


def variables(*declared: tuple[str, str, tuple[int, ...]]) -> list[Variable]:
    return [Variable(name, name, dtype, shape) for name, dtype, shape in declared]


def loaded(folder: Path, **conf: Any) -> Predictor:
    return create_predictor(load_serving_model(folder), local_conf(**conf))


def floats(*names: str) -> list[Variable]:
    return variables(*((name, "float32", (-1, 4)) for name in names))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("x", "y"), ("sum", "difference")),
        (("y", "x"), ("difference", "sum")),
        (("INPUT__0", "INPUT__1"), ("OUTPUT__0", "OUTPUT__1")),
        (("b__1", "a__0"), ("out__1", "out__0")),
        (("first", "second"), ("third", "fourth")),
    ],
    ids=["names", "names in another order", "positions", "positions in another order", "the order"],
)
@pytest.mark.parametrize("module", [torch_files.Sum(), torch_files.Pair()], ids=["dict", "tuple"])
def test_tensors_are_found_by_name_by_position_or_by_order(
    tmp_path: Path, module: nn.Module, inputs: tuple[str, str], outputs: tuple[str, str]
) -> None:
    torch_files.scripted(module, tmp_path / "model.pt")
    if isinstance(module, torch_files.Pair) and set(outputs) == {"sum", "difference"}:
        outputs = ("sum", "difference")  # a tuple has no names, so the order counts
    predictor = loaded(described(tmp_path, floats(*inputs), floats(*outputs)))
    by_name = dict(zip(inputs, (ROW, 10 * ROW), strict=True))
    swapped = inputs in (("y", "x"), ("b__1", "a__0"))
    x, y = (10 * ROW, ROW) if swapped else (ROW, 10 * ROW)
    expected = {"sum": x + y, "difference": x - y}
    expected |= {"OUTPUT__0": x + y, "OUTPUT__1": x - y, "out__0": x + y, "out__1": x - y}
    expected |= {"third": x + y, "fourth": x - y}
    answers = predictor.run(by_name)
    assert list(answers) == list(outputs)
    for name, answer in answers.items():
        np.testing.assert_array_equal(answer, expected[name])


def test_texts_are_lists_of_str(tmp_path: Path) -> None:
    torch_files.scripted(torch_files.Texts(), tmp_path / "model.pt")
    feeds = variables(("texts", "string", (-1, 1)), ("x", "float32", (-1, 4)))
    predictor = loaded(described(tmp_path, feeds, variables(("out__0", "string", (-1, 1)))))
    texts = np.array([["día"], [b"two"]], object)
    answers = predictor.run({"texts": texts, "x": np.repeat(ROW, 2, 0)})
    assert answers["out__0"].tolist() == [["día!"], ["two!"]]


def test_a_model_that_writes_to_its_input_leaves_the_requests_array_alone(tmp_path: Path) -> None:
    torch_files.scripted(torch_files.Writer(), tmp_path / "model.pt")
    predictor = loaded(described(tmp_path, floats("x"), floats("out__0")))
    row = ROW.copy()
    row.flags.writeable = False  # as in a message
    first = predictor.run({"x": row})["out__0"]
    predictor.run({"x": row})
    np.testing.assert_array_equal(first, ROW + 1)
    np.testing.assert_array_equal(row, ROW)


@pytest.mark.parametrize(
    ("feeds", "fetches", "told"),
    [
        (
            floats("x"),
            floats("s__0"),
            "no input is argument 'y' of forward(x: Tensor, y: Tensor): ",
        ),
        (floats("a", "b", "c"), floats("s__0"), "input 'c' is number 2, and the model has forward(x: Tensor"),
        (floats("a__0", "b__0"), floats("s__0"), "two of the inputs a__0, b__0 have one position"),
        (
            variables(("x", "string", (-1,)), ("y", "float32", (-1, 4))),
            floats("s__0"),
            "input 'x' is declared string, and its argument is a Tensor",
        ),
    ],
    ids=["one is missing", "one too many", "one position", "texts for a tensor"],
)
def test_a_description_that_does_not_fit_ends_the_load(
    tmp_path: Path, feeds: list[Variable], fetches: list[Variable], told: str
) -> None:
    torch_files.scripted(torch_files.Pair(), tmp_path / "model.pt")
    with pytest.raises(ConfigError) as caught:
        loaded(described(tmp_path, feeds, fetches))
    assert told in caught.value.message and str(tmp_path / "model.pt") in caught.value.message


@pytest.mark.parametrize(
    ("fetches", "told"),
    [
        (floats("s__2"), "output 's__2' is number 2, and forward returned 2"),
        (
            variables(("s__0", "int64", (-1, 4))),
            "output 's__0' of .* is float32, and declared int64",
        ),
    ],
    ids=["number", "type"],
)
def test_an_output_that_the_model_does_not_return_so_is_named(
    tmp_path: Path, fetches: list[Variable], told: str
) -> None:
    torch_files.scripted(torch_files.Pair(), tmp_path / "model.pt")
    predictor = loaded(described(tmp_path, floats("x", "y"), fetches))
    with pytest.raises(ModelFailed, match=told):
        predictor.run({"x": ROW, "y": ROW})


def encoder_folder(folder: Path) -> Path:
    feeds = variables(*((f"input__{n}", "int32", (1, torch_files.LENGTH)) for n in (0, 1)))
    return described(folder, feeds, variables(("output__0", "float32", (-1,))))


def test_a_model_traced_on_a_gpu_answers_on_the_cpu_as_the_original(tmp_path: Path) -> None:
    original = torch_files.traced_on_a_gpu(tmp_path / "model.pt")
    predictor = loaded(encoder_folder(tmp_path))
    ids, mask = torch_files.encoder_inputs()
    with torch.no_grad():
        expected = original.eval()(ids, mask).numpy()
    answers = predictor.run({"input__0": ids.numpy(), "input__1": mask.numpy()})
    np.testing.assert_allclose(answers["output__0"], expected, atol=1e-5, rtol=0)
    assert not predictor.merges  # a row at a time


def test_an_id_beyond_the_table_is_the_callers_mistake(tmp_path: Path) -> None:
    torch_files.traced_on_a_gpu(tmp_path / "model.pt")
    predictor = loaded(encoder_folder(tmp_path))
    ids, mask = (tensor.numpy().copy() for tensor in torch_files.encoder_inputs())
    wrong = ids.copy()
    wrong[0, 3] = torch_files.VOCABULARY
    with pytest.raises(UnusableFeed, match=f"'input__0' holds .* to {torch_files.VOCABULARY}, beyond a"):
        predictor.run({"input__0": wrong, "input__1": mask})
    with pytest.raises(InvalidInput, match="input__0"):
        predictor.run({"input__0": ids[:, :7], "input__1": mask})
    with pytest.raises(InvalidInput, match="input__1"):
        predictor.run({"input__0": ids, "input__1": mask + 0.5})


def test_another_thread_runs_while_the_model_does(tmp_path: Path) -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(400):
                x = torch.tanh(x @ x)
            return x

    torch_files.scripted(Long(), tmp_path / "model.pt")
    side = 384
    tensors = variables(("x", "float32", (side, side)))
    predictor = loaded(described(tmp_path, tensors, variables(("out__0", "float32", (side, side)))))
    feeds = {"x": np.full((side, side), 1e-3, np.float32)}
    predictor.run(feeds)
    running = threading.Thread(target=predictor.run, args=(feeds,))
    running.start()
    ticks = 0
    while running.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 20  # a thread that is kept waiting for the GIL gets one or two


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_computes_in_it_and_answers_in_the_declared_type(
    tmp_path: Path, precision: str
) -> None:
    torch_files.scripted(torch_files.Row(), tmp_path / "model.pt")
    described(tmp_path, floats("x"), variables(("out__0", "float32", (-1, 3))))
    full = loaded(tmp_path).run({"x": ROW})["out__0"]
    lower = loaded(tmp_path, precision=precision).run({"x": ROW})["out__0"]
    assert lower.dtype == np.float32 and not np.array_equal(full, lower)
    np.testing.assert_allclose(lower, full, atol=0.05)


def test_a_gpu_that_is_not_there_ends_the_load(tmp_path: Path) -> None:
    torch_files.scripted(torch_files.Row(), tmp_path / "model.pt")
    described(tmp_path, floats("x"), variables(("out__0", "float32", (-1, 3))))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"needs a GPU, and PyTorch .* finds none"):
            loaded(tmp_path, device_type=1)
    with pytest.raises(ConfigError, match="tensorRT"):
        loaded(tmp_path, device_type=2)


def exported_rows(path: Path) -> torch_files.Row:
    module = torch_files.Row()
    rows = torch.export.Dim("rows", min=1, max=64)
    torch_files.exported(module, (torch.ones(2, 4),), path, dynamic_shapes={"x": {0: rows}})
    return module


def test_an_exported_program_describes_itself(tmp_path: Path) -> None:
    module = exported_rows(tmp_path / "model.pt2")
    predictor = loaded(tmp_path)
    assert [(v.name, v.dtype, v.shape) for v in predictor.feeds] == [("x", "float32", (-1, 4))]
    assert [(v.name, v.dtype, v.shape) for v in predictor.fetches] == [("output__0", "float32", (-1, 3))]
    assert predictor.merges
    rows = np.repeat(ROW, 3, 0)
    with torch.no_grad():
        expected = module(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(predictor.run({"x": rows})["output__0"], expected, atol=1e-6)
    with pytest.raises(InvalidInput, match="'x'"):
        predictor.run({"x": rows[:, :2]})


def test_a_program_with_a_dict_of_outputs_has_their_names(tmp_path: Path) -> None:
    torch_files.exported(torch_files.Sum(), (torch.ones(2, 4), torch.ones(2, 4)), tmp_path / "model.pt2")
    predictor = loaded(tmp_path)
    answers = predictor.run({"x": np.repeat(ROW, 2, 0), "y": np.repeat(ROW, 2, 0)})
    np.testing.assert_array_equal(answers["sum"], 2 * np.repeat(ROW, 2, 0))
    np.testing.assert_array_equal(answers["difference"], 0 * np.repeat(ROW, 2, 0))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            '"torch.ops.aten.linear.default"',
            '"torch.hub.load"',
            "calls 'torch.hub.load'",
        ),
        ("Symbol('s", "exec(chr(1))+Symbol('s", "has the size .exec"),
        ('"use_pickle": false', '"use_pickle": true', "holds a pickle"),
    ],
    ids=["a function", "an expression", "a pickle"],
)
def test_a_program_that_would_run_code_of_its_file_is_refused(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    exported_rows(tmp_path / "model.pt2")
    torch_files.edited(tmp_path / "model.pt2", old, new)
    with pytest.raises(ConfigError, match=told):
        loaded(tmp_path)


@pytest.mark.parametrize("save", ["state_dict", "module", "legacy"])
def test_a_pickle_is_refused_unread(tmp_path: Path, save: str) -> None:
    module = torch_files.Row()
    contents = module.state_dict() if save == "state_dict" else module
    torch.save(contents, tmp_path / "model.pt", _use_new_zipfile_serialization=save != "legacy")
    described(tmp_path, floats("x"), variables(("out__0", "float32", (-1, 3))))
    with pytest.raises(ConfigError, match=r"model\.pt .*pickle of torch\.save, which is never read"):
        loaded(tmp_path)


def test_an_operator_that_is_missing_is_named_with_its_library(tmp_path: Path) -> None:
    torch_files.scripted(torch_files.Row(), tmp_path / "model.pt")
    torch_files.edited(tmp_path / "model.pt", "torch.linear(", "ops.torchvision.nms(")
    described(tmp_path, floats("x"), variables(("out__0", "float32", (-1, 3))))
    with pytest.raises(ConfigError, match=r"needs the operator torchvision::nms, .* pip install torchvision"):
        loaded(tmp_path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = torch_files.scripted(torch_files.Row(), tmp_path / "model.pt")
    path.write_bytes(path.read_bytes()[:-200])
    described(tmp_path, floats("x"), variables(("out__0", "float32", (-1, 3))))
    with pytest.raises(ConfigError, match=r"model\.pt can't be read"):
        loaded(tmp_path)
