"""Conversion to serving models: from exported Paddle files, a static program, or a `paddle.nn.Layer`."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paddle_serving_client.inference_files import chosen_files, file_of_paddle_3
from paddle_serving_server.ours import claim
from pipeline.errors import ConversionError
from pipeline.models.serving_model import ServingModel, load_serving_model, write_serving_model

__all__ = [
    "inference_model_to_serving",
    "inference_model_to_serving_multi",
    "save_dygraph_model",
    "save_model",
]

CONF = {"serving_server": "serving_server_conf.prototxt", "serving_client": "serving_client_conf.prototxt"}


def inference_model_to_serving(
    dirname: str | Path,
    serving_server: str | Path = "serving_server",
    serving_client: str | Path = "serving_client",
    model_filename: str | None = None,
    params_filename: str | None = None,
    encryption: bool = False,
    key_len: int = 128,
    encrypt_conf: Any = None,
    show_proto: bool = False,
    feed_alias_names: str | None = None,
    fetch_alias_names: str | None = None,
) -> tuple[list[str], list[str]]:
    """Convert an exported Paddle model to a serving model; return its input names and its output names.

    Writes the folders `serving_server` (model and description) and `serving_client` (description).
    `model_filename` and `params_filename` select files of `dirname`. If x.pdmodel is named but only x.json
    (of Paddle 3) exists, x.json is converted, with a message on standard error. Without `fetch_alias_names`,
    its outputs then have the names that Paddle 2 gives them: `save_infer_model/scale_0.tmp_0`, ... The
    outputs of the serving model are first compared with those of the exported model. Alias names are
    comma-separated, in the model's order. `show_proto` prints the description and writes nothing. Raises
    ConversionError for an unusable model and for a folder with other content.
    """
    _refuse_encryption(encryption)
    targets = _targets(serving_server, serving_client)
    renamed = file_of_paddle_3(Path(dirname), model_filename)
    feeds, fetches = _names(feed_alias_names), _names(fetch_alias_names)
    with tempfile.TemporaryDirectory(prefix="converting-") as work:
        source = chosen_files(Path(dirname), Path(work), renamed or model_filename, params_filename)
        with _paddle_as_it_was():
            model = _converted(source, Path(work), feeds, fetches, old_names=renamed is not None)
        _deliver(model, targets, show_proto=show_proto)
    names = [fetch.name for fetch in model.fetches]
    if renamed is not None:
        names = [fetch.alias for fetch in model.fetches]
        sys.stderr.write(
            f"{Path(dirname, str(model_filename))} is not there: taken {renamed}, as Paddle 3 writes it; its "
            f" fetches are {', '.join(names)} (fetch_alias_names gives them other names)\n"
        )
    return [feed.name for feed in model.feeds], names


def inference_model_to_serving_multi(
    dirname: Sequence[str | Path],
    serving_server: Sequence[str | Path],
    serving_client: Sequence[str | Path],
    *args: Any,
    **options: Any,
) -> list[tuple[list[str], list[str]]]:
    """Convert several exported Paddle models, each to a `serving_server` and a `serving_client` folder.

    The lists have equal length. The other arguments are those of `inference_model_to_serving`, and apply to
    all models. No published version of Paddle Serving has this function. Raises ConversionError, before
    anything is written, for lists of unequal length.
    """
    if not len(dirname) == len(serving_server) == len(serving_client):
        raise ConversionError(
            f"{len(dirname)} programs, {len(serving_server)} server and {len(serving_client)} client "
            "folders; give one of each for every program."
        )
    return [
        inference_model_to_serving(*folders, *args, **options)
        for folders in zip(dirname, serving_server, serving_client, strict=True)
    ]


def save_model(
    server_model_folder: str | Path,
    client_config_folder: str | Path,
    feed_var_dict: Mapping[str, Any],
    fetch_var_dict: Mapping[str, Any],
    main_program: Any = None,
    encryption: bool = False,
    key_len: int = 128,
    encrypt_conf: Any = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    show_proto: bool = False,
    feed_alias_names: str | None = None,
    fetch_alias_names: str | None = None,
) -> None:
    """Write a static Paddle program (a model's graph) with its weights as a serving model.

    Only the part of the program from the inputs to the outputs is written. `feed_var_dict` and
    `fetch_var_dict` map the names that clients use to variables of the program. Outputs are stored in the
    order of these names. `main_program` is `paddle.static.default_main_program()` unless given; its weights
    are taken from the current scope. `model_filename` names the files; the suffix depends on the program.
    Raises ConversionError.
    """
    _refuse_encryption(encryption)
    targets = _targets(server_model_folder, client_config_folder)
    with _paddle_as_it_was() as paddle, tempfile.TemporaryDirectory(prefix="converting-") as work:
        fetches = dict(sorted(fetch_var_dict.items()))
        program = main_program if main_program is not None else paddle.static.default_main_program()
        source = Path(work, "source")
        stem = Path(model_filename or "model").stem.strip("_") or "model"
        try:
            paddle.static.save_inference_model(
                str(source / stem),
                list(feed_var_dict.values()),
                list(fetches.values()),
                paddle.static.Executor(paddle.CPUPlace()),
                program=program,
            )
        except Exception as exc:
            raise ConversionError(
                f"the program can't be exported, {', '.join(feed_var_dict)} to {', '.join(fetches)}: {exc}"
            ) from exc
        model = _converted(
            source,
            Path(work),
            _names(feed_alias_names) or list(feed_var_dict),
            _names(fetch_alias_names) or list(fetches),
        )
        _deliver(model, targets, show_proto=show_proto)


def save_dygraph_model(
    serving_model_folder: str | Path, client_config_folder: str | Path, model: Any
) -> None:
    """Write a `paddle.nn.Layer` as a serving model.

    Its inputs must have been declared with `paddle.jit.to_static(layer, input_spec=...)`. The layer is
    exported in evaluation mode, and is then returned to its previous mode. Raises ConversionError.
    """
    targets = _targets(serving_model_folder, client_config_folder)
    with _paddle_as_it_was() as paddle, tempfile.TemporaryDirectory(prefix="converting-") as work:
        training = getattr(model, "training", False)
        try:
            if training:
                model.eval()
            paddle.jit.save(model, str(Path(work, "source", "model")))
        except Exception as exc:
            raise ConversionError(
                f"the layer can't be exported ({exc}); name its inputs: paddle.jit.to_static(layer, "
                "input_spec=[paddle.static.InputSpec([None, 13], 'float32', 'x')])"
            ) from exc
        finally:
            if training:
                model.train()
        _deliver(_converted(Path(work, "source"), Path(work), (), ()), targets)


def _refuse_encryption(encryption: bool) -> None:
    if encryption:
        raise ConversionError("encrypted models are not supported; convert without encryption.")


@contextmanager
def _paddle_as_it_was() -> Iterator[Any]:
    """Context manager: yield the module paddle, and restore the script's mode and device at the end.

    A conversion changes mode and device.
    """
    claim("convert")
    from pipeline.engines.paddle.paddle_import import paddle

    static, device = not paddle.in_dynamic_mode(), paddle.device.get_device()
    try:
        yield paddle
    finally:
        paddle.device.set_device(device)
        if static:
            paddle.enable_static()


def _converted(
    source: Path, work: Path, feeds: Sequence[str], fetches: Sequence[str], *, old_names: bool = False
) -> ServingModel:
    """Convert the exported model in `source` to a serving model in `work`, and return it.

    feeds, fetches: names for its inputs and outputs; empty to keep the model's names. old_names: whether
    outputs without a name get the names that Paddle 2 gave them.
    """
    from convert import convert_serving
    from convert.programs.inference_program import read_program

    if old_names and not fetches:
        count = len(read_program(source).fetches)
        fetches = [f"save_infer_model/scale_{number}.tmp_0" for number in range(count)]
    convert_serving(source, work / "model", fetch_alias=fetches)
    model = load_serving_model(work / "model")
    if not feeds:
        return model
    if len(feeds) != len(model.feeds) or len(set(feeds)) != len(feeds):
        raise ConversionError(
            f"feed_alias_names gives {', '.join(feeds)}, but the model has {len(model.feeds)} feeds "
            f"({', '.join(feed.name for feed in model.feeds)}); name each once, in this order."
        )
    renamed = [dataclasses.replace(feed, alias=alias) for feed, alias in zip(model.feeds, feeds, strict=True)]
    write_serving_model(work / "renamed", model.program, model.params, renamed, model.fetches)
    return load_serving_model(work / "renamed")


def _deliver(model: ServingModel, targets: Mapping[str, Path], *, show_proto: bool = False) -> None:
    """Move the converted model to the target folders, or only print its description with `show_proto`."""
    if show_proto:
        print((model.directory / CONF["serving_server"]).read_text("utf-8"))  # noqa: T201
        return
    for part, target in targets.items():
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        shutil.move(model.directory.parent / part, target)


def _targets(server: str | Path, client: str | Path) -> dict[str, Path]:
    """Return the output folders of a serving model, by part: serving_server and serving_client.

    Raises ConversionError for a folder with other content.
    """
    targets = {"serving_server": Path(server), "serving_client": Path(client)}
    for part, target in targets.items():
        foreign = target.exists() and not (target / CONF[part]).is_file()
        if foreign and (not target.is_dir() or any(target.iterdir())):
            raise ConversionError(
                f"{target} exists and is no serving model; name another folder or remove it."
            )
    return targets


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
