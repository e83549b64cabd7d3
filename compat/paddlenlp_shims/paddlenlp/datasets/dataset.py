"""Data sets of examples from a user's function, or from local JSON, CSV and text files."""

from __future__ import annotations

import csv
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

Example = Any


class MapDataset:
    """A data set with a length and random access; `map`, `filter` and `shard` change the data set in place.

    label_list, vocab_info: labels and vocabulary, as provided by the user's function.
    """

    def __init__(self, data: Any, **kwargs: Any) -> None:
        self.label_list = kwargs.pop("label_list", None)
        self.vocab_info = kwargs.pop("vocab_info", None)
        self.info = kwargs
        self.data = data
        self.new_data = data
        self._functions: list[Callable[[Example], Example]] = []

    def __getitem__(self, idx: int) -> Example:
        example = self.new_data[idx]
        for function in self._functions:
            example = function(example)
        return example

    def __len__(self) -> int:
        return len(self.new_data)

    def filter(self, fn: Callable[[Example], bool], num_workers: int = 0) -> MapDataset:
        """Keep the examples for which the function is true, and return this data set.

        Lazy functions of `map` are not applied to the function's arguments. num_workers has no effect.
        """
        self.new_data = [example for example in self.new_data if fn(example)]
        return self

    def shard(
        self, num_shards: int | None = None, index: int | None = None, contiguous: bool = False
    ) -> MapDataset:
        """Keep one of `num_shards` parts, the part `index`, and return this data set.

        contiguous: keep a block of examples instead of every n-th example. Without `num_shards` all examples
        are kept.
        """
        parts, part = num_shards or 1, index or 0
        if contiguous:
            size, more = divmod(len(self), parts)
            start = size * part + min(part, more)
            self.new_data = [self.new_data[i] for i in range(start, start + size + (part < more))]
        else:
            self.new_data = [self.new_data[i] for i in range(part, len(self), parts)]
        return self

    def map(
        self, fn: Callable[[Any], Any], lazy: bool = True, batched: bool = False, num_workers: int = 0
    ) -> MapDataset:
        """Replace each example by the function's result, and return this data set.

        lazy: call the function when an example is read, unless `num_workers` is 2 or more. batched: call the
        function once with all examples.
        """
        if batched:
            self.new_data = fn(self.new_data)
        elif lazy and num_workers < 2:
            self._functions.append(fn)
        else:
            self.new_data = [fn(example) for example in self.new_data]
        return self


class IterDataset:
    """A data set without random access: examples of a generator function or of any iterable.

    `map`, `filter`, `shard` and `skip` change the data set in place.
    """

    def __init__(self, data: Any, **kwargs: Any) -> None:
        self.label_list = kwargs.pop("label_list", None)
        self.vocab_info = kwargs.pop("vocab_info", None)
        self.data = data
        self._functions: list[Callable[[Example], Example]] = []
        self._filters: list[Callable[[Example], bool]] = []
        self._part = (1, 0)

    def __iter__(self) -> Iterator[Example]:
        parts, part = self._part
        for number, example in enumerate(self.data() if inspect.isfunction(self.data) else self.data):
            if number % parts != part or not all(keep(example) for keep in self._filters):
                continue
            for function in self._functions:
                example = function(example)
            yield example

    def skip(self, n: int) -> IterDataset:
        """Leave out the first `n` examples, and return this data set.

        Raises NotImplementedError for a data set that is made from a function.
        """
        if inspect.isfunction(self.data):
            raise NotImplementedError(
                "an IterDataset of a function can't skip examples; make it of an iterator"
            )
        self.data = islice(self.data, n, None)
        return self

    def filter(self, fn: Callable[[Example], bool]) -> IterDataset:
        """Keep the examples for which the function is true, and return this data set.

        The functions of `map` are not applied to the function's arguments.
        """
        self._filters.append(fn)
        return self

    def shard(self, num_shards: int | None = None, index: int | None = None) -> IterDataset:
        """Keep every `num_shards`-th example, beginning with `index`, and return this data set."""
        self._part = (num_shards or 1, index or 0)
        return self

    def map(self, fn: Callable[[Example], Example]) -> IterDataset:
        """Replace each example by the function's result, and return this data set."""
        self._functions.append(fn)
        return self


Dataset = MapDataset | IterDataset


def load_dataset(
    path_or_read_func: str | Callable[..., Any],
    name: str | None = None,
    data_files: Any = None,
    splits: Any = None,
    lazy: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Load a data set from a user's function, or from local files.

    path_or_read_func: a function that yields examples; other arguments are passed on if the function declares
    them. Or the format of files: "json" (an object per line, or one list), "csv" (a dict per line) or "text"
    (`{"text": line}`). data_files: paths of these files, or a dict of paths by split. A dict, or several
    `splits`, gives a list of data sets. lazy: return an IterDataset instead of a MapDataset. Raises
    FileNotFoundError for the name of a data set that PaddleNLP would download, and AssertionError for a
    function without `lazy`.
    """
    if callable(path_or_read_func):
        if lazy is None:
            raise AssertionError(
                "load_dataset of a function needs lazy=False (MapDataset) or lazy=True (IterDataset)"
            )
        arguments = {**kwargs, "name": name, "data_files": data_files, "splits": splits}
        accepted = inspect.signature(path_or_read_func).parameters
        return _dataset(
            path_or_read_func, {key: arguments[key] for key in accepted if key in arguments}, lazy
        )
    read = READERS.get(path_or_read_func)
    if read is None or data_files is None:
        raise FileNotFoundError(
            f"the data set {path_or_read_func!r} would be downloaded by PaddleNLP; here nothing is "
            "downloaded: give "
            f"load_dataset a function that reads your files, or one of {', '.join(READERS)} with "
            "data_files=..."
        )
    files = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    split_names = list(files) if splits is None else [splits] if isinstance(splits, str) else list(splits)
    sets = [_dataset(read, {"data_files": files[split]}, bool(lazy)) for split in split_names]
    return sets[0] if len(sets) == 1 else sets


def _dataset(read: Callable[..., Any], arguments: dict[str, Any], lazy: bool) -> Dataset:
    if lazy:
        return IterDataset(lambda: iter(read(**arguments)))
    return MapDataset(list(read(**arguments)))


def _paths(data_files: Any) -> list[Path]:
    return [Path(path) for path in ([data_files] if isinstance(data_files, (str, Path)) else data_files)]


def _read_json(data_files: Any) -> Iterable[Example]:
    for path in _paths(data_files):
        text = path.read_text("utf-8")
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            yield from (json.loads(line) for line in text.split("\n") if line.strip())


def _read_csv(data_files: Any) -> Iterable[Example]:
    for path in _paths(data_files):
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


def _read_text(data_files: Any) -> Iterable[Example]:
    for path in _paths(data_files):
        with path.open(encoding="utf-8") as file:
            yield from ({"text": line.rstrip("\n")} for line in file)


READERS: dict[str, Callable[..., Iterable[Example]]] = {
    "json": _read_json,
    "csv": _read_csv,
    "text": _read_text,
}
