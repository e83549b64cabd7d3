"""Infinity: `python -m bench.peers.apps.infinity_app PORT`, with its ONNX engine.

The working folder takes the model in the form of Hugging Face, which Infinity loads.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import yaml

FILES = Path(os.environ["PEER_MODEL"], "serving_server")
OUTPUT = "logits"  # the name that Infinity expects
FLAGS = ("--no-bettertransformer", "--no-model-warmup")  # the warm-up sends more tokens than the model has


def write_model(folder: Path) -> None:
    folder.mkdir()
    model = onnx.load(FILES / "model.onnx")
    (output,) = model.graph.output
    model.graph.node.append(onnx.helper.make_node("Identity", [output.name], [OUTPUT]))
    output.name = OUTPUT
    onnx.save(model, folder / "model.onnx")
    shutil.copy(FILES / "vocab.txt", folder)
    labels = yaml.safe_load((FILES / "serving.yml").read_text(encoding="utf-8"))["labels"]
    words = (FILES / "vocab.txt").read_text(encoding="utf-8").splitlines()
    config: dict[str, Any] = {
        "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": len(words),
        "id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)},
    }  # fmt: skip
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def main() -> None:
    folder = Path("model").absolute()
    write_model(folder)
    options = {
        "model-id": ".", "served-model-name": "classifier", "engine": "optimum", "device": "cpu",
        "batch-size": os.environ["PEER_BATCH"], "host": "127.0.0.1", "port": sys.argv[1],
        "log-level": "warning",
    }  # fmt: skip
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    os.environ |= {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "cache")}
    os.chdir(folder)  # Infinity finds the ONNX file of a local model by a relative path alone
    os.execvp("infinity_emb", ["infinity_emb", "v2", *arguments, *FLAGS])


if __name__ == "__main__":
    main()
