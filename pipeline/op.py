"""Op: one step of a service, with the hooks that the user overrides."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from pipeline.errors import ConfigError, InvalidInput
from pipeline.serving_model import ServingModel

REQUEST_OP = "@DAGExecutor"  # the name under which the first Op finds the request in `input_dicts`

_numbers = itertools.count()


class OpRequest:
    """One request as the batch-wise hooks see it.

    input_dicts: the output of each input Op by its name; the request is {"@DAGExecutor": {key: value}}.
    state: whatever preprocess_batch wants to find again in postprocess_batch.
    """

    __slots__ = ("data_id", "input_dicts", "log_id", "state")

    def __init__(self, input_dicts: dict[str, Any], data_id: int, log_id: int) -> None:
        self.input_dicts = input_dicts
        self.data_id = data_id
        self.log_id = log_id
        self.state = SimpleNamespace()

    @property
    def inputs(self) -> Any:
        """The output of the only input Op. Raises InvalidInput when there are several."""
        if len(self.input_dicts) != 1:
            raise InvalidInput(f"the Op has the inputs {sorted(self.input_dicts)}: read request.input_dicts")
        return next(iter(self.input_dicts.values()))


class Op:
    """One step of the DAG: preprocess, a model, postprocess; each of them optional.

    Arguments win over the Op's section of config.yml. Hooks run in the worker process of the Op's instance,
    never in the process that answers HTTP and gRPC: import tokenizers and frameworks in `init_op`.
    """

    dynamic_shape_info: Mapping[str, Mapping[str, Sequence[int]]]
    concurrency_idx: int | None = None  # this instance's number, 0 to concurrency - 1
    predictor: Any = None  # the local predictor, from init_op on; None for an Op without a model
    model: ServingModel | None = None  # what it runs: its folder, labels, feeds and fetches

    preprocess_batch: ClassVar[Any] = None
    """Optional: `preprocess_batch(self, requests: list[OpRequest]) -> list[feed dict or Exception]`, for all
    requests that travel together; an exception as an element refuses that request alone."""
    postprocess_batch: ClassVar[Any] = None
    """Optional: `postprocess_batch(self, requests: list[OpRequest], fetches: list[fetch dict])
    -> list[dict or Exception]`, for the requests of one predictor batch."""

    def __init__(
        self,
        name: str | None = None,
        input_ops: Sequence[Op] | None = None,
        server_endpoints: Sequence[str] | None = None,
        fetch_list: Sequence[str] | None = None,
        client_config: Any = None,
        client_type: str | None = None,
        concurrency: int | None = None,
        timeout: int | None = None,
        retry: int | None = None,
        batch_size: int | None = None,
        auto_batching_timeout: int | None = None,
        local_service_handler: Any = None,
        jump_to_ops: Sequence[Op] | None = None,
    ) -> None:
        self.name = name or f"{type(self).__name__}_{next(_numbers)}"
        given = {
            "server_endpoints": server_endpoints,
            "fetch_list": fetch_list,
            "client_config": client_config,
            "client_type": client_type,
            "concurrency": concurrency,
            "timeout": timeout,
            "retry": retry,
            "batch_size": batch_size,
            "auto_batching_timeout": auto_batching_timeout,
        }
        self.options = {key: value for key, value in given.items() if value is not None}
        self.input_ops = self._checked(input_ops, "input_ops")
        self.jump_to_ops = self._checked(jump_to_ops, "jump_to_ops")
        self.dynamic_shape_info = {}
        self.set_dynamic_shape_info()

    def _checked(self, ops: Sequence[Op] | None, argument: str) -> list[Op]:
        for op in ops or ():
            if not isinstance(op, Op):
                raise ConfigError(f"Op {self.name}: {argument} holds a {type(op).__name__}; it takes Ops")
        return list(ops or ())

    def set_jump_to_ops(self, ops: Sequence[Op]) -> None:
        """The Ops to whose consumers this Op's output goes when `check_jumping` says so."""
        self.jump_to_ops = self._checked(ops, "jump_to_ops")

    def init_op(self) -> None:
        """Called once per instance, in its process: load tokenizers and the like here."""

    def set_dynamic_shape_info(self) -> None:
        """Called at construction; sets `self.dynamic_shape_info` to
        `{"min_input_shape": {tensor: shape}, "max_input_shape": ..., "opt_input_shape": ...}`."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        """A request to a feed or a list of feeds: `(feed, is_skip_process, prod_errcode, prod_errinfo)`, or
        the feed alone. The default passes the only input on."""
        if len(input_dicts) != 1:
            raise InvalidInput(
                f"Op {self.name} has the inputs {sorted(input_dicts)}: override preprocess to join them"
            )
        (only,) = input_dicts.values()
        return only, False, None, ""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> Any:
        """A merged feed to a fetch: `(fetch dict, err_code, err_info)`. The default runs the predictor."""
        feed = feed_batch[0]
        fetch = feed if self.predictor is None else self.predictor.run(feed)
        return fetch, None, ""

    def postprocess(
        self, input_dicts: dict[str, Any], fetch_dict: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        """A request's rows of the fetch to its output: `(dict, prod_errcode, prod_errinfo)` or the dict
        alone. The default returns the fetch."""
        return fetch_dict, None, ""

    def check_jumping(self, input_data: Any) -> bool:
        """Whether this request's output goes to the consumers of `jump_to_ops` instead of its own."""
        return False


class RequestOp(Op):
    """The source of the DAG: what `get_pipeline_response` is given as `read_op`."""

    def __init__(self) -> None:
        super().__init__(name=REQUEST_OP)
