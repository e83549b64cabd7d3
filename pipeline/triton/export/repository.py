"""Writes a service of texts as a model repository: tokenizer, ONNX model, postprocess, and their ensemble.

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

from google.protobuf import text_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel
from pipeline.models.variants import load_for_engine
from pipeline.ops.text_tasks.tasks import text_task
from pipeline.ops.text_tasks.text_task import TextTask
from pipeline.triton.export import configs
from pipeline.triton.export.postprocess import Postprocess, create_postprocess
from pipeline.triton.export.standalone import standalone

TOKENIZER, MODEL, POSTPROCESS = "_tokenizer", "_model", "_postprocess"
_MODELS = "pipeline.triton.export.models"
_VERSION = "1"


def export_repository(
    name: str, model: ServingModel, out: Path, *, onnx: Path | None = None, force: bool = False
) -> list[str]:
    """Write the four models of a service of this name into the repository `out`; returns their names.

    model: described as the service has it. onnx: its ONNX form, where that is not with it. force: replaces
    models of these names. Raises ConfigError for a service that can't be so expressed, and for one that is
    there already.
    """
    task = text_task(model)
    if task is None:
        raise ConfigError(
            f"{name} is no service of texts with one answer: its inputs and outputs in "
            f"{model.directory / 'serving.yml'} do not say how texts become labels"
        )
    post = create_postprocess(task)
    program = onnx or _find_onnx(model)
    refuse_present(out, name, force=force)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export.", dir=out) as work:
        _write(Path(work), name, task, post, program)
        for one in get_model_names(name):
            shutil.rmtree(out / one, ignore_errors=True)
            (Path(work) / one).rename(out / one)
    return get_model_names(name)


def get_model_names(name: str) -> list[str]:
    """The models of a service of this name; the first is the ensemble."""
    return [name, *(name + end for end in (TOKENIZER, MODEL, POSTPROCESS))]


def _write(work: Path, name: str, task: TextTask, post: Postprocess, program: Path) -> None:
    facts = inspect_onnx(program)
    graph = configs.build_graph(task, facts, program)
    config = configs.tokenizer(f"{name}{TOKENIZER}", task, graph, post)
    tokenizer = _model(work / f"{name}{TOKENIZER}", config, "tokenizer")
    task.library_tokenizer().save(str(tokenizer / "tokenizer.json"))
    onnx = _model(work / f"{name}{MODEL}", configs.onnx_model(f"{name}{MODEL}", task, graph))
    shutil.copyfile(program, onnx / "model.onnx")
    for file in facts.data_files:
        (onnx / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program.parent / file, onnx / file)
    config = configs.postprocess(f"{name}{POSTPROCESS}", task, graph, post)
    last = _model(work / f"{name}{POSTPROCESS}", config, post.module)
    for file, content in post.files.items():
        (last / file).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
    for path in post.copies:
        shutil.copyfile(path, last / path.name)
    _model(work / name, configs.ensemble(name, task, graph, post))


def _model(folder: Path, config: ModelConfig, module: str = "") -> Path:
    """Write a model's configuration and, of a Python model, its code; returns the folder of its version."""
    version = folder / _VERSION
    version.mkdir(parents=True)
    text = text_format.MessageToString(config, as_utf8=True)
    (folder / "config.pbtxt").write_text(text, "utf-8")
    if module:
        (version / "model.py").write_text(standalone(f"{_MODELS}.{module}"), "utf-8")
    elif not config.backend:  # of an ensemble, whose version is a folder with nothing in it
        (version / ".keep").touch()
    return version


def _find_onnx(model: ServingModel) -> Path:
    """The model's ONNX form. Raises ConfigError where it has none."""
    try:
        return load_for_engine(model.directory, "onnxruntime").program
    except ConfigError as exc:
        raise ConfigError(
            f"{model.directory} has no ONNX form, which is what Triton runs: `paddlewheel convert "
            f"to-onnx {model.directory} OUT` makes one; name it by --onnx OUT/model.onnx"
        ) from exc


def refuse_present(out: Path, name: str, *, force: bool) -> None:
    """Raises ConfigError where the repository has one of the models, and it is not to be replaced."""
    present = [str(out / one) for one in get_model_names(name) if (out / one).exists()]
    if present and not force:
        raise ConfigError(f"there already: {', '.join(present)}; --force replaces what is there")
