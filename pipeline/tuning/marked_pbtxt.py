"""Writes the settings of `paddlewheel tune --model-repository` into config.pbtxt, between marks. Example:

    # tuned: begin, by paddlewheel tune on ...
    instance_group {
      count: 2
    }
    # tuned: end
    # before tuning: instance_group { count: 1 }

The text format takes dynamic_batching once, and adds instance groups up. The previous lines of both fields
are therefore commented out. The next tuning restores them first. All other lines stay byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInstanceGroup
from pipeline.errors import ConfigError
from pipeline.models.protobuf_text import format_message, parse_message
from pipeline.tuning.marked_lines import comment_out, describe_marks, without_settings
from pipeline.tuning.tune import BEAM_WIDTH, DELAYS_MS, Goal, Settings, Step

FIELDS = "instance_group", "dynamic_batching"
_TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w.]+|[{}<>\[\]]|[^\s\w]""")
_MAX_SPACE = 100  # characters between a field's colon and its value
_US_PER_MS = 1000


class ModelSettings(Settings, frozen=True):
    """Settings of a model in a model repository: instances, and the delay of dynamic batches.

    A batch size of 1 means no dynamic batching.
    """

    @property
    def name(self) -> str:
        """Name for tables, e.g. "2 instances, dynamic batching, delay 1 ms"."""
        instances = f"{self.instances} instance{'s' * (self.instances > 1)}"
        if self.batch == 1:
            return f"{instances}, no dynamic batching"
        return f"{instances}, dynamic batching, delay {self.delay_ms:g} ms"


class ModelGoal(Goal, frozen=True):
    """Goal and limits of the search for a model in a repository."""

    batches: tuple[int, ...] = (1,)  # 1: without dynamic batching

    def first(self) -> list[Settings]:
        """Return no candidates besides the settings of config.pbtxt: a model has only one engine."""
        return []

    def steps(self) -> tuple[Step, ...]:
        """Return the steps of the search: first instances, then dynamic batching, then the queue delay."""

        def vary(key: str, values: tuple[Any, ...], best: Settings) -> list[Settings]:
            return [msgspec.structs.replace(best, **{key: value}) for value in values]

        return (
            lambda best: vary("instances", self._list_counts(), best),
            lambda best: vary("batch", self.batches, best),
            lambda best: vary("delay_ms", DELAYS_MS if best.batch != 1 else DELAYS_MS[:1], best),
        )

    def max_candidates(self) -> int:
        """Return the maximum number of candidates that a search for this goal measures."""
        return 1 + BEAM_WIDTH * (len(self._list_counts()) + len(self.batches) + len(DELAYS_MS))

    def _list_counts(self) -> tuple[int, ...]:
        powers = {2**power for power in range(self.cores.bit_length())}
        return tuple(sorted(powers | {self.cores, self.cores + 1}))


def parse_model_settings(config: ModelConfig) -> ModelSettings:
    """Return the settings of a model's config.pbtxt.

    Raises ConfigError for a model that can't be tuned, with the reason.
    """
    kind = config.WhichOneof("scheduling_choice")
    if kind == "ensemble_scheduling" or config.platform == "ensemble":
        raise ConfigError("an ensemble has no instances; tune the models of its steps")
    if kind == "sequence_batching":
        raise ConfigError("a model with sequence_batching keeps its settings: its load is that of sequences")
    if len(config.instance_group) > 1:
        raise ConfigError("config.pbtxt has several instance groups; tuning changes the count of one")
    count, on_gpu = 1, False
    for group in config.instance_group:
        count, on_gpu = max(1, group.count), group.kind == ModelInstanceGroup.KIND_GPU
    if on_gpu:
        raise ConfigError("the instances run on GPUs; tuning measures instances on the CPU")
    batch = max(1, config.max_batch_size) if kind == "dynamic_batching" else 1
    delay_ms = config.dynamic_batching.max_queue_delay_microseconds / _US_PER_MS if batch > 1 else 0
    return ModelSettings("", "", count, 0, batch, delay_ms)


def build_fields(config: ModelConfig, settings: Settings) -> ModelConfig:
    """Return the fields instance_group and dynamic_batching of config.pbtxt, changed to these settings.

    Other settings in the two fields are kept.
    """
    fields = ModelConfig(instance_group=config.instance_group or [ModelInstanceGroup()])
    fields.instance_group[0].count = settings.instances
    if settings.batch != 1:
        fields.dynamic_batching.CopyFrom(config.dynamic_batching)
        fields.dynamic_batching.max_queue_delay_microseconds = round(settings.delay_ms * _US_PER_MS)
    return fields


def parse_untuned(text: str, source: str) -> ModelConfig:
    """Parse config.pbtxt as it was before the last tuning. source: path of the file, for errors."""
    return parse_message(without_settings(text, source), ModelConfig, source)


def with_model_settings(text: str, settings: Settings, source: str) -> str:
    """Return the text of config.pbtxt with the tuned settings.

    source: path of the file, for errors. Raises ConfigError for a field that shares a line with another
    field.
    """
    plain = without_settings(text, source)
    config = parse_message(plain, ModelConfig, source)
    lines = plain.splitlines(keepends=True)
    places = list(_find_lines(plain, source))
    for start, end in places:
        lines[start:end] = [comment_out(line) for line in lines[start:end]]
    line_end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += line_end
    begin, end_mark = describe_marks()
    block = [begin, *format_message(build_fields(config, settings)).splitlines(), end_mark]
    position = places[0][0] if places else len(lines)
    lines[position:position] = [line + line_end for line in block]
    return "".join(lines)


def _find_lines(text: str, source: str) -> Iterator[tuple[int, int]]:
    """Yield the line ranges of the tuned config.pbtxt fields (`FIELDS`).

    Raises ConfigError if a line also has another field.
    """
    fields_by_line: dict[int, set[str]] = {}
    depth, field, line, counted_to = 0, "", 0, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", counted_to, token.start())
        counted_to = token.start()
        word = token[0]
        if word.startswith("#"):
            continue
        if depth == 0 and re.match(r"[A-Za-z_]", word) and not _ends_with_colon(text, token.start()):
            field = word
        depth += (word in "{<[") - (word in "}>]")
        fields_by_line.setdefault(line, set()).add(field)
    start = end = -1
    for line, fields in sorted(fields_by_line.items()):
        tuned = fields.intersection(FIELDS)
        if tuned and len(fields) > 1:
            raise ConfigError(f"{source}, line {line + 1}: write {tuned.pop()} on lines of its own")
        if tuned:
            start, end = (line if start < 0 else start), line + 1
        elif start >= 0:
            yield start, end
            start = -1
    if start >= 0:
        yield start, end


def _ends_with_colon(text: str, position: int) -> bool:
    """Return whether the text before a word ends with a colon, as in `runtime: NAME`: NAME is a value."""
    return text[max(0, position - _MAX_SPACE) : position].rstrip().endswith(":")
