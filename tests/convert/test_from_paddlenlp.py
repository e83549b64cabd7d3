"""`paddlewheel convert paddle` for PaddleNLP models: small copies of architectures, to a served answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.from_paddle.weights import read_params
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support import models

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}
# XLM-R's are RoBERTa's classes in PaddleNLP, with one token type and 1 as the id that pads.
XLM_R = {**SIZES, "type_vocab_size": 1, "pad_token_id": 1, "model_type": "xlm-roberta"}
LABELS = {"0": "体育", "1": "财经", "2": "科技"}
WITH_TYPES = ["input_ids", "token_type_ids", "attention_mask"]
SEQUENCE, TOKEN = "sequence-classification", "token-classification"

Checkpoint = Callable[..., str]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; PaddleNLP finds no earlier downloads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


@pytest.fixture
def checkpoint(work: Path) -> Checkpoint:
    """Makes a folder with a model, a vocabulary, and in logits.npy what it answers to `feeds`."""

    def make(family: str, head: str, sizes: dict[str, Any], feeds: dict[str, Any]) -> str:
        np.savez(work / "feeds.npz", **feeds)
        config = {**{k: v for k, v in sizes.items() if k != "model_type"}, "num_labels": 3}
        run_isolated(
            "environment_steps:paddlenlp_checkpoint",
            {"family": family, "head": head, "sizes": config, "folder": "mine", "feeds": "feeds.npz"},
            converter="PaddleNLP",
            needs=("paddlenlp",),
        )
        file = work / "mine" / "config.json"
        changed = {"id2label": LABELS, **({"model_type": "xlm-roberta"} if "model_type" in sizes else {})}
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changed}), "utf-8")
        (work / "mine" / "vocab.txt").write_text("[PAD]\n[UNK]\n", "utf-8")
        return "mine"

    return make


def feeds_of(names: list[str], pad: int = 0) -> dict[str, Any]:
    """Two rows of 9 and 6 tokens."""
    rng = np.random.default_rng(4)
    mask = np.array([[1] * 9, [1] * 6 + [0] * 3])
    ids = np.where(mask == 1, rng.integers(2, 100, (2, 9)), pad)
    arrays = {"input_ids": ids, "token_type_ids": np.arange(9)[None, :] // 4 % 2 * mask}
    return {name: {**arrays, "attention_mask": mask}[name] for name in names}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that can't be done and writes nothing."""
    capsys.readouterr()
    assert main(["paddle", *arguments]) == 2
    assert not Path("out").exists()
    return capsys.readouterr().err.splitlines()[-1]


def small_config(**changes: object) -> str:
    Path("small.json").write_text(json.dumps({"model_type": "ernie", **SIZES, **changes}), "utf-8")
    return "small.json"


@pytest.mark.parametrize(
    ("family", "head", "sizes", "names", "pad"),
    [
        ("Ernie", "Sequence", SIZES, WITH_TYPES, 0),
        ("Ernie", "Token", SIZES, WITH_TYPES, 0),
        ("Bert", "Sequence", SIZES, WITH_TYPES, 0),
        ("Roberta", "Sequence", SIZES, WITH_TYPES, 0),
        ("Roberta", "Token", XLM_R, ["input_ids", "attention_mask"], 1),
    ],
)
def test_a_checkpoint_is_served_with_its_own_logits(
    checkpoint: Checkpoint, family: str, head: str, sizes: dict[str, Any], names: list[str], pad: int
) -> None:
    feeds = feeds_of(names, pad)
    source = checkpoint(family, head, sizes, feeds)
    assert main(["paddle", source, "out"]) == 0
    assert main(["serving", "out", "served", "--with-notes"]) == 0
    model = load_serving_model("served")
    assert [(feed.alias, feed.dtype, feed.shape) for feed in model.feeds] == [
        (name, "int64", (-1, -1)) for name in names
    ]
    assert model.labels == tuple(LABELS.values())
    assert model.additions["task"] == (SEQUENCE if head == "Sequence" else TOKEN)
    assert (model.directory / "vocab.txt").is_file()
    assert model.padding is not None
    pads = {alias: padding.value for alias, padding in model.padding.feeds.items()}
    assert pads == {name: pad if name == "input_ids" else 0 for name in names}
    assert dict(model.padding.fetches) == ({"logits": 1} if head == "Token" else {})
    answers = create_predictor(model, models.local_conf()).run(feeds)
    np.testing.assert_allclose(answers["logits"], np.load("mine/logits.npy"), rtol=0, atol=1e-4)
    reports = json.loads(Path("out/parity.json").read_text("utf-8"))
    assert [(report["step"], report["passed"]) for report in reports] == [("dynamic to static", True)]


def test_a_configuration_alone_takes_random_weights_and_the_inputs_that_are_named() -> None:
    spec = "attention_mask:int64[-1,-1];input_ids:int64[-1,-1];position_ids:int64[-1,-1]"
    more = ["--random-weights", "--num-labels", "4", "--task", TOKEN, "--input-spec", spec]
    assert main(["paddle", small_config(), "out", *more]) == 0
    assert main(["serving", "out", "served", "--with-notes", "--fetch-alias", "tags"]) == 0
    model = load_serving_model("served")
    assert [feed.alias for feed in model.feeds] == ["input_ids", "position_ids", "attention_mask"]
    assert [(fetch.alias, fetch.shape) for fetch in model.fetches] == [("tags", (-1, -1, 4))]


def test_a_model_that_is_up_to_date_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config()
    assert main(["paddle", config, "out", "--random-weights", "--dry-run"]) == 0
    assert not Path("out").exists()
    assert main(["paddle", config, "out", "--random-weights"]) == 0
    made = Path("out").stat().st_ino
    assert main(["paddle", config, "out", "--random-weights"]) == 0
    assert "out is up to date." in capsys.readouterr().out and Path("out").stat().st_ino == made
    small_config(hidden_size=16)
    assert main(["paddle", config, "out", "--random-weights"]) == 0
    assert Path("out").stat().st_ino != made


def test_a_name_is_not_downloaded_but_can_be_tried_with_random_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = refused(capsys, "ernie-3.0-nano-zh", "out")
    assert "nothing is downloaded" in told and "--random-weights" in told
    told = refused(capsys, "ernie-3.0-nona-zh", "out", "--random-weights")
    assert "did you mean ernie-3.0-nano-zh?" in told
    assert main(["paddle", "ernie-3.0-nano-zh", "out", "--random-weights", "--lengths", "7"]) == 0
    notes = json.loads(Path("out/model_notes.json").read_text("utf-8"))
    assert notes["architecture"] == "ErnieForSequenceClassification"


def test_weights_that_do_not_fit_are_told(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    source = checkpoint("Ernie", "Sequence", SIZES, feeds_of(WITH_TYPES))
    assert "'classifier.weight' has shape [32, 3]" in refused(capsys, source, "out", "--num-labels", "5")
    weights = Path(source, "model_state.pdparams")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "mine/model_state.pdparams is not a file of paddle.save" in refused(capsys, source, "out")
    weights.unlink()
    assert "has no weights of Paddle's" in refused(capsys, source, "out")
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    Path(source, "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "use `paddlewheel convert torch`" in refused(capsys, source, "out")


def test_what_is_no_paddlenlp_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert "empty has no config.json or model_config.json" in refused(capsys, "empty", "out")
    assert "no/such is not there" in refused(capsys, "no/such", "out")
    assert "model_type 'gpt2' is not one of bert," in refused(
        capsys, small_config(model_type="gpt2"), "out", "--random-weights"
    )
    Path("cut.json").write_text('{"model_type": "er', "utf-8")
    assert "cut.json is not a configuration in JSON" in refused(capsys, "cut.json", "out", "--random-weights")
    config = small_config()
    assert "a configuration without weights" in refused(capsys, config, "out")
    spec = "input_ids:int64[-1,-1];words:int64[-1,-1]"
    told = refused(capsys, config, "out", "--random-weights", "--input-spec", spec)
    assert told.startswith("--input-spec: the model has no input 'words'; it takes input_ids,")
    labelled = ("--num-labels", "3", "--labels", "a,b")
    assert "--labels names 2 classes" in refused(capsys, config, "out", "--random-weights", *labelled)
    assert "--task is for models of PaddleNLP" in refused(capsys, "m:f", "out", "--task", TOKEN)


def test_a_folder_of_paddlenlp_2_3_and_weights_in_safetensors_are_read(checkpoint: Checkpoint) -> None:
    feeds = feeds_of(WITH_TYPES)
    folder = Path(checkpoint("Ernie", "Sequence", SIZES, feeds))
    (folder / "config.json").unlink()
    inner = {"init_args": [{**SIZES, "hidden_act": "gelu"}], "init_class": "ErnieModel"}
    old = {"init_args": [inner], "num_classes": 3, "init_class": "ErnieForSequenceClassification"}
    (folder / "model_config.json").write_text(json.dumps(old), "utf-8")
    weights = folder / "model_state.pdparams"
    write_safetensors(folder / "model.safetensors", read_params(weights))
    weights.unlink()
    assert main(["all", str(folder), "served", "--lengths", "5,9"]) == 0
    answers = create_predictor(load_serving_model("served"), models.local_conf()).run(feeds)
    np.testing.assert_allclose(answers["logits"], np.load(folder / "logits.npy"), rtol=0, atol=1e-4)


def write_safetensors(file: Path, arrays: dict[str, Any]) -> None:
    """As Paddle writes it: sizes and places of all tensors as JSON, then their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pd"}}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))
