"""Finds the files of an exported Paddle model, whatever their names, and collects them for the conversion."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.errors import ConversionError

OLD_PROGRAM, OLD_PARAMS = "__model__", "__params__"


def file_of_paddle_3(directory: Path, model: str | None) -> str | None:
    """Return the file name x.json if x.pdmodel is named, but only x.json (of Paddle 3) exists; else None.

    model: file name in `directory`.
    """
    if model is None or not model.endswith(".pdmodel") or (directory / model).is_file():
        return None
    renamed = model.removesuffix(".pdmodel") + ".json"
    return renamed if (directory / renamed).is_file() else None


def chosen_files(directory: Path, work: Path, model: str | None, params: str | None) -> Path:
    """Return a folder with one exported model: `directory`, or a new folder in `work` with the named files.

    model, params: file names of the graph and the weights; None for the usual names. Weights in separate
    files are joined into one file. Raises ConversionError.
    """
    if not directory.is_dir():
        raise ConversionError(f"{directory} is not a folder; name the one that holds the exported program.")
    program = model or (OLD_PROGRAM if (directory / OLD_PROGRAM).is_file() else None)
    if program is not None and params is None and not _beside(directory, program):
        return _with_one_params_file(directory, program, work)
    if model is None and params is None:
        return directory
    chosen = work / "source"
    chosen.mkdir()
    if model is None and params is not None:
        model = f"{Path(params).stem}.pdmodel"
        if not (directory / model).is_file():
            model = f"{Path(params).stem}.json"
    elif params is None and model is not None:
        params = _beside(directory, model)
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


def _beside(directory: Path, model: str) -> str | None:
    """Return the name of the weight file that belongs to a model's graph file; None if there is none."""
    names = [OLD_PARAMS] if model == OLD_PROGRAM else [f"{Path(model).stem}.pdiparams"]
    return next((name for name in names if (directory / name).is_file()), None)


def _with_one_params_file(directory: Path, model: str, work: Path) -> Path:
    """Copy a model with one file per weight to `work`, with all weights joined in a single file.

    The file has the weights in the order of their names. Returns the folder. Raises ConversionError.
    """
    import pipeline.engines.paddle.paddle_import  # noqa: F401  Paddle is first imported without its chatter
    from pipeline.engines.paddle.program import parameter_names

    program = directory / model
    if not program.is_file():
        raise ConversionError(f"{program} is not a file; name one of the files in {directory}.")
    chosen = work / "source"
    chosen.mkdir()
    suffix = ".json" if program.suffix == ".json" else ".pdmodel"
    target = chosen / f"{program.stem.strip('_') or 'model'}{suffix}"
    shutil.copyfile(program, target)
    names = parameter_names(program) if suffix == ".pdmodel" else ()
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ConversionError(
            f"{program} has {len(names)} weights, but neither one file for all of them nor {missing[0]} "
            "is beside it; name it with params_filename."
        )
    if names:
        with target.with_suffix(".pdiparams").open("wb") as joined:
            for name in names:
                with (directory / name).open("rb") as part:
                    shutil.copyfileobj(part, joined)
    return chosen
