"""The measured model repository of four models, for our server or for a Triton without the ONNX backend."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.engines.base import load_engine
from pipeline.models.serving_model import load_serving_model

ENSEMBLE = "bert"
_CODE = Path(__file__).parent / "models"
_HEAD = """
backend: "{backend}"
max_batch_size: {batch}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group [ {{ count: {count} kind: KIND_CPU }} ]
"""
_IDS = ("input_ids", "token_type_ids", "attention_mask")
_TENSORS = {
    "tokenizer": (("input", "text", "STRING", 1), *(("output", name, "INT64", -1) for name in _IDS)),
    "network": (*(("input", name, "INT64", -1) for name in _IDS), ("output", "logits", "FP32", -1)),
    "postprocess": (
        ("input", "logits", "FP32", -1), ("output", "label", "STRING", 1), ("output", "confidence", "FP32", 1)
    ),
}  # fmt: skip
_TENSOR = '{} {{ name: "{}" data_type: TYPE_{} dims: {} }}\n'
_ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
_ENSEMBLE = """
platform: "ensemble"
max_batch_size: {batch}
parameters {{ key: "paddlewheel.ensemble_workers" value {{ string_value: "{workers}" }} }}
input {{ name: "text" data_type: TYPE_STRING dims: 1 }}
output [ {{ name: "label" data_type: TYPE_STRING dims: 1 }},
         {{ name: "confidence" data_type: TYPE_FP32 dims: 1 }} ]
ensemble_scheduling {{ step [
  {{ model_name: "tokenizer" model_version: -1 input_map {{ key: "text" value: "text" }}
    output_map [ {{ key: "input_ids" value: "ids" }}, {{ key: "token_type_ids" value: "types" }},
                 {{ key: "attention_mask" value: "mask" }} ] }},
  {{ model_name: "network" model_version: -1
    input_map [ {{ key: "input_ids" value: "ids" }}, {{ key: "token_type_ids" value: "types" }},
                {{ key: "attention_mask" value: "mask" }} ]
    output_map {{ key: "{logits}" value: "logits" }} }},
  {{ model_name: "postprocess" model_version: -1 input_map {{ key: "logits" value: "logits" }}
    output_map [ {{ key: "label" value: "label" }}, {{ key: "confidence" value: "confidence" }} ] }} ] }}
"""


def write_repository(
    folder: Path,
    model: Path,
    *,
    batch: int,
    instances: int,
    delay_us: int = 0,
    workers: int = 0,
    python_alone: bool = False,
) -> Path:
    """Write the repository.

    model: a serving model of ONNX. delay_us: maximum wait of a partial batch. workers: number of workers that
    run all steps. python_alone: the network is a Python model, too.
    """
    served = load_serving_model(model)
    for name, tensors in _TENSORS.items():
        onnx = name == "network" and not python_alone
        count = instances if name == "network" else 1
        backend = "onnxruntime" if onnx else "python"
        head = _HEAD.format(backend=backend, batch=batch, count=count, delay_us=delay_us)
        keys = _ONE_THREAD if onnx else "".join(_TENSOR.format(*tensor) for tensor in tensors)
        _write(folder / name, head + keys)
        if not onnx:
            shutil.copyfile(_CODE / f"{name}.py", folder / name / "1" / "model.py")
    shutil.copyfile(served.program, folder / "network" / "1" / "model.onnx")
    shutil.copyfile(served.directory / "vocab.txt", folder / "tokenizer" / "1" / "vocab.txt")
    (folder / "postprocess" / "1" / "labels.txt").write_text("\n".join(served.labels), "utf-8")
    _, (fetch,) = load_engine("onnxruntime").signature_of(served.program)
    logits = "logits" if python_alone else fetch.name
    _write(folder / ENSEMBLE, _ENSEMBLE.format(batch=batch, logits=logits, workers=workers))
    return folder


def _write(model: Path, config: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(config, "utf-8")
