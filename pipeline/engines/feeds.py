"""Model inputs (feeds): checks against the model's declaration, and examples for warm-up."""

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
LOD_SUFFIX = ".lod"  # appended to the alias of a ragged feed or fetch, for its offsets
IMAGE_RANK = 4
IMAGE_SIDE = 4  # side of an example image per unit of length: detectors need multiples of 32


class Fed(Protocol):
    """A model on disk or a loaded predictor: an object that declares model inputs (feeds)."""

    @property
    def feeds(self) -> tuple[Variable, ...]: ...


def check_feeds(
    declared: Sequence[Variable],
    feeds: Mapping[str, Array],
    *,
    any_shape: bool = False,
    allow_empty: bool = False,
) -> dict[str, Array]:
    """Return model inputs, by alias, as contiguous arrays in the declared dtypes and shapes.

    With `any_shape`, shapes are not checked. With `allow_empty`, arrays may have no element. Numbers are cast
    to a declared integer type (bool included) if every value survives, and to a declared float type if none
    overflows. Arrays of objects or texts may hold the numbers. The offsets of a ragged input "x" are in
    "x.lod", int64 [n + 1] for n sequences. Unknown inputs are dropped, as in Paddle Serving up to 0.8: apps
    pass `im_shape` to models with and without that input.

    Raises MissingFeed, NoArray and UnusableFeed for inputs that this model can't use, and InvalidInput for
    other mistakes.
    """
    checked = {}
    for variable in declared:
        array = _form(variable, declared, feeds, any_shape, allow_empty)
        checked[variable.alias] = np.asarray(_cast(variable, array), order="C")
        if variable.is_lod:
            lod = variable.alias + LOD_SUFFIX
            checked[lod] = _offsets(feeds.get(lod), lod, rows=array.shape[0])
    return checked


def check_forms(
    declared: Sequence[Variable],
    feeds: Mapping[str, Array],
    *,
    any_shape: bool = False,
    allow_empty: bool = False,
) -> None:
    """Check names, types, shapes and dtypes of model inputs like `check_feeds`, but not their elements.

    This check runs before requests are batched, so that a wrong feed fails its own request only. Raises the
    errors of `check_feeds`.
    """
    for variable in declared:
        _form(variable, declared, feeds, any_shape, allow_empty)


def _form(
    variable: Variable,
    declared: Sequence[Variable],
    feeds: Mapping[str, Array],
    any_shape: bool,
    allow_empty: bool,
) -> Array:
    """Check one model input's name, type, shape and dtype against its declaration, and return it as an array.

    Raises the errors of `check_feeds`.
    """
    if variable.alias not in feeds:
        raise MissingFeed(_missing(variable, declared, feeds), variable.alias)
    array = feeds[variable.alias]
    if not isinstance(array, np.ndarray):
        array = _build_feed_array(variable, array)
    if array.size == 0 and not allow_empty and not _declares_no_element(variable, array):
        raise UnusableFeed(f"feed {variable.alias!r} has shape {array.shape} and so no element")
    if not any_shape and not _has_shape(variable, array):
        raise UnusableFeed(_other_shape(variable, array))
    if variable.longest:
        _check_length(variable, array, *variable.longest)
    if array.dtype != variable.numpy_dtype:
        _check_dtype(variable, array.dtype)
    return array


def _build_feed_array(variable: Variable, value: object) -> Array:
    """Convert a list of texts to an array, or a NumPy scalar for an input without axes. Raises NoArray."""
    if is_texts(value):
        return np.array(value, object)
    if isinstance(value, np.generic):
        return np.asarray(value)
    raise NoArray(f"feed {variable.alias!r} is of type {type(value).__name__}, expected an ndarray")


def _declares_no_element(variable: Variable, array: Array) -> bool:
    """Whether the model declares length 0 for each axis of this array that has length 0.

    A dynamic axis may not be empty: models divide by its length, or treat padding as elements.
    """
    return array.ndim == len(variable.shape) and all(
        declared == 0 for declared, length in zip(variable.shape, array.shape, strict=True) if length == 0
    )


def is_texts(value: object) -> bool:
    """Whether a value is a list of str, which stands for an array of texts."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def as_texts(alias: str, array: Array) -> Array:
    """Convert an array of objects to an array of str; bytes are read as UTF-8.

    Raises UnusableFeed for other objects.
    """
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
    """Whether requests may share an inference: each of these inputs and outputs has a dynamic batch axis.

    `finder` is an operator whose number of output rows depends on the data, or None. If the result is False,
    the reason is logged for the model file `program`.
    """
    closed = next((f"{v.name} without an open batch axis" for v in variables if not v.has_rows), None)
    why = finder or closed
    if why:
        log.info("%s has %s: its requests run alone", program, why)
    return not why


def input_examples(model: Fed, rows: int, length: int) -> dict[str, Array]:
    """Return model inputs filled with ones for warm-up: `rows` rows, and `length` on other dynamic axes.

    Images get sides of 4 x `length`. No input is longer than the model allows. Pass the predictor if the
    model is loaded: a predictor knows the rank of inputs whose description leaves axes out. Ones are used
    because an attention mask of zeros divides by zero, and 1 is a valid id in any vocabulary.
    """
    examples = {}
    for variable in model.feeds:
        side = length * IMAGE_SIDE if len(variable.shape) >= IMAGE_RANK else length
        side = min(side, variable.longest[1]) if variable.longest else side
        value = "1" if variable.dtype == "string" else 1
        examples[variable.alias] = np.full(sized(variable.shape, rows, side), value, variable.numpy_dtype)
        if variable.is_lod:
            examples[variable.alias + LOD_SUFFIX] = np.array([0, rows])
    return examples


def check_promised(declared: Sequence[Variable], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Check model inputs whose declaration the client could read: any mistake raises InvalidInput.

    Returns the arrays of `check_feeds`.
    """
    try:
        return check_feeds(declared, feeds)
    except (NoArray, UnusableFeed) as exc:
        raise InvalidInput(exc.message) from exc


def other_shape(
    declared: Sequence[Variable], feeds: Mapping[str, Array], *, sides: bool = False
) -> str | None:
    """Return a message about the first input whose shape differs from the declaration; None if all fit.

    With `sides`, the sides of images are compared, too.
    """
    for variable in declared:
        array = feeds.get(variable.alias)
        if array is not None and not _has_shape(variable, array, sides=sides):
            return _other_shape(variable, array)
    return None


def _other_shape(variable: Variable, array: Array) -> str:
    return f"feed {variable.alias!r} has shape {array.shape}, expected {_expected(variable)}"


def _has_shape(variable: Variable, array: Array, *, sides: bool = False) -> bool:
    if variable.is_lod:
        return True
    if array.ndim != len(variable.shape):
        return False
    # The engine checks the sides of an image: detectors are exported at 608 x 608 and fed 640 x 640.
    bound = 2 if len(variable.shape) >= IMAGE_RANK and not sides else None
    for dim, size in zip(variable.shape[:bound], array.shape, strict=False):  # noqa: SIM110  (all() is slower)
        if dim not in (-1, size):
            return False
    return True


def _check_length(variable: Variable, array: Array, axis: int, longest: int) -> None:
    if longest and axis < array.ndim and array.shape[axis] > longest:
        raise InvalidInput(
            f"feed {variable.alias!r} has length {array.shape[axis]} on axis {axis}, and the model takes "
            f"{longest} at most; send a shorter one"
        )


def _offsets(lod: Any, name: str, rows: int) -> Array:
    """Check the offsets [0, ..., rows] of the sequences in a ragged (LoD) input, and return them as int64.

    Raises InvalidInput.
    """
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
    """Raise InvalidInput or UnusableFeed for a dtype that can't be cast to the declared dtype."""
    target = variable.numpy_dtype
    if target.kind == "O" and dtype.kind in "US":
        return
    if target.kind not in "iubf" or dtype.kind not in "iubfOUS":
        expected = "objects of str or bytes" if variable.dtype == "string" else target
        refusal = InvalidInput if dtype.kind == "c" else UnusableFeed  # Paddle Serving ran the real part
        raise refusal(f"feed {variable.alias!r} is {dtype}, expected {expected}")


def _cast(variable: Variable, array: Array) -> Array:
    """Return the array in the declared dtype, after `_check_dtype`.

    Raises InvalidInput and UnusableFeed if the cast changes a value.
    """
    dtype, declared = array.dtype, variable.numpy_dtype
    if dtype == declared:
        return array
    if declared.kind == "O" and dtype.kind in "US":
        return array.astype(object)
    if dtype.kind in "OUS" and declared.kind in "iubf":
        array = _to_numbers(variable, array)
    with np.errstate(over="ignore", invalid="ignore"):  # changed values are refused below
        cast = array.astype(declared)
    if declared.kind == "f":
        survived = np.array_equal(np.isinf(cast), np.isinf(array))
    else:
        # NumPy compares int64 with uint64 as float64, so the sign is compared separately.
        survived = np.array_equal(cast, array) and np.array_equal(cast < 0, array < 0)
    if not survived:
        raise InvalidInput(
            f"feed {variable.alias!r} is {dtype} with values beyond {declared}, which the model takes"
        )
    return cast


def _to_numbers(variable: Variable, array: Array) -> Array:
    """Convert an array of objects or texts to numbers. Raises UnusableFeed for other elements."""
    declared = variable.numpy_dtype
    try:
        if array.dtype.kind in "US":
            return array.astype(np.float64 if declared.kind == "f" else np.int64)
        numbers = np.array(array.tolist())
    except (ValueError, OverflowError):
        numbers = array
    if numbers.dtype.kind not in "iubf" or numbers.shape != array.shape:
        kind = "of objects" if array.dtype.kind == "O" else str(array.dtype)
        raise UnusableFeed(f"feed {variable.alias!r} is {kind}, not all of them numbers; expected {declared}")
    return numbers


def _missing(variable: Variable, declared: Sequence[Variable], feeds: Mapping[str, Array]) -> str:
    unknown = sorted(map(str, feeds.keys() - {feed.alias for feed in declared}))
    misspelt = f"; the model has no feed {', '.join(map(repr, unknown))}" if unknown else ""
    return f"feed {variable.alias!r} is missing ({_expected(variable)}){misspelt}"


def _expected(variable: Variable) -> str:
    return f"{variable.dtype} {list(variable.shape)}"
