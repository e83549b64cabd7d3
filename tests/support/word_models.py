"""A model repository of texts: Python and ONNX models, ensembles of them, and models that can't be served."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.onnx_models import onnx_file
from tests.support.triton_repository import write_model

TEXT = 'input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
WORDS = """
class TritonPythonModel:
    def initialize(self, args):
        from neighbour import FACTOR
        self.factor = FACTOR

    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
            ids = np.zeros((len(texts), 4), np.float32)
            for row, text in enumerate(texts):
                if text == b"raise":
                    raise ValueError("no such word")
                if text == b"exit":
                    import os
                    os._exit(3)
                ids[row, : min(4, len(text))] = list(text[:4])
            outputs = {"IDS": ids * self.factor, "COPY": texts.reshape(-1, 1)}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in outputs.items()]))
        return answers
"""
LABELS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        told = [[f"{t.decode()}={s.sum():g}"] for t, s in zip(text[:, 0], scores)]
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array(told, dtype=object))])
"""
ASKS = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("this line is none of the configuration")
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        return config

    async def ask(self, model, tensor):
        asked = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["O"], inputs=[pb_utils.Tensor("I", tensor.as_numpy())]
        )
        answer = await asked.async_exec()
        if answer.has_error():
            return [[answer.error().message()]]
        return answer.output_tensors()[0].as_numpy()

    def execute(self, requests):
        import asyncio
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            model = "nobody" if text.as_numpy()[0, 0] == b"lost" else "same"
            told = np.array(asyncio.run(self.ask(model, text)), dtype=object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", told)]))
        return answers
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] },
         { name: "NUMBERS" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "labels" model_version: -1
    input_map { key: "SCORES" value: "scores" } input_map { key: "TEXT" value: "copy" }
    output_map { key: "TOLD" value: "LABEL" } },
  { model_name: "words" model_version: -1 input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "IDS" value: "NUMBERS" } output_map { key: "COPY" value: "copy" } },
  { model_name: "scaled" model_version: -1 input_map { key: "x" value: "NUMBERS" }
    output_map { key: "y" value: "scores" } } ] }
"""
NESTED = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "B" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "whole" model_version: 1 input_map { key: "TEXT" value: "A" }
    output_map { key: "LABEL" value: "l" } output_map { key: "NUMBERS" value: "n" } },
  { model_name: "same" input_map { key: "I" value: "l" } output_map { key: "O" value: "B" } } ] }
"""
BATCHED = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n"


def tensor(kind: str, name: str, data_type: str = "STRING", dims: int = 1) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {dims} }}\n'


def write_repository(folder: Path) -> Path:
    outputs = tensor("output", "IDS", "FP32", 4) + tensor("output", "COPY")
    words = write_model(folder, "words", f'backend: "python"\n{BATCHED}{TEXT}{outputs}', WORDS)
    (words / "1" / "neighbour.py").write_text("FACTOR = 2\n", "utf-8")
    told = tensor("input", "SCORES", "FP32", 4) + tensor("output", "TOLD")
    write_model(folder, "labels", f"# of texts\nbackend: 'python'\n{BATCHED}{TEXT}{told}", LABELS)
    (folder / "scaled" / "1").mkdir(parents=True)  # without config.pbtxt
    shutil.copyfile(onnx_file("scaled"), folder / "scaled" / "1" / "model.onnx")
    same = tensor("input", "I") + tensor("output", "O")
    write_model(folder, "same", f'backend: "identity"\nmax_batch_size: 8\n{same}')
    write_model(folder, "asks", None, ASKS)
    write_model(folder, "whole", ENSEMBLE)
    write_model(folder, "nested", NESTED)
    write_model(folder, "misspelt", f'backend: "python"\nmax_batch_sise: 8\n{TEXT}', WORDS)
    write_model(folder, "raises", f'backend: "python"\n{TEXT}{same}', "import nowhere_to_be_found\n")
    write_model(folder, "lacking", NESTED.replace('"same"', '"gone"'))
    return folder
