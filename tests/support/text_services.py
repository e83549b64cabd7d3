"""Small models of texts in folders as people have them, and services of them by `paddlewheel text`.

The models' weights mean nothing. That of entities gives each word of its vocabulary the class that a test
asks for, so that what comes out can be checked by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import BertWordPieceTokenizer

from pipeline.models.additions import read_additions, write_additions
from pipeline.models.serving_model import ADDITIONS, SERVER_FOLDER
from tests.support import onnx_models
from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NLI = ("contradiction", "neutral", "entailment")
CLASSES = 9  # of the model of entities
ROWS = 270  # of its table
WORDS = tuple("国足客场两球取胜央行宣布下调存款准备金率新电动车体育财经这是的。，" + "abcdefgh")
Array = np.ndarray[Any, np.dtype[Any]]


class TextProcess(ServiceProcess):
    """`paddlewheel text MODEL ...`, stopped on leaving the `with` block."""

    def __init__(self, model: Path, *options: str, name: str = "texts", wait: bool = True) -> None:
        ports = {"http_port": free_port(), "rpc_port": free_port()}
        own = ["--http-port", str(ports["http_port"]), "--rpc-port", str(ports["rpc_port"]), "--name", name]
        own += [] if "--engine" in options else ["--engine", "onnxruntime"]
        started = ["pipeline", "text", str(model), *own, *options]
        super().__init__("-m", ports, arguments=started, folder=ROOT, wait=wait, name=name)

    def rows(self, *texts: Any, status: int = 200, **parameters: Any) -> Any:
        """The predictions of KServe v1 for texts, or instances; its refusal where `status` is one."""
        instances = [text if isinstance(text, dict) else {"text": text} for text in texts]
        body = {"instances": instances, **({"parameters": parameters} if parameters else {})}
        answer = self.http(f"/v1/models/{self.name}:predict", json.dumps(body))
        assert answer.status == status, answer
        return answer.json["predictions"] if status == 200 else answer.json["error"]


def classifier(folder: Path, labels: Sequence[str] = (), **config: Any) -> Path:
    """A folder with a classifier of texts or pairs, in three classes, as transformers names them."""
    target = onnx_models.bare(folder, "classifier")
    (target / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS][:64]), "utf-8")
    _write_config(target, "BertForSequenceClassification", labels, config)
    return target


def served_classifier(folder: Path, labels: Sequence[str]) -> Path:
    """The same as a serving model, as `convert` leaves it: it declares that texts may be padded."""
    model = onnx_models.serving(folder) / SERVER_FOLDER
    (model / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS][:64]), "utf-8")
    write_additions(model / ADDITIONS, {**read_additions(model / ADDITIONS), "labels": list(labels)})
    return model


def entity_model(folder: Path, labels: Sequence[str], words: Mapping[str, str]) -> Path:
    """A folder with a model of entities. words: the label of each word; of all others it is the first."""
    target = onnx_models.bare(folder, "token_classes")
    number_of = {label: number for number, label in enumerate(labels)}
    vocabulary = [f"[unused{number}]" for number in range(ROWS)]
    free = {number: list(range(number, ROWS, CLASSES)) for number in range(CLASSES)}
    for word, label in {**dict.fromkeys(SPECIAL, labels[0]), **words}.items():
        vocabulary[free[number_of[label]].pop(0)] = word
    (target / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    # A class that no word has, named as the others are.
    form = "I-unused{}" if labels[-1].startswith(("B-", "I-", "S-", "U-")) else "unused{}"
    form = "unused{}-I" if labels[-1].endswith("-S") else form
    filled = [*labels, *(form.format(number) for number in range(len(labels), CLASSES))]
    _write_config(target, "BertForTokenClassification", filled, {})
    return target


def _write_config(folder: Path, architecture: str, labels: Sequence[str], more: Mapping[str, Any]) -> None:
    named = {"id2label": {str(number): label for number, label in enumerate(labels)}} if labels else {}
    config = {"architectures": [architecture], "model_type": "bert", **named, **more}
    (folder / "config.json").write_text(json.dumps(config, ensure_ascii=False), "utf-8")


def logits_of(model: Path, texts: Iterable[str | tuple[str, str]]) -> Array:
    """What the bare classifier answers to texts or pairs, each run by itself: [texts, 3]."""
    tokenizer = BertWordPieceTokenizer(str(model / "vocab.txt"))
    (program,) = model.glob("*.onnx")
    session = onnxruntime.InferenceSession(program)
    rows = []
    for text in texts:
        encoded = tokenizer.encode(*((text,) if isinstance(text, str) else text))
        feeds = {
            "input_ids": encoded.ids,
            "token_type_ids": encoded.type_ids,
            "attention_mask": encoded.attention_mask,
        }
        rows.append(session.run(["logits"], {name: np.array([ids]) for name, ids in feeds.items()})[0][0])
    return np.stack(rows)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
