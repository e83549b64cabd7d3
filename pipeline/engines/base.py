"""What an engine looks like from the worker, and the checks every engine makes of its feeds."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.engines.dynamic_shape import DynamicShapes, ShapeRange
from pipeline.errors import ConfigError, InvalidInput, NoArray, UnusableFeed
from pipeline.models.serving_model import ModelReader, ServingModel, Variable, find_model_files, server_folder
from pipeline.models.signature import sized
from pipeline.plugins import ENGINES, find, load

log = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]
LOD_SUFFIX = ".lod"  # a ragged feed's or fetch's offsets, under its alias and this


class Predictor(Protocol):
    """A loaded model. Only one that instances share, as threads, has to bear several runs at a time."""

    @property
    def feeds(self) -> tuple[Variable, ...]: ...
    @property
    def fetches(self) -> tuple[Variable, ...]:
        """The outputs `run` returns, in the order of the fetch list."""
        ...

    @property
    def merges(self) -> bool:
        """Whether fetches have a row for each row fed, so that feeds of several requests may share a run."""
        ...

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in, arrays by alias out; the outputs own their memory.

        Raises InvalidInput for feeds the model does not take, ModelFailed where the engine refuses.
        """
        ...

    def close(self) -> None:
        """Free the model; the predictor can't be run any more."""
        ...


class Engine(ModelReader, Protocol):
    """Software that runs models, found by the entry-point group `paddlewheel.engines`.

    It is made in the script's process and in the front, too, so that its module imports no framework: `load`
    alone does, in the worker.
    """

    @property
    def holds_gil(self) -> bool:
        """Whether Python's lock is held while a model runs, so that threads would only wait for it."""
        ...

    def load(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> Predictor:
        """The model, loaded.

        instance_index: chooses among `devices`. fetch_list: aliases, which go before those of `conf`. Raises
        ConfigError, before anything is loaded, for a configuration this machine can't serve.
        """
        ...


def engine_named(name: str) -> Engine:
    """Raises ConfigError where no installed package has it, or where it can't be loaded."""
    plugins = find(ENGINES)
    if name not in plugins:
        raise ConfigError(f"there is no engine {name!r} here, only {', '.join(plugins)}")
    engine: Engine = load(plugins[name])
    return engine


def engine_of(directory: Path | str, engine: str | None = None) -> Engine:
    """The engine of the serving model there: the one named, else that of its files. Raises ConfigError."""
    return engine_named(engine or find_model_files(server_folder(Path(directory))).engine)


class PredictorTensorRtConf(Protocol):
    """What the predictors read of `local_service_conf.tensorrt`."""

    @property
    def precision(self) -> str | None: ...
    @property
    def cache_dir(self) -> str: ...
    @property
    def shapes(self) -> Mapping[str, ShapeRange] | str | Sequence[str]:
        """Ranges by tensor, or the path of a file of collected ranges, or of one for each length class."""
        ...

    @property
    def auto_collect(self) -> bool: ...
    @property
    def collect_lengths(self) -> Sequence[int]: ...
    @property
    def collect_batches(self) -> Sequence[int]: ...


class PredictorConf(Protocol):
    """What the predictors read of `local_service_conf`; LocalServiceConf is one."""

    @property
    def device_type(self) -> int: ...
    @property
    def devices(self) -> str: ...
    @property
    def thread_num(self) -> int: ...
    @property
    def ir_optim(self) -> bool: ...
    @property
    def mem_optim(self) -> bool: ...
    @property
    def use_calib(self) -> bool: ...
    @property
    def use_mkldnn(self) -> bool | None: ...
    @property
    def mkldnn_cache_capacity(self) -> int: ...
    @property
    def mkldnn_op_list(self) -> Sequence[str] | None: ...
    @property
    def mkldnn_bf16_op_list(self) -> Sequence[str] | None: ...
    @property
    def precision(self) -> str: ...
    @property
    def strict_precision(self) -> bool: ...
    @property
    def min_subgraph_size(self) -> int: ...
    @property
    def fetch_list(self) -> Sequence[str]: ...
    @property
    def tensorrt(self) -> PredictorTensorRtConf: ...


def select_fetches(fetches: Sequence[Variable], aliases: Sequence[str]) -> tuple[Variable, ...]:
    """The fetches of these aliases, all when empty; one under its old name has that for its alias.

    Raises ConfigError for one the model lacks.
    """
    selected = []
    for alias in aliases:
        found = find_fetch(fetches, alias)
        if found is None:
            known = ", ".join(variable.alias for variable in fetches)
            raise ConfigError(f"fetch_list: the model has no {alias!r}, only {known}")
        if found.alias != alias:
            log.info("fetch_list: %s is the output that the model calls %s", alias, found.alias)
        selected.append(replace(found, alias=alias))
    return tuple(selected) or tuple(fetches)


# What Paddle 2 and Paddle 3 call the outputs of a program, by number, where nobody has named them.
_OLD_FETCH = re.compile(r"save_infer_model/scale_(\d+)(?:\.tmp_\d+)?")
_NUMBERED_FETCH = re.compile(rf"{_OLD_FETCH.pattern}|fetch_name_\d+")


def find_fetch(fetches: Sequence[Variable], name: str) -> Variable | None:
    """The fetch of this alias, or None.

    Paddle 2 called the first output `save_infer_model/scale_0.tmp_0` or `.tmp_1`, Paddle 3 calls it
    `fetch_name_0`: a script that asks by an old name still finds it, unless the model's have names of their
    own.
    """
    found = next((variable for variable in fetches if variable.alias == name), None)
    old = _OLD_FETCH.fullmatch(name)
    if found is not None or old is None or int(old[1]) >= len(fetches):
        return found
    numbered = all(_NUMBERED_FETCH.fullmatch(variable.alias) for variable in fetches)
    return fetches[int(old[1])] if numbered else None


def check_feeds(
    declared: Sequence[Variable], feeds: Mapping[str, Array], *, any_shape: bool = False
) -> dict[str, Array]:
    """The feeds by alias, contiguous and in the declared dtypes; of the declared shapes unless `any_shape`.

    Numbers are cast to a declared integer type (bool included) when every value survives, and to a declared
    float type when none overflows; so are numbers in arrays of objects or texts. The offsets of a ragged
    feed "x" stay beside it as "x.lod", int64 [n + 1] for n sequences. What the model lacks is left out, as
    in Paddle Serving up to 0.8: apps give `im_shape` to models with and without it. Raises NoArray and
    UnusableFeed for what is of no use to this model, InvalidInput for anything else that does not fit.
    """
    checked = {}
    for variable in declared:
        if variable.alias not in feeds:
            raise InvalidInput(_missing(variable, declared, feeds))
        array = feeds[variable.alias]
        if is_texts(array):
            array = np.array(array, object)
        if not isinstance(array, np.ndarray):
            raise NoArray(f"feed {variable.alias!r} is of type {type(array).__name__}, expected an ndarray")
        if array.size == 0:
            raise UnusableFeed(f"feed {variable.alias!r} has shape {array.shape} and so no element")
        if not any_shape and not _has_shape(variable, array):
            raise UnusableFeed(_other_shape(variable, array))
        _check_length(variable, array)
        checked[variable.alias] = np.asarray(_cast(variable, array), order="C")
        if variable.is_lod:
            lod = variable.alias + LOD_SUFFIX
            checked[lod] = _offsets(feeds.get(lod), lod, rows=array.shape[0])
    return checked


def is_texts(value: object) -> bool:
    """Whether it is a list of texts, which stands for an array of them."""
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


IMAGE_RANK = 4
IMAGE_SIDE = 4  # an image's side in lengths: detectors want multiples of 32


def input_examples(model: ServingModel | Predictor, rows: int, length: int) -> dict[str, Array]:
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
    """`check_feeds` where those who send them were told the feeds: every refusal is InvalidInput itself."""
    try:
        return check_feeds(declared, feeds)
    except (NoArray, UnusableFeed) as exc:
        raise InvalidInput(exc.message) from exc


def other_shape(declared: Sequence[Variable], feeds: Mapping[str, Array]) -> str | None:
    """What is said of the first feed whose shape is not the declared one; None where there is none."""
    for variable in declared:
        array = feeds.get(variable.alias)
        if array is not None and not _has_shape(variable, array):
            return _other_shape(variable, array)
    return None


def _other_shape(variable: Variable, array: Array) -> str:
    return f"feed {variable.alias!r} has shape {array.shape}, expected {_expected(variable)}"


def _has_shape(variable: Variable, array: Array) -> bool:
    # The sides of an image are the engine's to judge: detectors are exported at 608 x 608 and fed 640 x 640.
    bound = 2 if len(variable.shape) >= IMAGE_RANK else None
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


def _cast(variable: Variable, array: Array) -> Array:
    given, wanted = array.dtype, variable.numpy_dtype
    if given == wanted:
        return array
    if wanted.kind == "O" and given.kind in "US":
        return array.astype(object)
    if given.kind in "OUS" and wanted.kind in "iubf":
        array = _numbers(variable, array)
    elif given.kind not in "iubf" or wanted.kind not in "iubf":
        expected = "objects of str or bytes" if variable.dtype == "string" else wanted
        refusal = InvalidInput if given.kind == "c" else UnusableFeed  # there its real part was run
        raise refusal(f"feed {variable.alias!r} is {given}, expected {expected}")
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
    """What an array of objects or texts holds, where that is numbers. Raises UnusableFeed."""
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
