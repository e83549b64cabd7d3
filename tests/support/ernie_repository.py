"""The repository of an ERNIE deployment as its authors wrote it, with small weights: two ensembles of texts.

`ernie_seqcls` gives a label and a confidence for each text, `ernie_tokencls` one for each token of it. Both
have a tokenizer and a postprocess of Python, and an ONNX model between, which is given ids and types alone.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.support.onnx_models import onnx_file

CHARACTERS = "国足客场两球取胜央行宣布下调存款准备金率天气晴abcdefghijklmnopqrstuv"
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(CHARACTERS)]
_TOKENIZER = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from paddlenlp.transformers import AutoTokenizer


class TritonPythonModel(object):
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"], "ernie")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, use_faster=True)
        self.model_config = json.loads(args["model_config"])
        print("model_config:", self.model_config)
        self.input_names = [one["name"] for one in self.model_config["input"]]
        self.output_names = [one["name"] for one in self.model_config["output"]]
        self.output_dtype = [
            pb_utils.triton_string_to_numpy(one["data_type"]) for one in self.model_config["output"]
        ]

    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, self.input_names[0]).as_numpy()
            data = [i[0].decode("utf-8") for i in data]
            data = self.tokenizer(data, max_length=128, padding=True, truncation=True)
            tensors = [
                pb_utils.Tensor(name, np.array(data[key], dtype=dtype))
                for name, key, dtype in zip(
                    self.output_names, ("input_ids", "token_type_ids"), self.output_dtype
                )
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def finalize(self):
        print("Cleaning up...")
"""
_POSTPROCESS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel(object):
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "POST_INPUT").as_numpy()
            exp_data = np.exp(data - np.max(data, axis=-1, keepdims=True))
            probs = exp_data / np.sum(exp_data, axis=-1, keepdims=True)
            labels = pb_utils.Tensor("POST_label", probs.argmax(axis=-1).reshape(len(data), -1))
            confidence = pb_utils.Tensor("POST_confidence", probs.max(axis=-1).reshape(len(data), -1))
            responses.append(pb_utils.InferenceResponse(output_tensors=[labels, confidence]))
        return responses
"""
_TENSOR = '{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {dims} }}\n'
_BATCHED = """
max_batch_size: 64
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group [ {{ count: {count} kind: KIND_CPU }} ]
"""
_ENSEMBLE = """
name: "{name}"
platform: "ensemble"
max_batch_size: 64
input [ {{ name: "INPUT" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "label" data_type: TYPE_INT64 dims: [ {labels} ] }},
         {{ name: "confidence" data_type: TYPE_FP32 dims: [ {labels} ] }} ]
ensemble_scheduling {{
  step [
    {{ model_name: "ernie_tokenizer" model_version: 1
      input_map {{ key: "INPUT_0" value: "INPUT" }}
      output_map {{ key: "OUTPUT_0" value: "tokenizer_input_ids" }}
      output_map {{ key: "OUTPUT_1" value: "tokenizer_token_type_ids" }} }},
    {{ model_name: "{name}_model" model_version: 1
      input_map {{ key: "input_ids" value: "tokenizer_input_ids" }}
      {types}
      output_map {{ key: "logits" value: "OUTPUT_2" }} }},
    {{ model_name: "{name}_postprocess" model_version: 1
      input_map {{ key: "POST_INPUT" value: "OUTPUT_2" }}
      output_map {{ key: "POST_label" value: "label" }}
      output_map {{ key: "POST_confidence" value: "confidence" }} }}
  ]
}}
"""
_TYPES = 'input_map { key: "token_type_ids" value: "tokenizer_token_type_ids" }'


def write_ernie(repository: Path, *, delay_us: int = 2000, count: int = 1) -> Path:
    """The seven models."""
    batched = _BATCHED.format(delay_us=delay_us, count=count)
    tokens = _tensors("input", ("INPUT_0", "STRING", "1"))
    tokens += _tensors("output", ("OUTPUT_0", "INT64", "-1"), ("OUTPUT_1", "INT64", "-1"))
    tokenizer = _write(repository / "ernie_tokenizer", f'backend: "python"{batched}{tokens}', _TOKENIZER)
    _write_vocabulary(tokenizer / "1" / "ernie")
    for name, labels, logits, types in (
        ("ernie_seqcls", "1", "3", _TYPES), ("ernie_tokencls", "-1", "[ -1, 3 ]", "")
    ):  # fmt: skip
        _write(repository / name, _ENSEMBLE.format(name=name, labels=labels, types=types))
        _write(repository / f"{name}_model", f'platform: "onnxruntime_onnx"{batched}')
        told = _tensors("input", ("POST_INPUT", "FP32", logits))
        told += _tensors("output", ("POST_label", "INT64", labels), ("POST_confidence", "FP32", labels))
        _write(repository / f"{name}_postprocess", f'backend: "python"{batched}{told}', _POSTPROCESS)
    _write_masking(repository / "ernie_seqcls_model" / "1" / "model.onnx")
    shutil.copyfile(onnx_file("tags"), repository / "ernie_tokencls_model" / "1" / "model.onnx")
    return repository


def _tensors(kind: str, *tensors: tuple[str, str, str]) -> str:
    return "".join(
        _TENSOR.format(kind=kind, name=name, data_type=data_type, dims=dims)
        for name, data_type, dims in tensors
    )


def _write(model: Path, config: str, code: str = "") -> Path:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(config, "utf-8")
    if code:
        (model / "1" / "model.py").write_text(code, "utf-8")
    return model


def _write_vocabulary(folder: Path) -> None:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(_WORDS) + "\n", "utf-8")
    told = {"tokenizer_class": "ErnieTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")


def _write_masking(target: Path) -> None:
    """The classifier, which makes its mask of the ids itself, as ERNIE does."""
    import onnx
    from onnx import helper, numpy_helper

    model: Any = onnx.load(onnx_file("classifier"))
    graph = model.graph
    (mask,) = (one for one in graph.input if one.name == "attention_mask")
    kind = mask.type.tensor_type.elem_type
    graph.input.remove(mask)
    import numpy as np

    graph.initializer.append(numpy_helper.from_array(np.int64(0), "pad_id"))
    made = [
        helper.make_node("Equal", ["input_ids", "pad_id"], ["is_pad"]),
        helper.make_node("Not", ["is_pad"], ["is_no_pad"]),
        helper.make_node("Cast", ["is_no_pad"], ["attention_mask"], to=kind),
    ]
    for at, node in enumerate(made):
        graph.node.insert(at, node)
    onnx.save(model, target)
