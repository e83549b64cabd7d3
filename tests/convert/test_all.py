"""`paddlewheel convert all`: one model from PaddleNLP, PyTorch and ONNX to one answer, and its routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support import models
from tests.support.conversion_steps import Call, run_steps
from tests.support.service_process import APPS, ServiceProcess

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_labels": 3,
}
PADS = {"Roberta": 1, "XLMRoberta": 1}  # the id that pads, of those without types of tokens
LABELS = ("contradiction", "neutral", "entailment")
MODELS = [
    ("Bert", "ForSequenceClassification", "sequence-classification"),
    ("Ernie", "ForTokenClassification", "token-classification"),
    ("Ernie", "ForSequenceClassification", "sequence-classification"),
    ("Roberta", "ForSequenceClassification", "sequence-classification"),
    ("XLMRoberta", "ForSequenceClassification", "sequence-classification"),
]
ROUTES = {
    "paddle": ["dynamic to static", "serving model"],
    "torch": ["weights into PaddleNLP's model", "serving model"],
    "onnx": ["ONNX to Paddle", "serving model"],
}


MODULE = """
import paddle


class Patches(paddle.nn.Layer):
    # Of a video, as a tensor of rank 7, which Paddle Inference can't hand out where oneDNN made it.
    def __init__(self):
        super().__init__()
        paddle.seed(1)
        self.colours = paddle.nn.Linear(3, 2)

    def forward(self, video):
        cut = video.reshape([-1, 2, 2, 3, 4, 2, 3])
        return self.colours(cut).transpose([0, 1, 3, 5, 2, 4, 6])
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


def feeds(family: str) -> dict[str, Any]:
    """Two texts of ids, the second padded."""
    ids = np.random.default_rng(3).integers(2, 60, (2, 9))
    mask = np.ones_like(ids)
    ids[1, 6:], mask[1, 6:] = PADS.get(family, 0), 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given if family in PADS else {**given, "token_type_ids": ids % 2 * mask}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each of MODELS, named by family and head, that holds its three forms."""
    folder = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CONVERT_PYTHON, raising=False)
        calls = [three_forms(family, head, folder / (family + head)) for family, head, _ in MODELS]
        run_steps(*calls, needs=("torch", "transformers", "paddlenlp"))
    return folder


def three_forms(family: str, head: str, folder: Path) -> Call:
    """The call that writes a model in three forms, and what PyTorch answers to `feeds`."""
    folder.mkdir()
    np.savez(folder / "feeds.npz", **feeds(family))
    sizes = {**SIZES, "type_vocab_size": 1} if family in PADS else SIZES
    arguments = {"family": family, "head": head, "sizes": sizes, "std": 0.3, "folder": str(folder)}
    return "bench.convert_sources:three_forms", {**arguments, "feeds": str(folder / "feeds.npz")}


def describe_forms(folder: Path) -> np.ndarray[Any, Any]:
    """Give each of a model's forms its tokenizer and labels; what PyTorch answers to `feeds`."""
    config = json.loads((folder / "torch/config.json").read_text("utf-8"))
    (folder / "onnx/config.json").write_text(json.dumps(config), "utf-8")
    for form in ROUTES:
        path = folder / form / "config.json"
        named = {
            "id2label": dict(enumerate(LABELS)),
            "label2id": {label: i for i, label in enumerate(LABELS)},
        }
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **named}), "utf-8")
        (folder / form / "vocab.txt").write_text("[PAD]\n[UNK]\n", "utf-8")
    logits: np.ndarray[Any, Any] = np.load(folder / "logits.npy")
    return logits


def served(folder: str, family: str) -> np.ndarray[Any, Any]:
    """What a service with this model answers to `feeds`."""
    conf = {"model_config": str(Path(folder).resolve()), "thread_num": 1}
    with ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}) as service:
        answer = service.predict({name: json.dumps(array.tolist()) for name, array in feeds(family).items()})
    return np.array(json.loads(answer["logits"]), np.float32)


def test_a_layer_that_onednn_can_not_run_is_served_by_paddle_without_it(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "own_video.py").write_text(MODULE, "utf-8")
    monkeypatch.syspath_prepend(str(work))
    assert main(["all", "own_video:Patches", "served", "--input-spec", "video:float32[-1,4,3,8,3]"]) == 0
    stamp = json.loads(Path("served/convert.json").read_text("utf-8"))
    assert stamp["route"] == ["dynamic to static", "serving model"]
    video = np.random.default_rng(2).standard_normal((2, 4, 3, 8, 3)).astype(np.float32)
    model = load_serving_model("served")
    (answer,) = create_predictor(model, models.local_conf()).run({"video": video}).values()
    import own_video
    import paddle

    expected = own_video.Patches()(paddle.to_tensor(video)).numpy()
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "head", "task"), MODELS)
def test_one_model_from_paddle_pytorch_and_onnx_is_served_with_the_same_answers(
    family: str, head: str, task: str, sources: Path
) -> None:
    source = sources / (family + head)
    expected = describe_forms(source)
    for form, steps in ROUTES.items():
        assert main(["all", str(source / form), f"served_{form}", "--lengths", "5,9"]) == 0
        stamp = json.loads(Path(f"served_{form}/convert.json").read_text("utf-8"))
        assert stamp["route"] == steps
        model = load_serving_model(f"served_{form}")
        assert (model.labels, model.additions["task"], model.additions["entailment"]) == (LABELS, task, 2)
        assert (model.directory / "vocab.txt").is_file()
        assert model.padding is not None and model.padding.feeds.keys() == feeds(family).keys()
        kept = np.s_[:] if head == "ForSequenceClassification" else feeds(family)["attention_mask"] == 1
        np.testing.assert_allclose(served(f"served_{form}", family)[kept], expected[kept], rtol=0, atol=5e-5)
