"""Finds, loads and saves the files of a tokenizer, by a folder or a model's name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..utils.log import logger
from .pretrained_names import get_configuration, get_max_text_length
from .special_tokens import AddedToken

if TYPE_CHECKING:
    from .tokenizer_utils import PretrainedTokenizer

CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"


def candidate_folders(name: str) -> Iterator[Path]:
    """Yield the folders that may have a model's files, in the order of the search.

    name: name of a model, or a folder. The folders are: the folder itself; PaddleNLP's own cache,
    $PPNLP_HOME/models (~/.paddlenlp); $PADDLENLP_HOME; the caches of Hugging Face; $PADDLEWHEEL_MODELS.
    """
    yield Path(name)
    if name.startswith((".", "/")):
        return
    yield Path(os.environ.get("PPNLP_HOME") or "~/.paddlenlp").expanduser() / "models" / name
    if home := os.environ.get("PADDLENLP_HOME"):
        yield Path(home, "models", name)
        yield Path(home, name)
    yield from _hugging_face_folders(name)
    if models := os.environ.get("PADDLEWHEEL_MODELS"):
        yield Path(models, name)


def _hugging_face_folders(name: str) -> Iterator[Path]:
    """Yield the snapshots of a model in Hugging Face's caches; the snapshot of `main` comes first."""
    named = (os.environ.get(variable) for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    for cache in [*filter(None, named), f"{home}/hub"]:
        for repository in sorted(Path(cache).expanduser().glob(f"models--*{name.replace('/', '--')}")):
            if repository.name.removeprefix("models--").split("--")[-1] != name.split("/")[-1]:
                continue
            main = repository / "refs" / "main"
            if main.is_file():
                yield repository / "snapshots" / main.read_text("utf-8").strip()
            yield from sorted(repository.glob("snapshots/*"))


def find_files(cls: type[PretrainedTokenizer], name: str, subfolder: str = "") -> tuple[Path, dict[str, str]]:
    """Return the folder with the files of a tokenizer class, and the files' paths by constructor argument.

    Raises FileNotFoundError with the files that are missing and the folders that were searched.
    """
    places = [place / subfolder for place in candidate_folders(name)]
    for place in dict.fromkeys(places):
        files = {argument: _file_in(place, file) for argument, file in cls.resource_files_names.items()}
        if all(files.values()):
            return place, {argument: str(path) for argument, path in files.items()}
    raise FileNotFoundError(
        missing_files(cls.__name__, name, list(cls.resource_files_names.values()), places)
    )


def _file_in(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, or of the only file whose name ends with the file's name.

    For vocab.txt, that may be ernie_1.0_vocab.txt. None if there is no such file.
    """
    if (folder / name).is_file():
        return folder / name
    alike = [path for path in folder.glob(f"*{name}") if path.is_file()] if folder.is_dir() else []
    return alike[0] if len(alike) == 1 else None


def missing_files(what: str, name: str, files: Sequence[str], places: Sequence[Path]) -> str:
    """Return the error message for a tokenizer whose files are in none of the searched folders (`places`)."""
    looked = ", ".join(dict.fromkeys(f"{place}/" for place in places))
    return (
        f"{what} {name!r} needs {' and '.join(files)}, and nothing is downloaded here: put the file into "
        f"one of {looked} or name its folder in $PADDLEWHEEL_MODELS as <folder>/{name}/"
    )


def load_config(folder: Path, name: str) -> dict[str, Any]:
    """Return the tokenizer's arguments: PaddleNLP's for this name, overridden by tokenizer_config.json.

    Raises ValueError if the file is not a JSON object.
    """
    configuration = get_configuration(name)
    return configuration | _json_object(folder / CONFIG) if (folder / CONFIG).is_file() else configuration


def load_tokenizer(
    cls: type[PretrainedTokenizer], name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> PretrainedTokenizer:
    """Create a tokenizer of this class with the files of a folder or of a named model.

    args, kwargs: arguments of the constructor, which override stored arguments.
    """
    for ignored in ("cache_dir", "from_hf_hub", "from_aistudio"):
        kwargs.pop(ignored, None)
    folder, files = find_files(cls, name, kwargs.pop("subfolder", None) or "")
    config = load_config(folder, name)
    for stored in ("init_class", "tokenizer_class"):
        config.pop(stored, None)
    positional = list(args) or list(config.pop("init_args", ()))
    config.pop("init_args", None)
    arguments = {key: _with_added_tokens(value) for key, value in (config | kwargs).items()}
    longest = get_max_text_length(name)
    if longest is not None:
        arguments["model_max_length"] = min(arguments.get("model_max_length") or longest, longest)
    for argument, path in files.items():
        if not Path(arguments.get(argument) or "").is_file():
            arguments[argument] = path
    for position, argument in enumerate(cls.file_arguments):
        if len(positional) > position:  # an old tokenizer_config.json has the file's place of that time
            positional[position] = arguments.pop(argument, positional[position])
    tokenizer = cls(*positional, **arguments)
    _restore_tokens(tokenizer, folder, kwargs)
    return tokenizer


def _restore_tokens(tokenizer: PretrainedTokenizer, folder: Path, kwargs: dict[str, Any]) -> None:
    """Set the special and added tokens of a tokenizer that `save_pretrained` wrote to the folder."""
    if (folder / SPECIAL_TOKENS).is_file():
        for role, value in _json_object(folder / SPECIAL_TOKENS).items():
            if role in tokenizer.SPECIAL_TOKENS_ATTRIBUTES and not kwargs.get(role):
                setattr(tokenizer, role, _with_added_tokens(value))
    if (folder / ADDED_TOKENS).is_file():
        special = set(tokenizer.all_special_tokens)
        added = _json_object(folder / ADDED_TOKENS)
        for token, number in sorted(added.items(), key=lambda entry: int(entry[1])):
            if number != len(tokenizer):
                raise ValueError(
                    f"{folder / ADDED_TOKENS} gives {token!r} the number {number}, but the next one "
                    "after the "
                    f"vocabulary is {len(tokenizer)}; the files are not of one tokenizer"
                )
            tokenizer.add_tokens(token, special_tokens=token in special)
    tokenizer.sanitize_special_tokens()


def save_tokenizer(tokenizer: PretrainedTokenizer, directory: str, prefix: str | None) -> tuple[str, ...]:
    """Write the files of a tokenizer to a folder, for `load_tokenizer`.

    Returns the paths of configuration, special tokens and added tokens, including files that were not
    written.
    """
    folder = Path(directory)
    if folder.is_file():
        raise AssertionError(f"Saving directory ({directory}) should be a directory, not a file")
    folder.mkdir(parents=True, exist_ok=True)
    lead = f"{prefix}-" if prefix else ""
    config = {k: v for k, v in tokenizer.init_kwargs.items() if k not in tokenizer.resource_files_names}
    config["tokenizer_class"] = type(tokenizer).__name__
    written = {
        CONFIG: _plain(config, typed=True),
        SPECIAL_TOKENS: _plain(tokenizer.special_tokens_map_extended, typed=False),
    }
    if tokenizer.get_added_vocab():
        written[ADDED_TOKENS] = tokenizer.get_added_vocab()
    for name, content in written.items():
        (folder / f"{lead}{name}").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    tokenizer.save_resources(directory)
    logger.info(f"tokenizer files saved in {directory}")
    return tuple(str(folder / f"{lead}{name}") for name in (CONFIG, SPECIAL_TOKENS, ADDED_TOKENS))


def _plain(value: Any, typed: bool) -> Any:
    """Convert a value for JSON, with AddedTokens as dicts. typed: mark these dicts as AddedToken."""
    if isinstance(value, AddedToken):
        return value.__getstate__() | ({"__type": "AddedToken"} if typed else {})
    if isinstance(value, (list, tuple)):
        return [_plain(entry, typed) for entry in value]
    return {k: _plain(v, typed) for k, v in value.items()} if isinstance(value, dict) else value


def _with_added_tokens(value: Any) -> Any:
    """Convert a value from JSON, with dicts that stand for AddedTokens converted to AddedTokens."""
    if isinstance(value, list):
        return [_with_added_tokens(entry) for entry in value]
    if isinstance(value, dict) and "content" in value:
        return AddedToken(**{key: value[key] for key in AddedToken.__annotations__ if key in value})
    return value


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as exc:
        raise ValueError(f"{path} is no JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__} where a JSON object is expected")
    return content
