"""Reads sample files, such as .npz, .jsonl, .csv, images or texts, into a model's input arrays."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.program_feeds import Array, Feeds, stored_feeds
from convert.proof.target import Target
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.description import TextInput
from pipeline.models.serving_model import Variable
from pipeline.ops.tokenizer import TOKENIZERS, load_tokenizer, tokenizer_file
from pipeline.text_lines import read_lines

MAX_TOKENS = 512
_PARTS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


def text_rows(path: Path, target: Target) -> list[Feeds]:
    """Tokenize each line of a UTF-8 file to a batch of one row, with arrays by the model's input names.

    The tokenizer is in the model's folder. Raises ConversionError for a file without text, a model without a
    tokenizer, or a model with inputs that can't be made from texts.
    """
    foreign = [
        feed.alias for feed in target.feeds if not _find_encoding_attribute(feed) or len(feed.shape) != 2
    ]
    if foreign:
        raise ConversionError(
            f"{path} holds texts, from which {foreign[0]!r} of {target.source} can't be made; give a .npz "
            "file with an array for each input."
        )
    texts = _texts(path)
    tokenizer = _tokenizer(path, target)
    longest = [feed.longest[1] for feed in target.feeds if feed.longest]
    tokenizer.enable_truncation(min([MAX_TOKENS, *longest]))
    return [_build_row(encoding, target) for encoding in tokenizer.encode_batch(texts)]


def _find_encoding_attribute(feed: Variable) -> str:
    """Return the attribute of a tokenizer's encoding for this input, such as "ids"; empty if none fits."""
    return _PARTS.get(feed.alias) or _PARTS.get(feed.name, "")


def _texts(path: Path) -> list[str]:
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConversionError(f"{path} can't be read as UTF-8 text ({exc}).") from exc
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ConversionError(f"{path} holds no text; give it one text a line.")
    return texts


def _tokenizer(path: Path, target: Target) -> Any:
    """Load the tokenizer in the model's folder; raise ConversionError if there is none.

    path: the file of texts, for messages.
    """
    directory = target.folder
    if directory is None:
        raise ConversionError(
            f"{path} holds texts, but {target.source} has no tokenizer; give a .npz file with an array for "
            "each input."
        )
    if not any((directory / name).is_file() for name in TOKENIZERS):
        raise ConversionError(
            f"{directory} has neither {' nor '.join(TOKENIZERS)} to make inputs of texts; give a .npz file."
        )
    text_input = TextInput()
    try:
        return load_tokenizer(text_input, tokenizer_file(text_input, [directory]))
    except ConfigError as exc:
        raise ConversionError(f"{path} holds texts, which can't be tokenized: {exc.message}.") from exc


def _build_row(encoding: Any, target: Target) -> Feeds:
    return {
        feed.name: np.array([getattr(encoding, _find_encoding_attribute(feed))], feed.numpy_dtype)
        for feed in target.feeds
    }


BATCH_FILES = (".npz", ".npy")
_IMAGE_RANK = 4
_CHANNELS = (1, 3)


def read_sample(path: Path, target: Target) -> list[Feeds]:
    """Read a sample file into input batches: arrays by the model's input names, in the inputs' dtypes.

    The suffix decides:
    - `.npz`: one batch, an array for each input under its name or alias.
    - `.npy`: one batch, for a model with a single input.
    - `.jsonl`: a row on each line, an object with a value for each input, or the value of a single input.
    - `.csv`: a row on each line, numbers in columns.
    - images: one row, decoded to the shape of the only input.
    - other suffixes: a text on each line.

    Raises ConversionError for a file that can't be read or doesn't fit the model.
    """
    return _READERS.get(path.suffix.lower(), text_rows)(path, target)


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Return the texts of the sample files that have a text on each line."""
    return [text for path in paths if path.suffix.lower() not in _READERS for text in _texts(path)]


def _read_npz(path: Path, target: Target) -> list[Feeds]:
    return [_fitted(stored_feeds(path), path, target)]


def _read_npy(path: Path, target: Target) -> list[Feeds]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as exc:
        raise ConversionError(f"{path} is no .npy file of a plain array ({exc}).") from exc
    return [_fitted({_only_feed(path, "one array", target).alias: np.asarray(array)}, path, target)]


def _read_jsonl(path: Path, target: Target) -> list[Feeds]:
    rows = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise ConversionError(f"{where} is not JSON ({exc}).") from exc
        if not isinstance(value, dict):
            value = {_only_feed(where, "one value", target).alias: value}
        rows.append(_fitted(_arrays(value, where, target), where, target))
    return _not_empty(rows, path, "an object with a value for each feed a line")


def _arrays(value: Mapping[str, object], where: str, target: Target) -> dict[str, Array]:
    """Convert the JSON values of one row to arrays, by the names in the file.

    The batch axis and leading axes of 1 are optional in the file.
    """
    arrays = {}
    for feed in target.feeds:
        name = feed.name if feed.name in value else feed.alias
        if name not in value:
            continue
        try:
            array = np.array(value[name], object if feed.dtype == "string" else None)
        except ValueError:
            raise ConversionError(f"{where}: the lists of {name} are of different length.") from None
        if array.dtype.kind in "OU" and feed.dtype != "string":
            raise ConversionError(
                f"{where}: {name} holds what is no number; it takes {_describe_feed(feed)}."
            )
        arrays[name] = _with_leading_axes(array, feed.shape)
    return arrays


def _with_leading_axes(array: Array, shape: Sequence[int]) -> Array:
    missing = len(shape) - array.ndim
    if missing > 0 and all(dim in (-1, 1) for dim in shape[:missing]):
        return array.reshape((1,) * missing + array.shape)
    return array


def _read_csv(path: Path, target: Target) -> list[Feeds]:
    lines = [
        (n, line) for n, line in enumerate(csv.reader(_read_text(path).split("\n")), start=1) if any(line)
    ]
    if not lines:
        _not_empty([], path, "numbers")
    columns = _named_columns(path, lines[0][1], target)
    if columns is not None or not all(map(_is_number, lines[0][1])):
        lines = lines[1:]
    rows = []
    for number, line in lines:
        where = f"{path}, line {number}"
        row_columns = columns or _ordered_columns(where, len(line), target)
        try:
            arrays = {
                feed.alias: _from_cells([line[at] for at in row_columns[feed.name]], feed, where)
                for feed in target.feeds
            }
        except IndexError:
            raise ConversionError(f"{where} has only {len(line)} columns.") from None
        rows.append(_fitted(arrays, where, target))
    return _not_empty(rows, path, "numbers")


def _named_columns(path: Path, header: Sequence[str], target: Target) -> dict[str, list[int]] | None:
    """Return the CSV columns of each input, found by headers like x, or x.0, x.1, ...

    None if the header names no input. Raises ConversionError if it names only some inputs.
    """
    columns = {
        feed.name: [at for at, cell in enumerate(header) if _names_feed(cell, feed)] for feed in target.feeds
    }
    lacking = [feed.alias for feed in target.feeds if not columns[feed.name]]
    if len(lacking) == len(target.feeds):
        return None
    if lacking:
        raise ConversionError(
            f"{path} has no column {lacking[0]!r}; name one for each feed of {target.source} "
            f"({', '.join(feed.alias for feed in target.feeds)}; x.0, x.1 of a feed with several numbers)."
        )
    return columns


def _names_feed(cell: str, feed: Variable) -> bool:
    name, dot, place = cell.strip().rpartition(".")
    return cell.strip() in (feed.name, feed.alias) or (
        bool(dot) and place.isdigit() and name in (feed.name, feed.alias)
    )


def _ordered_columns(where: str, count: int, target: Target) -> dict[str, list[int]]:
    """Assign CSV columns to the inputs in order, one column for each number in a row of an input.

    The remaining columns go to the only input with a dynamic axis. Raises ConversionError if the number of
    columns doesn't fit.
    """
    sizes = {feed.name: _row_size(feed) for feed in target.feeds}
    open_ = [name for name, size in sizes.items() if size is None]
    remaining = count - sum(size for size in sizes.values() if size is not None)
    if len(open_) > 1 or remaining < 0 or (remaining and not open_):
        takes = ", ".join(f"{feed.alias} {_describe_feed(feed)}" for feed in target.feeds)
        raise ConversionError(
            f"{where} has {count} columns, which can't be shared out among {takes}; name the columns in a "
            "header, or give a .npz file."
        )
    columns, at = {}, 0
    for name, size in sizes.items():
        stop = at + (remaining if size is None else size)
        columns[name] = list(range(at, stop))
        at = stop
    return columns


def _row_size(feed: Variable) -> int | None:
    """Return how many numbers a row of this input has; None if an axis is dynamic."""
    dims = feed.shape[1:] if feed.has_rows else feed.shape
    return None if -1 in dims else int(np.prod(dims, dtype=np.int64))


def _from_cells(cells: Sequence[str], feed: Variable, where: str) -> Array:
    shape = (1, *feed.shape[1:]) if feed.has_rows else feed.shape
    try:
        values: list[Any] = list(cells) if feed.dtype == "string" else [_number(cell, feed) for cell in cells]
    except ValueError:
        raise ConversionError(
            f"{where} holds what is no number of {feed.alias}, {_describe_feed(feed)}."
        ) from None
    array = np.array(values, object if feed.dtype == "string" else None)
    try:
        return array.reshape(shape)
    except ValueError:
        raise ConversionError(
            f"{where}: {len(cells)} numbers are no {feed.alias}, {_describe_feed(feed)}."
        ) from None


def _number(cell: str, feed: Variable) -> int | float:
    try:
        return int(cell)
    except ValueError:
        value = float(cell)
        return int(value) if feed.numpy_dtype.kind in "biu" and value.is_integer() else value


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell.strip()
    return True


def _read_image(path: Path, target: Target) -> list[Feeds]:
    """Decode an image file to a batch for the model's only input, in its size and channel order.

    The image is converted to RGB, or to grey for one channel. Float inputs get values from 0 to 1, integer
    inputs from 0 to 255. The preprocessing of the user's service is not known here.
    """
    feed = _only_feed(path, "an image", target)
    channel_axis = next((axis for axis in (1, 3) if feed.shape[axis : axis + 1] in ((1,), (3,))), 0)
    if len(feed.shape) != _IMAGE_RANK or not channel_axis:
        raise ConversionError(
            f"{path} is an image, but {feed.alias} of {target.source} is {_describe_feed(feed)}, "
            "without an axis of 1 "
            "or 3 channels; give a .npz file."
        )
    channels = feed.shape[channel_axis]
    height, width = feed.shape[2:] if channel_axis == 1 else feed.shape[1:3]
    pixels = _pixels(path, channels, height, width)
    if channel_axis == 1:
        pixels = pixels.transpose(2, 0, 1)
    values = pixels / 255 if feed.numpy_dtype.kind == "f" else pixels
    batch = np.repeat(values[None], max(1, feed.shape[0]), axis=0)
    return [_fitted({feed.alias: np.ascontiguousarray(batch)}, path, target)]


def _pixels(path: Path, channels: int, height: int, width: int) -> Array:
    """Decode an image to uint8 [height, width, channels]. A height or width of -1 keeps the image's size."""
    try:
        from PIL import Image
    except ModuleNotFoundError as exc:
        raise ConversionError(f"{path} is an image ({exc}): pip install 'paddlewheel[images]'") from exc
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB" if channels > 1 else "L")
    except (OSError, ValueError, Image.DecompressionBombError) as exc:
        raise ConversionError(f"{path} is no image that can be decoded ({exc}).") from exc
    size = (width if width > 0 else image.width, height if height > 0 else image.height)
    pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR), np.uint8)
    return pixels.reshape(size[1], size[0], channels)


def _fitted(arrays: Mapping[str, Array], where: object, target: Target) -> Feeds:
    """Return an array for each input, cast to its dtype. Arrays of other names are dropped.

    where: the file or line, for messages. Raises ConversionError if an array is missing or doesn't fit.
    """
    named = {feed.name: feed.name if feed.name in arrays else feed.alias for feed in target.feeds}
    if not set(named.values()) <= arrays.keys():
        raise ConversionError(
            f"{where} holds {', '.join(sorted(arrays)) or 'nothing'}, but {target.source} takes "
            f"{', '.join(named.values())}; store one array for each under its name."
        )
    fitted = {}
    for feed in target.feeds:
        array = arrays[named[feed.name]]
        if not _holds(feed, array):
            raise ConversionError(
                f"{where}: {named[feed.name]} is {array.dtype}{list(array.shape)}, but {target.source} takes "
                f"{_describe_feed(feed)}; store it so."
            )
        fitted[feed.name] = _cast(array, feed)
    return fitted


def _holds(feed: Variable, array: Array) -> bool:
    """Return whether an array fits an input: its rank and shape, and values that its dtype can hold."""
    dtype = feed.numpy_dtype
    # The sides of an image are the engine's to judge.
    bound = 2 if len(feed.shape) >= _IMAGE_RANK else None
    if not feed.is_lod and (
        array.ndim != len(feed.shape)
        or any(dim not in (-1, length) for dim, length in zip(feed.shape[:bound], array.shape, strict=False))
    ):
        return False
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return bool(array.min() >= np.iinfo(dtype).min and array.max() <= np.iinfo(dtype).max)
    if feed.dtype == "bfloat16":
        return array.dtype.kind == "f"
    return np.can_cast(array.dtype, dtype, "same_kind")


def _cast(array: Array, feed: Variable) -> Array:
    if feed.dtype == "bfloat16" and array.dtype.kind == "f":
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return array.astype(feed.numpy_dtype, copy=False)


def _only_feed(where: object, what: str, target: Target) -> Variable:
    if len(target.feeds) != 1:
        raise ConversionError(
            f"{where} holds {what}, but {target.source} takes {', '.join(f.alias for f in target.feeds)}; "
            "give a .npz file with an array for each, or .jsonl."
        )
    return target.feeds[0]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConversionError(f"{path} can't be read as UTF-8 text ({exc}).") from exc


def _not_empty(rows: list[Feeds], path: Path, what: str) -> list[Feeds]:
    if not rows:
        raise ConversionError(f"{path} holds no row; give it {what}.")
    return rows


def _describe_feed(feed: Variable) -> str:
    return f"{feed.dtype}{list(feed.shape)}"


_Reader = Callable[[Path, Target], list[Feeds]]
_READERS: dict[str, _Reader] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    **dict.fromkeys((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"), _read_image),
}
