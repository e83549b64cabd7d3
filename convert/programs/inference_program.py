"""Reads an exported model from disk: its inputs, its outputs, and the limits of its token ids.

`python -m convert.programs.inference_program FOLDER` prints inputs, outputs and limits as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.programs.engines import first_line, import_paddle
from convert.programs.program_feeds import ProgramTensor
from convert.programs.torch_file import (
    EXPORTED,
    TORCHSCRIPT,
    as_program_tensors,
    find_torch_file,
    read_file_signature,
    read_format,
)
from pipeline.engines.paddle.program import find_tokenizer_op, inspect_program, ragged_variables
from pipeline.errors import ConfigError, ConversionError, ServingError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import (
    SERVER_CONF,
    SERVER_FOLDER,
    ServingModel,
    find_model_files,
)
from pipeline.models.tensor_spec import BY_PROGRAM

# A protobuf is limited to 2 GiB: x2paddle reads all weights in one, and paddle2onnx writes an empty file
# above the limit, also with separate weights.
PROTOBUF_BYTES = 2_100_000_000

PADDLE_FORMATS = ("pir", "pdmodel")
TORCH_FORMATS = (TORCHSCRIPT, EXPORTED)

# Between a feed of ids and the embedding that looks them up.
_SHAPE_ONLY = {"pd_op.cast", "pd_op.reshape", "pd_op.unsqueeze", "pd_op.squeeze", "pd_op.flatten"}


@dataclass(frozen=True)
class InferenceProgram:
    """An exported Paddle, ONNX or PyTorch model on disk: its files, inputs (feeds) and outputs (fetches).

    A Paddle "program" is the file with the model's graph; the weights are in a second file.
    """

    program: Path
    params: Path | None
    feeds: tuple[ProgramTensor, ...]
    fetches: tuple[ProgramTensor, ...]  # with the names under which the engine returns them
    id_limits: Mapping[str, int]  # rows of the embedding that looks up a feed: ids must be below
    ragged: frozenset[str] = frozenset()  # feeds that hold sequences (LoD)
    format: str = "pir"
    data_files: tuple[Path, ...] = ()  # external weights of an ONNX model

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the model: graph, weights, and external weights of an ONNX model."""
        return (self.program, *([self.params] if self.params else []), *self.data_files)


def read_model(source: Path) -> InferenceProgram:
    """Read the description of an exported model of any engine, as `read_program` does.

    `source` may also be a file of TorchScript or torch.export, or the folder of such a file. Raises
    ConversionError.
    """
    file = find_torch_file(str(source))
    if file is None:
        return read_program(source)
    feeds, fetches = map(as_program_tensors, read_file_signature(file))
    if not feeds:
        raise ConversionError(
            f"{file} is TorchScript, which declares no dtypes and shapes; `paddlewheel convert all {source} "
            "OUT --input-spec ...` makes a serving model of it."
        )
    return InferenceProgram(file, None, feeds, fetches, {}, format=read_format(file))


def read_program(source: Path) -> InferenceProgram:
    """Read the description of an exported model: a .onnx file, or a folder with one Paddle or ONNX model.

    A Paddle model is a *.json or *.pdmodel file with a *.pdiparams file, of any names. Raises ConversionError
    if there is no model, or if it can't be read.
    """
    if source.is_file() and source.suffix == ".onnx":
        return _read_onnx(source)
    if (file := find_torch_file(str(source))) is not None:
        raise ConversionError(
            f"{file} is a model of PyTorch, and a Paddle or ONNX model is needed; `paddlewheel convert torch "
            f"{source} OUT --to onnx` makes an ONNX model of it."
        )
    if not source.is_dir():
        raise ConversionError(
            f"{source} is neither a folder nor a .onnx file; name one with *.json or *.pdmodel and "
            "*.pdiparams, or *.onnx."
        )
    try:
        model_files = find_model_files(source)
    except ConfigError as exc:
        if (source / SERVER_FOLDER).is_dir():
            raise ConversionError(
                f"{source} is a serving model already; serve it, or name {source / SERVER_FOLDER} to make "
                "another of its program."
            ) from exc
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc
    program, params, kind = model_files.program, model_files.params, model_files.format
    if kind == "onnx":
        return _read_onnx(program)
    import_paddle()
    try:
        # Some damaged files, and a tokenizer beside weights, crash Paddle natively.
        model = ServingModel(source, program, params, (), (), format=kind)
        inspect_program(model)
        if operator := find_tokenizer_op(model):
            raise ConfigError(
                f"{program} takes texts, by {operator}, and can't be converted: serve it with the prototxt "
                "that Paddle Serving made for it"
            )
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc
    names = fetch_names(program, params)
    if kind == "pir":
        return _read_pir(program, params, names)
    return _read_program_desc(program, params, names)


def _read_onnx(path: Path) -> InferenceProgram:
    try:
        facts = inspect_onnx(path)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc
    files = []
    for name in facts.data_files:
        file = path.parent / name
        if Path(name).name != name:
            raise ConversionError(
                f"{path} has weights in {name}, in another folder; save the model with its weights beside it."
            )
        if not file.is_file():
            raise ConversionError(f"{path} has weights in {name}, which is not beside it; copy it there.")
        files.append(file)
    feeds, fetches = (
        tuple(ProgramTensor(v.name, v.dtype, v.shape) for v in variables)
        for variables in (facts.feeds, facts.fetches)
    )
    return InferenceProgram(
        path, None, feeds, fetches, facts.id_limits, format="onnx", data_files=tuple(files)
    )


def unoptimised_predictor(program: Path, params: Path | None) -> Any:
    """Load a Paddle model into a Paddle Inference predictor on the CPU, without graph optimisation.

    Raises ConversionError if Paddle can't load it.
    """
    import_paddle()
    from paddle import inference

    config = inference.Config(str(program), str(params) if params else "")
    config.disable_gpu()
    config.disable_glog_info()
    config.switch_ir_optim(False)
    if hasattr(config, "disable_mkldnn"):
        config.disable_mkldnn()
    try:
        return inference.create_predictor(config)
    except Exception as exc:
        raise ConversionError(f"{program} can't be loaded by Paddle: {first_line(exc)}.") from exc


def fetch_names(program: Path, params: Path | None) -> tuple[str, ...]:
    """Return the names, in order, under which Paddle Inference returns a model's outputs.

    The model is loaded.
    """
    return tuple(unoptimised_predictor(program, params).get_output_names())


def _read_pir(program: Path, params: Path | None, names: tuple[str, ...]) -> InferenceProgram:
    import paddle

    layer = paddle.jit.load(str(program.with_suffix("")))
    # TranslatedLayer has no public way to its specs.
    feeds = tuple(_spec(s.name, s.dtype, s.shape) for s in layer._input_spec())
    outputs = layer._output_spec()
    fetches = tuple(_spec(n, s.dtype, s.shape) for n, s in zip(names, outputs, strict=True))
    limits: dict[str, int] = {}
    for op in layer.program().global_block().ops:
        if op.name() == "pd_op.data":
            limit = _embedding_rows(op.result(0), depth=4)
            if limit:
                limits[op.attrs()["name"]] = limit
    return InferenceProgram(program, params, feeds, fetches, limits)


def _embedding_rows(value: Any, depth: int) -> int:
    """Return the rows of the smallest embedding table that looks up `value`; 0 if no embedding does.

    depth: maximum number of casts and reshapes between `value` and the embedding.
    """
    rows = []
    for op in value.all_used_ops():
        if op.name() == "pd_op.embedding" and op.operand_source(0).is_same(value):
            rows.append(int(op.operand_source(1).shape[0]))
        elif op.name() in _SHAPE_ONLY and depth:
            rows.append(_embedding_rows(op.result(0), depth - 1))
    return min(filter(None, rows), default=0)


def _spec(name: str, dtype: Any, shape: Any) -> ProgramTensor:
    dims = tuple(int(dim) if int(dim) >= 0 else -1 for dim in shape)
    return ProgramTensor(name, str(dtype).rpartition(".")[2], dims)


def _read_program_desc(program: Path, params: Path | None, names: tuple[str, ...]) -> InferenceProgram:
    """Read a .pdmodel file as protobuf, because the static API of Paddle 3 loads only .json programs."""
    from paddle.base.proto import framework_pb2

    desc = framework_pb2.ProgramDesc()
    try:
        desc.ParseFromString(program.read_bytes())
    except Exception as exc:
        raise ConversionError(f"{program} is not a Paddle program: {first_line(exc)}.") from exc
    block = desc.blocks[0]
    tensors = {v.name: v.type.dense_tensor.tensor for v in block.vars}

    def spec(name: str) -> ProgramTensor:
        number = tensors[name].data_type
        if number not in BY_PROGRAM:
            kind = framework_pb2.VarType.Type.Name(number)
            raise ConversionError(f"{program}: {name} is of type {kind}, which can't be served.")
        return _spec(name, BY_PROGRAM[number].name, tensors[name].dims)

    # The operators may be in reverse order; `col` is the position among the arguments.
    columns = {
        op.outputs[0].arguments[0]: next((a.i for a in op.attrs if a.name == "col"), 0)
        for op in block.ops
        if op.type == "feed"
    }
    feeds = tuple(spec(name) for name in sorted(columns, key=columns.__getitem__))
    limits = {}
    for op in block.ops:
        if op.type in ("lookup_table", "lookup_table_v2"):
            inputs = {i.parameter: i.arguments[0] for i in op.inputs}
            limits[inputs["Ids"]] = int(tensors[inputs["W"]].dims[0])
    feed_names = {feed.name for feed in feeds}
    limits = {name: limit for name, limit in limits.items() if name in feed_names}
    fetches = tuple(spec(name) for name in names)
    ragged = ragged_variables(program) & feed_names
    return InferenceProgram(program, params, feeds, fetches, limits, ragged, format="pdmodel")


def serving_folder(source: Path) -> Path | None:
    """Return the folder with a serving model's prototxt: `source`, or serving_server/ in it; else None."""
    for folder in (source, source / SERVER_FOLDER):
        if (folder / SERVER_CONF).is_file():
            return folder
    return None


def main(folder: Path) -> int:
    """Print the inputs, outputs and id limits of the model in a folder as JSON; return the exit code."""
    try:
        program = read_program(folder)
    except ServingError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return 1
    sides = [
        [(spec.name, spec.dtype, spec.shape) for spec in side] for side in (program.feeds, program.fetches)
    ]
    sys.stdout.write(f"\n{json.dumps([*sides, dict(program.id_limits)])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
