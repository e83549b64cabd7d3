"""Functions that run a model on arrays, to compare outputs: Paddle Layer, exported model, serving model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convert.programs.engines import first_line, import_paddle
from convert.programs.inference_program import TORCH_FORMATS, InferenceProgram, unoptimised_predictor
from convert.programs.program_feeds import OTHER_INPUTS, Array, ProgramTensor
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines.feeds import LOD_SUFFIX
from pipeline.errors import ConversionError, ServingError
from pipeline.models.serving_model import ServingModel, Variable, load_serving_model, merge_model_settings

if TYPE_CHECKING:
    from convert.programs.file_model import FileModel

Runner = Callable[[Mapping[str, Array]], Sequence[Array]]
"""A function from feeds by name to outputs in the order of the fetches."""

Arguments = Sequence[ProgramTensor | None]
"""The positional arguments of a Layer's forward(); None for an omitted argument."""


def layer_runner(layer: Any, arguments: Arguments) -> Runner:
    """Return a function that runs a dynamic `paddle.nn.Layer` on arrays by input name.

    arguments: the inputs in the order of the Layer's forward(), None for an argument that is left out. The
    function returns the outputs in order, and raises ConversionError if the Layer can't run the arrays.
    """
    paddle = import_paddle()

    def run(arrays: Mapping[str, Array]) -> list[Array]:
        tensors = [feed and _to_paddle_tensor(paddle, arrays[feed.name], feed.dtype) for feed in arguments]
        with paddle.no_grad():
            try:
                outputs = layer(*tensors)
            except Exception as exc:
                shapes = ", ".join(f"{f.name} {list(arrays[f.name].shape)}" for f in arguments if f)
                raise ConversionError(
                    f"the layer can't run {shapes} ({first_line(exc)}); {OTHER_INPUTS}."
                ) from exc
        return [_to_array(tensor) for tensor in flatten_outputs(outputs)]

    return run


def program_runner(program: InferenceProgram) -> Runner:
    """Return a function that runs an exported model on the CPU, without graph optimisation.

    The function takes arrays by input name and returns the outputs in order. The rows of a LoD (ragged) input
    are run as one sequence. Raises ConversionError if the model can't be loaded or can't run the arrays.
    """
    if program.format == "onnx":
        return _onnx_runner(program)
    if program.format in TORCH_FORMATS:
        return _torch_runner(program)
    predictor = unoptimised_predictor(program.program, program.params)

    def run(arrays: Mapping[str, Array]) -> list[Array]:
        for feed in program.feeds:
            handle = predictor.get_input_handle(feed.name)
            handle.copy_from_cpu(np.ascontiguousarray(arrays[feed.name]))
            if feed.name in program.ragged:
                handle.set_lod([[0, len(arrays[feed.name])]])
        try:
            predictor.run()
        except Exception as exc:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            raise ConversionError(
                f"{program.program} can't run {shapes} ({first_line(exc)}); {OTHER_INPUTS}."
            ) from exc
        return [_float(predictor.get_output_handle(f.name).copy_to_cpu(), f.dtype) for f in program.fetches]

    return run


def _onnx_runner(program: InferenceProgram) -> Runner:
    import onnxruntime

    from pipeline.engines.onnxruntime.onnx_predictor import error_sentence, load_sentence

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # errors are raised anyway
    try:
        session = onnxruntime.InferenceSession(
            str(program.program), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as exc:
        raise ConversionError(f"{load_sentence(program.program, exc)}.") from exc
    names = [fetch.name for fetch in program.fetches]

    def run(arrays: Mapping[str, Array]) -> list[Array]:
        try:
            return list(map(np.asarray, session.run(names, dict(arrays))))
        except Exception as exc:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            why = f"{program.program} can't run {shapes} ({error_sentence(exc)})"
            raise ConversionError(f"{why}; {OTHER_INPUTS}.") from exc

    return run


def _torch_runner(program: InferenceProgram) -> Runner:
    from convert.programs.file_model import torch_runner

    return torch_runner(_load_file(program), program.feeds)


def probe_id_limits(program: InferenceProgram) -> dict[str, int]:
    """Return the number of rows in each input's embedding table in a PyTorch program, by input name.

    Empty if the program does not run on example inputs.
    """
    from convert.programs.file_model import example_inputs, find_id_limits

    model = _load_file(program)
    try:
        return find_id_limits(model, example_inputs(program.feeds, batch=2, length=4))
    except Exception:  # the parity of its runs tells why
        return {}


def _load_file(program: InferenceProgram) -> FileModel:
    from convert.programs.file_model import FileModel

    feeds = [Variable(v.name, v.name, v.dtype, v.shape) for v in program.feeds]
    return FileModel(program.program, feeds, [fetch.name for fetch in program.fetches])


def serving_runner(directory: Path, *, onednn: bool | None = None) -> ModelRunner:
    """Load the serving model in a folder into its engine, as a service does. Return a function that runs it.

    onednn: the value of `use_mkldnn` in config.yml; None for its default.
    """
    return ModelRunner(load_serving_model(directory), onednn=onednn)


class ModelRunner:
    """Runs a serving model with its engine: takes arrays by input name, and returns the outputs in order.

    The engine has the default settings of config.yml and the settings of the model's serving.yml.
    """

    def __init__(self, model: ServingModel, *, onednn: bool | None = None) -> None:
        from pipeline.engines import create_predictor

        self._alias_of = {feed.name: feed.alias for feed in model.feeds}
        self._ragged = [feed for feed in model.feeds if feed.is_lod]
        # A proof in another precision would prove nothing.
        settings = {"model_config": str(model.directory), "strict_precision": True, "use_mkldnn": onednn}
        conf = LocalServiceConf.model_validate(settings)
        self._predictor = create_predictor(model, merge_model_settings(model, conf))

    @property
    def fetches(self) -> tuple[Variable, ...]:
        """The model's outputs, with the shapes that the loaded engine reports."""
        return self._predictor.fetches

    def __call__(self, arrays: Mapping[str, Array]) -> list[Array]:
        feeds = {self._alias_of[name]: array for name, array in arrays.items()}
        feeds |= {feed.alias + LOD_SUFFIX: np.array([0, len(arrays[feed.name])]) for feed in self._ragged}
        try:
            answers = self._predictor.run(feeds)
        except ServingError as exc:
            raise ConversionError(f"the serving model can't be run: {exc.message.rstrip('.')}.") from exc
        return [_float(np.asarray(answers[fetch.alias]), fetch.dtype) for fetch in self.fetches]


def flatten_outputs(outputs: Any) -> list[Any]:
    """Return the tensors of a Layer's return value as a flat list, in the order of the exported outputs.

    Nested lists, tuples and dictionaries are flattened; None is left out.
    """
    if isinstance(outputs, list | tuple):
        return [tensor for item in outputs for tensor in flatten_outputs(item)]
    if isinstance(outputs, dict):
        return [tensor for item in outputs.values() for tensor in flatten_outputs(item)]
    return [] if outputs is None else [outputs]


def _to_paddle_tensor(paddle: Any, array: Array, dtype: str) -> Any:
    if dtype == "bfloat16":
        return paddle.to_tensor(widen_bfloat16(array)).astype("bfloat16")
    return paddle.to_tensor(array)


def _to_array(tensor: Any) -> Array:
    if str(tensor.dtype).endswith("bfloat16"):
        tensor = tensor.astype("float32")
    array: Array = tensor.numpy()
    return array


def _float(array: Array, dtype: str) -> Array:
    return widen_bfloat16(array) if dtype == "bfloat16" and array.dtype == np.uint16 else array


def widen_bfloat16(array: Array) -> Array:
    """Convert uint16 bit patterns of bfloat16 to float32."""
    return (array.astype(np.uint32) << 16).view(np.float32)
