"""Whether a service may have shards: processes that each accept requests over HTTP and run the model."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.api.app import App
from pipeline.config.config_file import (
    DEFAULT_BODIES_BYTES,
    DEFAULT_MAX_PENDING_REQUESTS,
    DEFAULT_MAX_PENDING_ROWS,
)
from pipeline.config.value_types import AUTO_NUMBER
from pipeline.process.environment import usable_cores
from pipeline.tuning.auto import wants_choice


def count_measured_shards(app: App) -> int:
    """Return how many shards `auto` compares with worker processes: one per core, up to the instances.

    A shard is a worker that serves client connections itself. Returns 1 (no comparison) if a single process
    must serve all requests, or if config.yml sets the number of shards. Without the key `shards`, it also
    returns 1 for a service that relies on a single front process.
    """
    config = app.config
    if "shards" not in config.model_fields_set and any(_find_reliances(app)):
        return 1
    if config.shards != AUTO_NUMBER or any(find_obstacles(app)):
        return 1
    instances = config.op[app.ops[0]].concurrency
    return min(usable_cores(), instances * (config.worker_num if config.build_dag_each_worker else 1))


def _find_reliances(app: App) -> Iterator[str]:
    """Yield the reasons why shards (workers that serve connections) are used only if the key `shards` is set.

    Each limit of config.yml applies to each shard separately, and without a value `auto` nothing is measured
    at the start.
    """
    config = app.config
    if not wants_choice(config.op[app.ops[0]]):
        yield "no key of the Op is auto"
    if config.dag.max_pending_requests != DEFAULT_MAX_PENDING_REQUESTS:
        yield "dag.max_pending_requests or dag.channel_size is set"
    if config.dag.max_pending_rows != DEFAULT_MAX_PENDING_ROWS:
        yield "dag.max_pending_rows is set"
    if config.limits.bodies_bytes != DEFAULT_BODIES_BYTES:
        yield "limits.bodies_bytes is set"


def find_obstacles(app: App) -> Iterator[str]:
    """Yield the reasons why a single process must serve all requests, such as state shared by all requests.

    The engine of the Op's model may be a further reason.
    """
    config = app.config
    if app.repository is not None:
        yield "the models come from a repository, whose clients load and unload them"
        return
    if len(app.ops) != 1:
        yield "the DAG has several Ops"
        return
    (op,) = app.ops
    section = config.op[op]
    choice = app.choices.get(op)
    placement_is_chosen = choice is not None and "placement" in choice.left_open
    if config.nodes is not None:
        yield "nodes is set: the workers run on other machines"
    if section.placement == "process" and not placement_is_chosen:
        yield f"op.{op}.placement is process"
    if section.placement == "auto" and not config.dag.is_thread_op:
        yield "dag.is_thread_op is false"
    if config.tls is not None and config.tls.http:
        yield "tls is set"
    if config.security.api_keys is not None:
        yield "security.api_keys: the limits of a key hold for all processes"
    if config.trace.is_possible:
        yield "trace is set: one process writes the traces"
    if app.get_sequence_rules(op) is not None:
        yield f"the requests of Op {op} form sequences"
    if section.max_concurrency is not None:
        yield f"op.{op}.max_concurrency is set"
    if section.timeout > 0:
        yield f"op.{op}.timeout is set"
    if not section.crash_retry:
        yield f"op.{op}.crash_retry is false: no request may run twice"
