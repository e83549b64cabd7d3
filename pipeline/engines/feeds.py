"""The feeds of a predictor: checked against what its model declares, or made up for a warm-up."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.errors import InvalidInput, MissingFeed, NoArray, UnusableFeed
from pipeline.models.signature import Variable, sized

log = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]
LOD_SUFFIX = ".lod"  # a ragged feed's or fetch's offsets, under its alias and this
IMAGE_RANK = 4
IMAGE_SIDE = 4  # an image's side in lengths: detectors want multiples of 32


class Fed(Protocol):
    """What has feeds: a model, or its predictor."""

    @property
    def feeds(self) -> tuple[Variable, ...]: ...


def check_feeds(
    declared: Sequence[Variable], feeds: Mapping[str, Array], *, any_shape: bool = False
) -> dict[str, Array]:
    """The feeds by alias, contiguous and in the declared dtypes; of the declared shapes unless `any_shape`.

    Numbers are cast to a declared integer type (bool included) when every value survives, and to a declared
    float type when none overflows; so are numbers in arrays of objects or texts. The offsets of a ragged
    feed "x" stay beside it as "x.lod", int64 [n + 1] for n sequences. What the model lacks is left out, as
    in Paddle Serving up to 0.8: apps give `im_shape` to models with and without it. Raises MissingFeed,
    NoArray and UnusableFeed for what is of no use to this model, InvalidInput for what else does not fit.
    """
    checked = {}
    for variable in declared:
        array = _form(variable, declared, feeds, any_shape)
        checked[variable.alias] = np.asarray(_cast(variable, array), order="C")
        if variable.is_lod:
            lod = variable.alias + LOD_SUFFIX
            checked[lod] = _offsets(feeds.get(lod), lod, rows=array.shape[0])
    return checked


def check_forms(declared: Sequence[Variable], feeds: Mapping[str, Array], *, any_shape: bool = False) -> None:
    """Check names, types, shapes and dtypes of feeds: all of `check_feeds` that no element decides.

    Feeds that pass are joined to those of other requests, so that a wrong feed is refused by itself before
    that. Raises as `check_feeds` does.
    """
    for variable in declared:
        _form(variable, declared, feeds, any_shape)


def _form(
    variable: Variable, declared: Sequence[Variable], feeds: Mapping[str, Array], any_shape: bool
) -> Array:
    """Return the array of a feed whose name, type, shape and dtype fit."""
    if variable.alias not in feeds:
        raise MissingFeed(_missing(variable, declared, feeds), variable.alias)
    array = feeds[variable.alias]
    if is_texts(array):
        array = np.array(array, object)
    if not isinstance(array, np.ndarray):
        raise NoArray(f"feed {variable.alias!r} is of type {type(array).__name__}, expected an ndarray")
    if array.size == 0 and not _declares_no_element(variable, array):
        raise UnusableFeed(f"feed {variable.alias!r} has shape {array.shape} and so no element")
    if not any_shape and not _has_shape(variable, array):
        raise UnusableFeed(_other_shape(variable, array))
    _check_length(variable, array)
    _check_dtype(variable, array.dtype)
    return array


def _declares_no_element(variable: Variable, array: Array) -> bool:
    """Whether every axis of length 0 is one that the model declares with length 0.

    An open axis may not be empty: programs divide by its length, or take the padding for elements.
    """
    return array.ndim == len(variable.shape) and all(
        declared == 0 for declared, length in zip(variable.shape, array.shape, strict=True) if length == 0
    )


def is_texts(value: object) -> bool:
    """Whether a value is a list of texts, which stands for an array of them."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def as_texts(alias: str, array: Array) -> Array:
    """An array of objects as one of str: bytes are UTF-8. Raises UnusableFeed for anything else."""
    try:
        texts = [t.decode("utf-8") if isinstance(t, bytes) else t for t in array.ravel().tolist()]
        "".join(texts).encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as exc:
        raise UnusableFeed(f"feed {alias!r} holds texts that are no UTF-8: {exc.reason}") from exc
    except TypeError:
        other = next(type(text).__name__ for text in texts if not isinstance(text, str))
        raise UnusableFeed(f"feed {alias!r} holds a {other}, expected str or bytes") from None
    return np.array(texts, object).reshape(array.shape)


def shares_runs(program: Path, finder: str | None, variables: Sequence[Variable]) -> bool:
    """Whether feeds of several requests may be run together: each of `variables` has an open batch axis.

    finder: the operator that gives as many rows as it finds, if there is one. Logs why not.
    """
    closed = next((f"{v.name} without an open batch axis" for v in variables if not v.has_rows), None)
    why = finder or closed
    if why:
        log.info("%s has %s: its requests run alone", program, why)
    return not why


def input_examples(model: Fed, rows: int, length: int) -> dict[str, Array]:
    """Feeds of ones by alias, for warm-up: of `rows`, of `length` on other open axes, of images 4 x `length`.

    No feed is longer than the model takes. Give it the predictor where there is one: it knows the rank of
    feeds whose description left axes out.
    Ones, because an attention mask of zeros divides by zero, and 1 is an id of any vocabulary.
    """
    examples = {}
    for variable in model.feeds:
        side = length * IMAGE_SIDE if len(variable.shape) >= IMAGE_RANK else length
        side = min(side, variable.longest[1]) if variable.longest else side
        one = "1" if variable.dtype == "string" else 1
        examples[variable.alias] = np.full(sized(variable.shape, rows, side), one, variable.numpy_dtype)
        if variable.is_lod:
            examples[variable.alias + LOD_SUFFIX] = np.array([0, rows])
    return examples


def check_promised(declared: Sequence[Variable], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """`check_feeds` for senders who were told which feeds there are: whatever is wrong is InvalidInput."""
    try:
        return check_feeds(declared, feeds)
    except (NoArray, UnusableFeed) as exc:
        raise InvalidInput(exc.message) from exc


def other_shape(
    declared: Sequence[Variable], feeds: Mapping[str, Array], *, sides: bool = False
) -> str | None:
    """A sentence about the first feed whose shape is not the declared one; None where there is none.

    sides: those of images are looked at, too.
    """
    for variable in declared:
        array = feeds.get(variable.alias)
        if array is not None and not _has_shape(variable, array, sides=sides):
            return _other_shape(variable, array)
    return None


def _other_shape(variable: Variable, array: Array) -> str:
    return f"feed {variable.alias!r} has shape {array.shape}, expected {_expected(variable)}"


def _has_shape(variable: Variable, array: Array, *, sides: bool = False) -> bool:
    # The sides of an image are the engine's to judge: detectors are exported at 608 x 608 and fed 640 x 640.
    bound = 2 if len(variable.shape) >= IMAGE_RANK and not sides else None
    return variable.is_lod or (
        array.ndim == len(variable.shape)
        and all(want in (-1, got) for want, got in zip(variable.shape[:bound], array.shape, strict=False))
    )


def _check_length(variable: Variable, array: Array) -> None:
    axis, longest = variable.longest or (0, 0)
    if longest and axis < array.ndim and array.shape[axis] > longest:
        raise InvalidInput(
            f"feed {variable.alias!r} has length {array.shape[axis]} on axis {axis}, and the model takes "
            f"{longest} at most; send a shorter one"
        )


def _offsets(lod: Any, name: str, rows: int) -> Array:
    """The offsets [0, ..., rows] where a feed's sequences begin and end. Raises InvalidInput."""
    offsets = np.ravel(lod) if lod is not None else np.array([])
    rises = (
        offsets.dtype.kind in "iu"
        and offsets.size > 1
        and bool((np.diff(offsets.astype(np.int64)) >= 0).all())
    )
    if not rises or offsets[0] != 0 or offsets[-1] != rows:
        raise InvalidInput(
            f"{name!r} has to tell where the sequences in the {rows} rows of their feed begin and end: "
            f"rising integers from 0 to {rows}, [0, {rows}] for one sequence"
        )
    return offsets.astype(np.int64)


def _check_dtype(variable: Variable, dtype: np.dtype[Any]) -> None:
    """Raise InvalidInput or UnusableFeed for a dtype that no cast makes the declared one."""
    target = variable.numpy_dtype
    if dtype == target or (target.kind == "O" and dtype.kind in "US"):
        return
    if target.kind not in "iubf" or dtype.kind not in "iubfOUS":
        expected = "objects of str or bytes" if variable.dtype == "string" else target
        refusal = InvalidInput if dtype.kind == "c" else UnusableFeed  # there its real part was run
        raise refusal(f"feed {variable.alias!r} is {dtype}, expected {expected}")


def _cast(variable: Variable, array: Array) -> Array:
    """Return the array in the declared dtype, which `_check_dtype` has compared.

    Raises InvalidInput and UnusableFeed where that changes a value.
    """
    given, wanted = array.dtype, variable.numpy_dtype
    if given == wanted:
        return array
    if wanted.kind == "O" and given.kind in "US":
        return array.astype(object)
    if given.kind in "OUS" and wanted.kind in "iubf":
        array = _numbers(variable, array)
    with np.errstate(over="ignore", invalid="ignore"):  # what doesn't survive is refused below
        cast = array.astype(wanted)
    if wanted.kind == "f":
        survived = np.array_equal(np.isinf(cast), np.isinf(array))
    else:
        # A comparison of int64 with uint64 goes through float64, so the sign is looked at by itself.
        survived = np.array_equal(cast, array) and np.array_equal(cast < 0, array < 0)
    if not survived:
        raise InvalidInput(
            f"feed {variable.alias!r} is {given} with values beyond {wanted}, which the model takes"
        )
    return cast


def _numbers(variable: Variable, array: Array) -> Array:
    """The numbers that an array of objects or texts holds. Raises UnusableFeed where it holds others."""
    wanted = variable.numpy_dtype
    try:
        if array.dtype.kind in "US":
            return array.astype(np.float64 if wanted.kind == "f" else np.int64)
        numbers = np.array(array.tolist())
    except (ValueError, OverflowError):
        numbers = array
    if numbers.dtype.kind not in "iubf" or numbers.shape != array.shape:
        held = "of objects" if array.dtype.kind == "O" else str(array.dtype)
        raise UnusableFeed(f"feed {variable.alias!r} is {held}, not all of them numbers; expected {wanted}")
    return numbers


def _missing(variable: Variable, declared: Sequence[Variable], feeds: Mapping[str, Array]) -> str:
    unknown = sorted(map(str, feeds.keys() - {known.alias for known in declared}))
    misspelt = f"; the model has no feed {', '.join(map(repr, unknown))}" if unknown else ""
    return f"feed {variable.alias!r} is missing ({_expected(variable)}){misspelt}"


def _expected(variable: Variable) -> str:
    return f"{variable.dtype} {list(variable.shape)}"
