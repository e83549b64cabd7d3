"""`inference_model_to_serving`: a serving model of an exported Paddle program, in folders of any name."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paddle_serving_server.ours import claim
from pipeline.errors import ConversionError
from pipeline.serving_model import ServingModel, load_serving_model, write_serving_model

CONF = {"serving_server": "serving_server_conf.prototxt", "serving_client": "serving_client_conf.prototxt"}


def inference_model_to_serving(
    dirname: str | Path,
    serving_server: str | Path = "serving_server",
    serving_client: str | Path = "serving_client",
    model_filename: str | None = None,
    params_filename: str | None = None,
    encryption: bool = False,
    key: str | None = None,
    show_proto: bool = False,
    feed_alias_names: str | None = None,
    fetch_alias_names: str | None = None,
) -> tuple[list[str], list[str]]:
    """Write both folders and return the names of the feeds and of the fetches, as the program calls them.

    `model_filename` and `params_filename` choose among the files of `dirname`. The outputs of the serving
    model are compared with the program's first. Alias names are comma-separated, in the program's order.
    Raises ConversionError for what can't be converted and for a target that holds something else.
    """
    if encryption or key:
        raise ConversionError("encrypted models are not supported; convert without encryption.")
    targets = {"serving_server": Path(serving_server), "serving_client": Path(serving_client)}
    for part, target in targets.items():
        _check_replaceable(target, CONF[part])
    claim("convert")
    from convert.to_serving import convert_serving

    parent = targets["serving_server"].absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".converting-") as work:
        source = _chosen_files(Path(dirname), Path(work), model_filename, params_filename)
        made = Path(work, "model")
        convert_serving(source, made, fetch_alias=_names(fetch_alias_names))
        model = load_serving_model(made)
        if feed_alias_names:
            made = Path(work, "renamed")
            _rename_feeds(model, _names(feed_alias_names), made)
        for part, target in targets.items():
            _replace(made / part, target)
    if show_proto:
        print((targets["serving_server"] / CONF["serving_server"]).read_text("utf-8"))  # noqa: T201
    return [feed.name for feed in model.feeds], [fetch.name for fetch in model.fetches]


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _chosen_files(directory: Path, work: Path, model: str | None, params: str | None) -> Path:
    """A folder with the two named files alone, under names that tell what they are."""
    if not directory.is_dir():
        raise ConversionError(f"{directory} is not a folder; name the one that holds the exported program.")
    if model is None and params is None:
        return directory
    chosen = work / "source"
    chosen.mkdir()
    if model is None and params is not None:
        model = f"{Path(params).stem}.pdmodel"
        if not (directory / model).is_file():
            model = f"{Path(params).stem}.json"
    elif params is None and model is not None:
        guess = f"{Path(model).stem}.pdiparams"
        params = guess if (directory / guess).is_file() else None
    for name, suffixes in ((model, (".pdmodel", ".json")), (params, (".pdiparams",))):
        if name is None:
            continue
        file = directory / name
        if not file.is_file():
            raise ConversionError(f"{file} is not a file; name one of the files in {directory}.")
        suffix = file.suffix if file.suffix in suffixes else suffixes[0]
        stem = Path(model or name).stem.strip("_") or "model"
        (chosen / f"{stem}{suffix}").symlink_to(file.resolve())
    return chosen


def _rename_feeds(model: ServingModel, aliases: Sequence[str], target: Path) -> None:
    if len(aliases) != len(model.feeds) or len(set(aliases)) != len(aliases):
        raise ConversionError(
            f"feed_alias_names gives {', '.join(aliases)}, but the model has {len(model.feeds)} feeds "
            f"({', '.join(feed.name for feed in model.feeds)}); name each once, in this order."
        )
    feeds = [dataclasses.replace(feed, alias=alias) for feed, alias in zip(model.feeds, aliases, strict=True)]
    write_serving_model(target, model.program, model.params, feeds, model.fetches)


def _check_replaceable(target: Path, mark: str) -> None:
    if target.exists() and not (target / mark).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise ConversionError(f"{target} exists and is no serving model; name another folder or remove it.")


def _replace(made: Path, target: Path) -> None:
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    shutil.move(made, target)
