"""Export of a text service as a model repository: tokenizer, ONNX model, postprocess, and their ensemble.

NAME/                ensemble: texts to answers, with the tensors of the service
NAME_tokenizer/      texts to token ids (Python)
NAME_model/          token ids to scores (ONNX)
NAME_postprocess/    scores to answers (Python)
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.protobuf_text import format_message
from pipeline.models.serving_model import ServingModel
from pipeline.models.variants import load_for_engine
from pipeline.ops.text_tasks.tasks import text_task
from pipeline.ops.text_tasks.text_task import TextTask
from pipeline.triton.export import configs
from pipeline.triton.export.postprocess import Postprocess, create_postprocess
from pipeline.triton.export.standalone import bundle_module

TOKENIZER, MODEL, POSTPROCESS = "_tokenizer", "_model", "_postprocess"
_MODELS = "pipeline.triton.export.models"
_VERSION = "1"


def export_repository(
    name: str, model: ServingModel, out: Path, *, onnx: Path | None = None, force: bool = False
) -> list[str]:
    """Write the four models of a text service into the repository `out`. Returns their names.

    model: the service's model with its description. onnx: the ONNX file, where the model's folder has none.
    force: replace existing models. Raises ConfigError for a service that can't be exported, and for models
    that exist.
    """
    task = text_task(model)
    if task is None:
        raise ConfigError(
            f"{name} is no service of texts with one answer: its inputs and outputs in "
            f"{model.directory / 'serving.yml'} do not say how texts become labels"
        )
    post = create_postprocess(task)
    program = onnx or _find_onnx(model)
    check_no_model_exists(out, name, force=force)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export.", dir=out) as work:
        _write_models(Path(work), name, task, post, program)
        for model_name in get_model_names(name):
            shutil.rmtree(out / model_name, ignore_errors=True)
            (Path(work) / model_name).rename(out / model_name)
    return get_model_names(name)


def get_model_names(name: str) -> list[str]:
    """Return the names of the models of a service; the first is the ensemble."""
    return [name, *(name + end for end in (TOKENIZER, MODEL, POSTPROCESS))]


def _write_models(work: Path, name: str, task: TextTask, post: Postprocess, program: Path) -> None:
    facts = inspect_onnx(program)
    graph = configs.build_graph(task, facts, program)
    config = configs.build_tokenizer_config(f"{name}{TOKENIZER}", task, graph, post)
    tokenizer = _write_model(work / f"{name}{TOKENIZER}", config, "tokenizer")
    task.library_tokenizer().save(str(tokenizer / "tokenizer.json"))
    onnx = _write_model(work / f"{name}{MODEL}", configs.build_onnx_config(f"{name}{MODEL}", task, graph))
    shutil.copyfile(program, onnx / "model.onnx")
    for file in facts.data_files:
        (onnx / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program.parent / file, onnx / file)
    config = configs.build_postprocess_config(f"{name}{POSTPROCESS}", task, graph, post)
    last = _write_model(work / f"{name}{POSTPROCESS}", config, post.module)
    for file, content in post.files.items():
        (last / file).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
    for path in post.copies:
        shutil.copyfile(path, last / path.name)
    _write_model(work / name, configs.build_ensemble_config(name, task, graph, post))


def _write_model(folder: Path, config: ModelConfig, module: str = "") -> Path:
    """Write config.pbtxt, and model.py for a Python model. Returns the folder of the version."""
    version = folder / _VERSION
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(format_message(config), "utf-8")
    if module:
        (version / "model.py").write_text(bundle_module(f"{_MODELS}.{module}"), "utf-8")
    elif not config.backend:  # the version folder of an ensemble is empty
        (version / ".keep").touch()
    return version


def _find_onnx(model: ServingModel) -> Path:
    """Return the model's ONNX file. Raises ConfigError without one."""
    try:
        return load_for_engine(model.directory, "onnxruntime").program
    except ConfigError as exc:
        raise ConfigError(
            f"{model.directory} has no ONNX form, which is what Triton runs: `paddlewheel convert "
            f"to-onnx {model.directory} OUT` makes one; name it by --onnx OUT/model.onnx"
        ) from exc


def check_no_model_exists(out: Path, name: str, *, force: bool) -> None:
    """Raise ConfigError if one of the models exists in `out`, unless `force` is set."""
    present = [str(out / model_name) for model_name in get_model_names(name) if (out / model_name).exists()]
    if present and not force:
        raise ConfigError(f"there already: {', '.join(present)}; --force replaces what is there")
