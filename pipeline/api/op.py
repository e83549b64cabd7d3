"""Op: the base class of a service's steps.

User code overrides its hooks: preprocess, process, postprocess.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from pipeline.api.request_options import NO_OPTIONS, LogId, RequestOptions
from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.serving_model import ServingModel
from pipeline.paddle_serving.channel_data import ChannelData
from pipeline.paddle_serving.op_settings import LocalServiceHandler, get_argument_settings

if TYPE_CHECKING:
    from client.protos.pipeline_service_pb2 import Request, Response, Tensor

REQUEST_OP = "@DAGExecutor"  # the name under which the first Op finds the request in `input_dicts`
RESPONSE_OP = "@ResponseOp"
_PACKAGE_BATCH_SIZE = 16  # requests in a batch of an overridden RequestOp or ResponseOp

_numbers = itertools.count()


class OpRequest(msgspec.Struct, eq=False):
    """A request as `preprocess_batch` and `postprocess_batch` receive it: inputs, ids and options."""

    input_dicts: dict[str, Any]
    """The output of each input Op by its name; the request itself is {"@DAGExecutor": {key: value}}."""
    data_id: int
    """The request's number in this service."""
    log_id: LogId
    """The client's number of the request, the same in every Op; 0 without one.

    An overridden `unpack_request_package` may set a text, a float or None."""
    # The client's options, see RequestOptions.
    id: str = NO_OPTIONS.id
    priority: int = NO_OPTIONS.priority
    timeout_us: int = NO_OPTIONS.timeout_us
    parameters: Mapping[str, Any] = NO_OPTIONS.parameters
    correlation_id: int | str = NO_OPTIONS.correlation_id
    flags: int = NO_OPTIONS.flags
    outputs: Sequence[str] = NO_OPTIONS.outputs
    state: SimpleNamespace = msgspec.field(default_factory=SimpleNamespace)
    """Data that preprocess_batch passes to postprocess_batch."""
    sequence: Any = None
    """The values of the request's sequence, as `self.sequence`. None for an Op without sequences."""
    traceparent: str = ""
    """The header of this name for requests that the Op sends on; empty for a request that is not traced."""

    @property
    def inputs(self) -> Any:
        """The output of the only preceding step, or the request's values.

        Raises InvalidInput if there are several preceding steps.
        """
        if len(self.input_dicts) != 1:
            raise InvalidInput(f"the Op has the inputs {sorted(self.input_dicts)}: read request.input_dicts")
        (only,) = self.input_dicts.values()
        return only


class AnswerSender(Protocol):
    """Sends several answers to one request, from any thread, even after its batch has run."""

    sent: int  # answers so far
    closed: bool  # no answer follows

    def send(self, output: Any, *, last: bool) -> None:
        """Send an answer: a dict of output tensors, or a ServingError.

        With `last` no answer follows; None instead of an answer only ends the answers.
        """
        ...

    def is_cancelled(self) -> bool:
        """Return whether no client waits for the answers any more."""
        ...


STREAMED: Any = object()  # in place of an output: an AnswerSender sends the answers
RESCHEDULED: Any = object()  # in place of an output: the model wants the request again, in a later batch


class ModelCode(Protocol):
    """Interface of user code that is a model, such as Triton's Python model.

    The worker reads the model's metrics and readiness, and closes the model when the worker ends.
    """

    def own_metrics(self) -> list[Any] | None:
        """Return the model's own Prometheus metrics, a list of `messages.OwnFamily`.

        None if no metric has changed since the last call.
        """
        ...

    @property
    def metrics_changed(self) -> Event | None:
        """Event that is set when a metric has changed since the last report; None without metrics."""
        return None

    @property
    def readiness_check(self) -> Callable[[], bool] | None:
        """A function that returns whether the model is ready; None for a model that has no such function."""
        return None

    def close(self) -> None:
        """Release the model's resources. Called when the worker ends."""
        ...


class RequestRunner(ModelCode, Protocol):
    """Interface that runs a batch of requests without joining their rows, as Triton's Python backend does."""

    def run(
        self,
        requests: Sequence[OpRequest],
        feeds: Sequence[Mapping[str, Any]],
        senders: Sequence[AnswerSender],
    ) -> list[Any]:
        """Return, for each request, a dict of output tensors, a ServingError, STREAMED or RESCHEDULED.

        senders: a sender of answers for each request. An exception fails all requests. No exception may be
        raised after an answer was sent.
        """
        ...


class Op:
    """A step of a service: preprocess, a model, postprocess.

    User code derives from this class; each part is optional. Arguments of the constructor override the Op's
    section of config.yml. Hooks run in the worker process of the Op's instance, never in the front process:
    import tokenizers and frameworks in `init_op`. Attributes that a hook sets on `self` belong to its
    request, those that `process` sets to the requests of its batch. Attributes that `init_op` sets are
    shared.
    """

    dynamic_shape_info: Mapping[str, Mapping[str, Sequence[int]]]
    concurrency_idx: int | None = None  # instance number of this process; None for threads
    predictor: Any = None  # runs the model, here or remotely, from init_op on; None for an Op without one
    _predictor: Any = None  # our reference to it: an app may assign its own predictor to `predictor`
    steps: Mapping[str, Op] | None = (
        None  # by name, the Ops of the steps that its workers run; of an ensemble
    )
    request_runner: RequestRunner | None = None  # runs the Op's requests instead of a predictor
    ragged_inputs: Collection[str] = ()  # inputs of any shape that `request_runner` joins itself
    reshapes: Any = None  # `Reshapes`, where clients see other tensor shapes than the model
    sequence_tensors: Any = None  # `SequenceTensors`, where the model's requests form sequences
    client: Any = None  # Paddle Serving's client of a local model: predict(feed=..., fetch=..., batch=True)
    _fetch_names: Sequence[str] = ()  # for `fetch` of that call in an overridden `process`
    model: ServingModel | None = None  # the Op's model: folder, labels, feeds and fetches
    input_tensors: Mapping[str, str] = {}
    """Optional: the request as KServe v2 clients send it, e.g. `{"text": "BYTES [-1]"}`: by name the
    datatype and the shape, -1 for any length. Hooks find arrays under these names; of BYTES, of `bytes`.
    With `or null`, as in "FP32 [-1] or null", elements may be missing: hooks find NaN, or empty `bytes`.
    Where no Op that is given the request declares any, a BYTES tensor is a key/value text or a list."""
    output_tensors: Mapping[str, str] = {}
    """Optional: what KServe v2 clients are answered with, where this Op's output is the answer."""
    output_labels: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Optional: by output the names of its classes, for clients that ask for a classification."""
    example: Mapping[str, Any] = {}
    """Optional: one row of the `input_tensors` that is answered, as JSON has it, e.g. `{"text": "国足客场"}`;
    shown in /openapi.json and to clients whose request is refused. Without it: ones, and the text "text"."""
    example_key_values: Mapping[str, str] = {}
    """Optional: the same for key/value clients, where they send other keys, e.g. `{"0": "国足客场"}`."""
    example_parameters: Mapping[str, Any] = {}
    """Optional: the `parameters` of KServe that go with `example`, where a request needs some."""
    request_parameters: Mapping[str, str] = {}
    """Optional: by name what such parameters mean, for /openapi.json."""
    row_schema: Mapping[str, Any] = {}
    """Optional: a JSON schema of what KServe v1 answers for an instance, where that is no row of tensors."""
    raw_bodies: Mapping[str, str] = {}
    """Optional: by media type the input that the body of an HTTP request is as a whole, e.g.
    `{"image/*": "image", "text/csv": "rows"}`; hooks find its bytes under that name."""
    example_bodies: Mapping[str, bytes] = {}
    """Optional: by media type a body of such a request."""
    warmup_shapes: Mapping[str, Sequence[int]] = {}
    """Optional: by feed of the model a shape for the warm-up, e.g. `{"input": [1, 512]}`. Without it:
    example.npz beside the model, the shapes of `warmup_shapes` in its serving.yml, or usual lengths."""
    max_batch_size: ClassVar[int] = 0
    """Where tensors are declared: most rows of a request, which all tensors then have on their first axis;
    0: the first axis is none of rows."""
    takes_rows: ClassVar[bool] = False
    """Optional, beside a `max_batch_size` of 0: a first axis of any length is one of rows."""

    request_options: RequestOptions = NO_OPTIONS
    """In `preprocess` and `postprocess`: the request's `id`, `priority`, `timeout_us` and `parameters`, as
    clients of KServe v2 and v1 send them. Batch-wise hooks find them in each request."""
    sequence: Any = False
    """Optional: True for an Op whose requests form sequences. In hooks it is the dict of values that the Op
    keeps for the request's sequence. The front stores the dict between two requests. Batch-wise hooks find it
    in each request. In `process` it is None with a `batch_size` over 1."""

    _text_info: Mapping[str, Any] = {}  # of a text model: maximum tokens of a text, pooling
    _settings: Mapping[str, Any] = {}  # see `pipeline.paddle_serving.op_settings`

    packs_tensors = False  # how a remote Pipeline service is sent the feed, see set_pack_tensor_format

    preprocess_batch: ClassVar[Any] = None
    """Optional: `preprocess_batch(self, requests: list[OpRequest]) -> list[feed dict or Exception]`, for all
    requests that travel together; an exception as an element refuses that request alone. Beside an overridden
    `preprocess` it is no hook but the app's own method; the same holds of postprocess."""
    postprocess_batch: ClassVar[Any] = None
    """Optional: `postprocess_batch(self, requests: list[OpRequest], fetches: list[fetch dict])
    -> list[dict or Exception]`, for the requests of a predictor batch, or of several that end together."""

    def __init__(
        self,
        name: str | None = None,
        input_ops: Sequence[Op] | Op | None = None,
        server_endpoints: Sequence[str] | None = None,
        fetch_list: Sequence[str] | None = None,
        client_config: Any = None,
        client_type: str | None = None,
        concurrency: int | None = None,
        timeout: int | None = None,
        retry: int | None = None,
        batch_size: int | None = None,
        auto_batching_timeout: int | None = None,
        local_service_handler: LocalServiceHandler | None = None,
        jump_to_ops: Sequence[Op] | Op | None = None,
    ) -> None:
        self.name = name or f"Op{next(_numbers)}"
        options = {
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
        self.given_options = {key: value for key, value in options.items() if value is not None}
        self._settings = get_argument_settings(options)
        self.dynamic_shape_info = {}
        if local_service_handler is not None:
            if not isinstance(local_service_handler, LocalServiceHandler):
                kind = type(local_service_handler).__name__
                raise ConfigError(
                    f"Op {self.name}: local_service_handler is a {kind}; it takes a LocalServiceHandler"
                )
            self.given_options["local_service_conf"] = local_service_handler.local_service_conf
            self.dynamic_shape_info = local_service_handler.dynamic_shape_info
        self.set_input_ops(input_ops)
        self.set_jump_to_ops(jump_to_ops)
        self.set_dynamic_shape_info()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a setting of config.yml by its attribute name in Paddle Serving, such as `op._timeout`.

            Called only for attributes that user code has not set.
            """
            try:
                return self._settings[name]
            except KeyError:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def _log(self, info: Any) -> str:
        """Return a log message prefixed with the step's name.

        User code may call this method, which Paddle Serving's Op has, too.
        """
        return f"{self.name} {info}"

    def _check_input_ops(self, ops: Sequence[Op] | Op | None, argument: str) -> list[Op]:
        ops = [ops] if isinstance(ops, Op) else ops
        for op in ops or ():
            if not isinstance(op, Op):
                raise ConfigError(f"Op {self.name}: {argument} holds a {type(op).__name__}; it takes Ops")
        return list(ops or ())

    def set_input_ops(self, ops: Sequence[Op] | Op | None) -> None:
        """Set the preceding steps, whose outputs `preprocess` receives: a list of Ops, or a single Op.

        Raises ConfigError for other values.
        """
        self.input_ops = self._check_input_ops(ops, "input_ops")

    def get_input_ops(self) -> list[Op]:
        return self.input_ops

    def set_jump_to_ops(self, ops: Sequence[Op] | Op | None) -> None:
        """Set the steps (Ops) to which a request's output jumps when `check_jumping` returns true.

        The output goes to the consumers of these Ops, instead of this Op's consumers.
        """
        self.jump_to_ops = self._check_input_ops(ops, "jump_to_ops")

    def get_jump_to_ops(self) -> list[Op]:
        return self.jump_to_ops

    def is_jump_op(self) -> bool:
        return bool(self.jump_to_ops)

    def set_pack_tensor_format(self, is_tensor_format: bool = False) -> None:
        """Set whether inputs are sent to a remote Pipeline service as tensors instead of texts.

        Applies to `client_type: pipeline_grpc`.
        """
        self.packs_tensors = is_tensor_format

    def init_op(self) -> Any:
        """Load tokenizers and other shared objects. User code overrides this method.

        Called once per worker process, for all its threads.
        """

    def set_dynamic_shape_info(self) -> None:
        """Set `self.dynamic_shape_info`, the range of input shapes for TensorRT.

        User code overrides this method. Called by the constructor. The value: `{"min_input_shape": {tensor:
        shape}, "max_input_shape": ..., "opt_input_shape": ...}`.
        """

    def set_model_info(self, model: ServingModel) -> None:
        """Set attributes that depend on the loaded model, such as `self.input_tensors`.

        User code overrides this method. Called before clients see the model, and in each worker before
        `init_op`. Raises ConfigError.
        """

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        """Turn a request into the model's input tensors by name (a feed dict), or into a list of feed dicts.

        Return `(feed, is_skip_process, prod_errcode, prod_errinfo)`, or the feed alone. `data_id` is the
        request's number in this service, `log_id` the client's. By default, the only input is passed on
        unchanged.
        """
        if len(input_dicts) != 1:
            raise InvalidInput(
                f"Op {self.name} has the inputs {sorted(input_dicts)}: override preprocess to join them"
            )
        (only,) = input_dicts.values()
        return only, False, None, ""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> Any:
        """Run the model on a batch and return `(output dict, err_code, err_info)`.

        The default runs the predictor. `feed_batch` has one dict: the input arrays of all requests of the
        batch, joined.
        """
        feed = feed_batch[0]
        fetch = feed if self._predictor is None else self._predictor.run(feed)
        return fetch, None, ""

    def postprocess(
        self, input_dicts: dict[str, Any], fetch_dict: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        """Turn a request's rows of the model's output into the step's output.

        Return `(dict, prod_errcode, prod_errinfo)`, or the dict alone. The default returns the model's
        output.
        """
        return fetch_dict, None, ""

    def start(self) -> None:
        """Set the first values of a sequence in `self.sequence`. User code overrides this method.

        Called before `preprocess` of the first request of a sequence, in an Op with `sequence = True`.
        """

    def end(self) -> None:
        """Handle the end of a sequence. User code overrides this method.

        Called after `postprocess` of a request with `sequence_end`. Not called for sequences that expire.
        """

    def check_jumping(self, input_data: Any) -> bool:
        """Return whether a request's output jumps to the consumers of `jump_to_ops`.

        Otherwise the output goes to the step's own consumers. User code overrides this method.
        """
        return False


class RequestOp(Op):
    """The start of the DAG: parses the request. `get_pipeline_response` receives it as `read_op`.

    An overridden `unpack_request_package` runs in workers, as an Op named @DAGExecutor.
    """

    def __init__(self) -> None:
        super().__init__(name=REQUEST_OP, batch_size=_PACKAGE_BATCH_SIZE)

    def unpack_request_package(self, request: Request) -> Any:
        """Turn the request message into the first steps' input: `(dict, log_id, prod_errcode, prod_errinfo)`.

        The default returns each value under its key, and each tensor under its name.
        """
        from pipeline.paddle_serving.channel_data import unpack_inputs

        return unpack_inputs(request), request.logid, None, ""

    def proto_tensor_2_numpy(self, tensor: Tensor) -> tuple[Any, Any]:
        """Convert a protobuf tensor to an ndarray or a str. Return it with its level of detail (lod) or None.

        Called by an overridden `unpack_request_package`.
        """
        from pipeline.paddle_serving.channel_data import unpack_tensor

        return unpack_tensor(tensor)

    @property
    def unpacks(self) -> bool:
        """Whether user code overrides `unpack_request_package`."""
        return type(self).unpack_request_package is not RequestOp.unpack_request_package


class ResponseOp(Op):
    """The end of the DAG: builds the response from the last step's output.

    Passed to `PipelineServer.set_response_op`. An overridden `pack_response_package` runs in workers, as an
    Op named @ResponseOp. Otherwise the worker of the last Op packs the response.
    """

    def __init__(self, input_ops: Sequence[Op]) -> None:
        super().__init__(name=RESPONSE_OP, input_ops=input_ops, batch_size=_PACKAGE_BATCH_SIZE)
        self.is_pack_tensor = False
        if len(self.input_ops) != 1:
            raise ConfigError(f"ResponseOp has {len(self.input_ops)} input_ops; give it the last Op alone")

    def pack_response_package(self, channeldata: ChannelData) -> Response:
        """Turn the last step's output, or an error (`error_code`, `error_info`), into the response message.

        By default, the response is the same as without a ResponseOp.
        """
        from pipeline.paddle_serving.channel_data import build_response

        return build_response(channeldata)

    def set_pack_format(self, isTensor: bool = False) -> None:
        """Set `is_pack_tensor` for user code that overrides `pack_response_package`.

        The default ignores it.
        """
        self.is_pack_tensor = isTensor

    @property
    def packs(self) -> bool:
        """Whether user code overrides `pack_response_package`."""
        return type(self).pack_response_package is not ResponseOp.pack_response_package


def overrides(op: Op, hook: str) -> bool:
    """Whether user code overrides a method (`hook`) of a step, in its class or by `op.process = ...`."""
    method = getattr(op, hook)
    return getattr(method, "__func__", method) is not getattr(Op, hook)
