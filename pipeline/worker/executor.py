"""Executor: answers the requests of one Op in a worker, from their inputs to the replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from client.protos.pipeline_service_pb2 import Response
from pipeline.api.app import App, ServedModel, answered_by
from pipeline.api.dag import Dag
from pipeline.api.op import RESCHEDULED, STREAMED, AnswerSender, Op, OpRequest
from pipeline.dialects.dialect import Form
from pipeline.errors import (
    ConfigError,
    HookFailed,
    InvalidInput,
    ModelFailed,
    RemoteRefused,
    ServingError,
    get_error_fields,
    is_servers,
)
from pipeline.messages.frames import NotEncodable, Part, Tail, encode, stow
from pipeline.messages.messages import Outcome, Ready, Refusal, Settled, Timings
from pipeline.models.tensor_spec import TensorSpec, adapt_array
from pipeline.paddle_serving.channel_data import unpack_outputs
from pipeline.paddle_serving.numpy_1 import print_as_numpy_1
from pipeline.paddle_serving.op_settings import LocalClient, get_op_settings
from pipeline.process.isolation import isolated, log_fault
from pipeline.process.log import keep_our_loggers, one_line
from pipeline.worker.call import Call, picked
from pipeline.worker.error_log import ERRORS
from pipeline.worker.hooks import Hooks, call_init_op, format_cause, get_hooks
from pipeline.worker.model import Model
from pipeline.worker.plan import Slice
from pipeline.worker.runner import Run, Runner
from pipeline.worker.sequence_state import SequenceState
from pipeline.worker.sequence_values import SequenceValues
from pipeline.worker.traced_tensors import describe_tensors

if TYPE_CHECKING:
    from pipeline.worker.generated_answers import GeneratedAnswers

_MAX_LOGGED = 1000  # characters of a message
_TOGETHER_NS = 2_000_000


class Send(Protocol):
    """Callback that sends the results of some requests to the front process.

    `last` completes the dispatch.
    """

    def __call__(self, settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None: ...


MayBegin = Callable[[int], bool]
"""Tells the front that so many requests of a dispatch, the first ones, have begun.

Returns False when the front has taken back the others, which have not begun.
"""


OpenStream = Callable[[Call, Callable[[Call, list[Part]], Settled]], AnswerSender]
"""Returns the sender of several answers to a request. The second argument encodes an output."""


def _nobody_takes_back(requests: int) -> bool:
    return True


def _refuse_stream(call: Call, encode: object) -> AnswerSender:
    raise ModelFailed("a model with several answers a request needs a server: it can't score files")


Fetched = tuple[Call, Any]  # a request and what postprocess is given for it


class Executor:
    """Answers requests of one Op (a step of the service): preprocess, inference, postprocess, replies."""

    def __init__(
        self,
        hooks: Hooks,
        runner: Runner,
        outputs: Outputs,
        probe: Callable[[], str] = str,
        sequence_state: SequenceState | None = None,
        sequence_values: SequenceValues | None = None,
    ) -> None:
        self.probe = probe  # runs the model for nobody; why it failed, or empty
        self._hooks = hooks
        self._runner = runner
        self._outputs = outputs
        self._generated: GeneratedAnswers | None = None
        if hooks.streams:
            from pipeline.worker.generated_answers import GeneratedAnswers  # imports asyncio

            self._generated = GeneratedAnswers(hooks)
        # Predictor batches that end within so long are answered together: the code that a run has thrown out
        # of the caches then comes back once for all of them (docs/decisions/worker-time.md).
        self.together_ns = _TOGETHER_NS
        self._sequence_state = sequence_state  # None for an Op whose model has no state
        self._sequence_values = sequence_values  # None for an Op without `sequence = True`

    def answer_for(self, models: Sequence[ServedModel]) -> None:
        """Set the models that this Op answers for, when the front process has added a model."""
        self._outputs.answers = {model.key: model for model in models}

    def limit_batches(self, requests: int) -> None:
        """Set the maximum number of requests in one inference, within the configured limit."""
        self._runner.limit_requests(requests)

    def run(
        self,
        calls: list[Call],
        tail: Tail,
        send: Send,
        may_begin: MayBegin = _nobody_takes_back,
        open_stream: OpenStream = _refuse_stream,
    ) -> None:
        """Answer every request of a dispatch (a group of requests from the front process), batch by batch.

        Results are sent when an inference ends. Results of short inferences are sent together. `send` is
        called with last=True exactly once, at the end. An exception of a hook fails its request, and one of
        the model at most its batch. Any other exception fails the requests that are not sent yet.
        """
        started = time.perf_counter_ns()
        self._decode_inputs(calls, tail)
        if self._opens_streams:
            for call in calls:
                call.sender = open_stream(call, self._outputs.settled)
        ended = False

        def send_once(settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
            nonlocal ended
            send(settled, tail, timings, last=last)
            ended = last

        try:
            self._run_calls(calls, started, send_once, may_begin)
        except BaseException as exc:
            if ended:
                log_fault(self.run)
                return
            rest = [call for call in calls if not call.sent]
            for call in rest:
                call.error = self._hooks.failure(exc, "the dispatch", call.request)
            self._send_replies(rest, Timings(), send, last=True)

    def _run_calls(self, calls: list[Call], started: int, send: Send, may_begin: MayBegin) -> None:
        if len(calls) == 1 or not self._one_by_one:
            self._run_together(calls, started, send, may_begin, ends=True)
        elif self._runner.runs_model:
            for number, call in enumerate(calls, 1):
                if not may_begin(number):
                    send([], [], Timings(), last=True)
                    return
                self._run_together([call], started, send, _nobody_takes_back, ends=call is calls[-1])
                started = time.perf_counter_ns()
        else:
            self._run_hooks(calls, started, send, may_begin)

    @property
    def _opens_streams(self) -> bool:
        """Whether a request may have several answers, or needs to know that its client has left."""
        return self._runner.streams

    @property
    def _one_by_one(self) -> bool:
        """Whether all hooks of a request must finish before those of the next request begin.

        Apps with `batch_size: 1` rely on this order. They keep a request's state where the next request's
        hooks would overwrite it: in an attribute of the class, or in a list that `init_op` has made.
        """
        is_batchwise = self._hooks.batch_preprocess or self._hooks.batch_postprocess
        return self._runner.one_by_one and not is_batchwise

    def _run_hooks(self, calls: list[Call], started: int, send: Send, may_begin: MayBegin) -> None:
        """Answer the requests of an Op without a model, one after another.

        Small results are sent together. An array is sent before the next request's hooks may overwrite it.
        """
        settled, tail, timings, unsent = list[Settled](), list[Part](), Timings(), list[Call]()
        for number, call in enumerate(calls, 1):
            if not may_begin(number):
                send(settled, tail, timings, last=True)
                return
            self._preprocess([call], _nobody_takes_back)
            between = time.perf_counter_ns()
            self._settled_early([call])
            settled.append(self._outputs.settled(call, tail))
            unsent.append(call)
            ended = time.perf_counter_ns()
            timings.preprocess_ns += between - started
            timings.postprocess_ns += ended - between
            timings.answered += call.error is None
            started = ended
            if tail or call is calls[-1]:
                send(settled, tail, timings, last=call is calls[-1])
                _mark_sent(unsent)
                settled, tail, timings, unsent = [], [], Timings(), []

    def _run_together(
        self, calls: list[Call], started: int, send: Send, may_begin: MayBegin, *, ends: bool
    ) -> None:
        """Preprocess these requests, run inference on them in batches, and answer the batches as they end.

        started: instant of time.perf_counter_ns at which preprocessing began. ends: whether these requests
        are the last of their dispatch.
        """
        calls = self._preprocess(calls, may_begin)
        if self._sequence_state is not None:
            self._sequence_state.add_feeds(calls)
        slices = self._runner.create_slices(calls)
        self._preprocess_ns = time.perf_counter_ns() - started
        started = time.perf_counter_ns()
        settled = self._settled_early(calls)
        early_ns = time.perf_counter_ns() - started
        batches = self._runner.plan(slices)
        open_batches = len(batches)
        for runs in self._run_in_groups(batches):
            for done, timings in self._finish(runs):
                open_batches -= 1
                self._send_replies(settled + done, timings, send, last=ends and not open_batches)
                settled = []
        if not batches:
            answered = 0 if self._runner.runs_model else sum(call.error is None for call in settled)
            timings = Timings(self._preprocess_ns, postprocess_ns=early_ns, answered=answered)
            self._send_replies(settled, timings, send, last=ends)

    def run_step(self, calls: list[Call]) -> list[tuple[int, Timings]]:
        """Run the model on the feeds of these requests, as one step of an ensemble in this worker.

        Sets the output or the error of each request. Returns, for each batch, the number of requests that it
        has completed, and timings.
        """
        started = time.perf_counter_ns()
        batches = self._runner.plan(self._runner.create_slices(calls))
        self._preprocess_ns = time.perf_counter_ns() - started
        refused = sum(call.error is not None for call in calls)
        counts = [(len(done), timings) for done, timings in self._finish([*self._runner.run(batches)])]
        return [*counts, (refused, Timings())] if refused else counts

    def _run_in_groups(self, batches: list[list[Slice]]) -> Iterator[list[Run]]:
        """Run the batches, and yield finished batches in groups that are answered together.

        Finished batches are answered before a long inference begins.
        """
        patience_ns = self._get_patience_ns()
        ran, since_ns = list[Run](), time.perf_counter_ns()
        for number, run in enumerate(self._runner.run(batches), 1):
            ran.append(run)
            over = time.perf_counter_ns() - since_ns >= patience_ns or number == len(batches)
            if over or self._runner.expected_ns(batches[number : number + 1]) >= patience_ns:
                yield ran
                ran, since_ns = [], time.perf_counter_ns()

    def _get_patience_ns(self) -> int:
        """Return how long finished batches may wait to be answered with later batches, in nanoseconds.

        0 where hooks may rely on being called in turn: beside an app's own `process`, and where a batch is
        one request, whose `postprocess` may fill the arrays of the request before. Also 0 for a remote model,
        which may take any time for the next batch. A local model without measured times may do so, too: its
        batches wait as briefly in a shard as in a worker process.
        """
        runner = self._runner
        if self._hooks.own_process or runner.is_remote:
            return 0
        if runner.limits.requests == 1 and not self._hooks.batch_postprocess:
            return 0
        return self.together_ns if runner.is_measured else min(self.together_ns, _TOGETHER_NS)

    def _decode_inputs(self, calls: Iterable[Call], tail: Tail) -> None:
        copies = not self._hooks.batch_preprocess
        for call in calls:
            op: Op | None = None
            failure: BaseException | None = None
            if copies and call.tensors is None:  # a step of an ensemble runs without hooks
                try:
                    op = self._hooks.own_copy()
                except BaseException as exc:  # of the app's own __copy__
                    failure = exc
            call.decode_inputs(tail, op)  # also without a copy: the next request's bytes follow
            if failure is not None:
                call.error = self._hooks.failure(failure, "__copy__", call.request)

    def _preprocess(self, calls: list[Call], may_begin: MayBegin) -> list[Call]:
        """Call preprocess for each request in turn.

        Returns the requests that have begun: the front process has taken back the others.
        """
        hooked = [call for call in calls if call.error is None and not call.direct]
        if self._hooks.batch_preprocess or not hooked:
            if not may_begin(len(calls)):
                return []
            self._begin_sequences(calls)
            hooked = [call for call in hooked if call.error is None]
            if hooked:
                self._preprocess_batch(hooked)
            return calls
        noted = self._runner.set_attributes
        for number, call in enumerate(calls, 1):
            if not may_begin(number):
                return calls[: number - 1]
            self._begin_sequences([call])
            if call.error is not None or call.direct:
                continue
            assert call.op is not None
            try:
                if noted is None:
                    fed = self._hooks.preprocess(call.op, call.request)
                else:
                    with noted.on(call.op) as call.hook_names:
                        fed = self._hooks.preprocess(call.op, call.request)
                self._take_feed(call, *fed)
            except BaseException as exc:  # of a list of the app's own class, say
                call.error = self._hooks.failure(exc, "preprocess", call.request)
        return calls

    def _begin_sequences(self, calls: Iterable[Call]) -> None:
        if self._sequence_values is not None:
            for call in calls:
                self._sequence_values.begin(call)

    def _preprocess_batch(self, calls: Sequence[Call]) -> None:
        feeds = self._hooks.preprocess_batch([call.request for call in calls])
        for call, feed in zip(calls, feeds, strict=True):
            try:
                if not self._hooks.batch_postprocess:
                    call.set_op(self._hooks.own_copy())
                self._take_feed(call, feed, skip=False)
            except BaseException as exc:
                call.error = self._hooks.failure(exc, "preprocess_batch", call.request)

    def _take_feed(self, call: Call, feed: Any, skip: bool) -> None:
        if isinstance(feed, ServingError):
            call.error = feed
            return
        nothing = isinstance(feed, list) and not feed  # of an image without text, say: no feed, no fetch
        if skip or nothing or not self._runner.runs_model:
            call.skip_model(feed)
            return
        call.feed_is_list = isinstance(feed, list)
        call.feeds = feed if call.feed_is_list else [feed]

    def _settled_early(self, calls: Sequence[Call]) -> list[Call]:
        """Return the requests that need no inference: preprocess has refused them, or has made their output.

        Requests with an output are postprocessed here.
        """
        early = [call for call in calls if call.error is not None or call.feeds is None]
        if early:
            self._postprocess([call for call in early if call.error is None])
        return early

    def _finish(self, runs: Sequence[Run]) -> list[tuple[list[Call], Timings]]:
        """Store the outputs of batches, and postprocess the requests that are complete now.

        Returns these requests and timings, for each batch.
        """
        finished = [(self._store_fetches(run), run) for run in runs]
        started = time.perf_counter_ns()
        self._postprocess([call for calls, _ in finished for call in calls if call.error is None])
        took_ns = time.perf_counter_ns() - started
        requests = sum([len(calls) for calls, _ in finished])
        results = []
        for calls, run in finished:
            results.append((calls, self._timings(run, took_ns, len(calls), requests)))
            self._preprocess_ns = 0
        return results

    def _store_fetches(self, run: Run) -> list[Call]:
        """Store the outputs of a batch. Returns the requests whose outputs are complete now."""
        done: list[Call] = []
        for part, fetch in zip(run.batch, run.fetches, strict=True):
            call = part.call
            if isinstance(fetch, ServingError):
                call.error = fetch if call.error is None else call.error
                fetch = None
            if call.add_fetch(part.feed_number, part.number, fetch):
                done.append(call)
        return done

    @isolated(Timings())
    def _timings(self, run: Run, took_ns: int, completed: int, postprocessed: int) -> Timings:
        """Return the timings of a batch.

        took_ns: nanoseconds of the hooks for all requests that were postprocessed together. completed: number
        of the batch's requests among the `postprocessed` ones.
        """
        rows = tokens = longest = answered = 0
        for part, fetch in zip(run.batch, run.fetches, strict=True):
            rows += part.rows
            tokens += part.rows * part.length
            longest = max(longest, part.length)
            answered += 0 if isinstance(fetch, ServingError) or fetch is RESCHEDULED else part.rows
        return Timings(
            self._preprocess_ns,
            run.took_ns,
            took_ns * completed // max(1, postprocessed),
            batches=1,
            rows=rows,
            tokens=tokens,
            padded_tokens=rows * longest,
            answered=answered,
        )

    def _postprocess(self, calls: Sequence[Call]) -> None:
        """Call postprocess for these requests, and store the output or the error of each request."""
        if self._sequence_values is None:
            self._call_postprocess(calls)
            return
        for call in calls:
            self._sequence_values.read_attribute(call)
        self._call_postprocess(calls)
        for call in calls:
            self._sequence_values.collect(call)

    def _call_postprocess(self, calls: Sequence[Call]) -> None:
        fetched: list[Fetched] = []
        for call in calls:
            try:
                fetch = call.fetch()
                if self._sequence_state is not None:
                    fetch = self._sequence_state.take_next(call, fetch)
            except BaseException as exc:
                call.error = self._hooks.failure(exc, "the fetch", call.request)
                continue
            if call.direct:
                call.output = fetch
            else:
                fetched.append((call, fetch))
        if self._hooks.batch_postprocess:
            for group in self._of_one_process(fetched):
                self._postprocess_batch(group)
            return
        if self._generated is not None:
            self._generated.send(fetched)
            return
        for call, fetch in fetched:
            assert call.op is not None
            try:
                if call.process_values is not None:
                    self._hooks.set_attributes.apply(call.op, call.merge_process_values(), call.hook_names)
                call.output = self._hooks.postprocess(call.op, call.request, fetch)
            except BaseException as exc:
                call.error = self._hooks.failure(exc, "postprocess", call.request)

    def _of_one_process(self, fetched: list[Fetched]) -> list[list[Fetched]]:
        """Group requests that share the attributes which one call of the app's `process` has set on `self`.

        All are one group, unless a batch had to be run in parts: then each part is a group.
        """
        if not self._hooks.own_process:
            return [fetched] if fetched else []
        groups: dict[tuple[int, ...], list[Fetched]] = {}
        for call, fetch in fetched:
            runs = () if call.process_values is None else tuple(map(id, call.process_values.values()))
            groups.setdefault(runs, []).append((call, fetch))
        return list(groups.values())

    def _postprocess_batch(self, fetched: list[Fetched]) -> None:
        requests, fetches = [call.request for call, _ in fetched], [fetch for _, fetch in fetched]
        first, _ = fetched[0]
        process_values = {} if first.process_values is None else first.merge_process_values()
        outputs = self._hooks.postprocess_batch(requests, fetches, process_values)
        for (call, _), output in zip(fetched, outputs, strict=True):
            if isinstance(output, ServingError):
                call.error = output
            else:
                call.output = output

    def _send_replies(self, calls: Iterable[Call], timings: Timings, send: Send, *, last: bool) -> None:
        tail: list[Part] = []
        calls = list(calls)
        settled = [self._outputs.settled(call, tail) for call in calls]
        send(settled, tail, timings, last=last)
        _mark_sent(calls)


def _mark_sent(calls: Iterable[Call]) -> None:
    for call in calls:
        call.sent = True
        if call.sender is not None and (call.error is not None or call.output is not STREAMED):
            call.sender.close()


def _log_server_error(error: ServingError, data_id: int) -> bool:
    """Log an error that is the server's fault, with its traceback. Returns whether the error is in the log.

    The front process counts and summarizes errors that are not logged here, among them mistakes of clients
    and of remote services.
    """
    if error.logged or not is_servers(error) or isinstance(error, RemoteRefused):
        return error.logged
    return _log_error(error, data_id)


@isolated(False)
def _log_error(error: ServingError, data_id: int) -> bool:
    trace = format_cause(error)
    message = one_line(get_error_fields(error).message, _MAX_LOGGED)
    return ERRORS.log_error(error, "request %d: %s%s", data_id, message, f"\n{trace}" if trace else "")


class Outputs:
    """Encodes the results of an Op: as the client's response, as input of the next Op, or as an error."""

    def __init__(
        self,
        hooks: Hooks,
        forms: Mapping[str, Form],
        *,
        answers: Mapping[str, ServedModel],
        fetches: Sequence[TensorSpec] = (),
    ) -> None:
        self._hooks = hooks
        self._forms = forms  # of answers, by the names that requests say
        self.answers = answers  # the models whose answer the Op's output is, by their names
        self._fetches = fetches  # the tensors that the Op's model gives

    def settled(self, call: Call, tail: list[Part]) -> Settled:
        """Encode the output or the error of a request. Large parts are appended to `tail`."""
        if call.error is None:
            try:
                outcome, parts = self._outcome(call)
                settled = Settled(call.index, outcome)
                state = [] if call.next_state is None else encode(call.next_state, allow_pickle=True)
                if call.trace is not None and call.trace.with_tensors:
                    settled.tensors = describe_tensors(call)
                settled.parts = stow(parts, tail)
                if state:
                    settled.state = stow(state, tail)
                return settled
            except ServingError as exc:
                call.error = exc
            except BaseException as exc:  # an answer's own __repr__, say: it must not take the batch along
                call.error = self._hooks.failure(exc, "the answer's printing", call.request)
        return Settled(call.index, Outcome.ERROR, refusal=self._refusal(call.error, call.request))

    def _refusal(self, error: ServingError, request: OpRequest) -> Refusal:
        try:
            return Refusal.from_error(error, logged=_log_server_error(error, request.data_id))
        except BaseException as exc:  # of an error of the app's own class
            return Refusal.from_error(self._hooks.failure(exc, "the error's printing", request))

    def _outcome(self, call: Call) -> tuple[Outcome, list[Part]]:
        """Return where a successful request's output goes (client, next Op, jump), and its encoded bytes.

        Raises exceptions of hooks, of encoding, and of the protocol's response format.
        """
        output, hooks = call.output, self._hooks
        if output is STREAMED:
            return Outcome.STREAM, []
        if output is RESCHEDULED:
            return Outcome.RESCHEDULE, []
        if hooks.jumps and not call.direct and hooks.jump(call.op or hooks.op, call.request, output):
            return Outcome.JUMP, self._encoded(output)
        if not call.answers:
            if hooks.unpacks:
                log_id = msgspec.msgpack.encode(call.request.log_id)
                return Outcome.INPUTS, [log_id, *self._encoded(output)]
            return Outcome.VALUE, self._encoded(output)
        model, form = self.answers[call.answers], self._forms[call.form]
        if model.graph.answer is not None:
            requested = form.list_outputs(call.response_options) if form.list_outputs else ()
            output = _pick_answer(call, model.graph, requested)
        if isinstance(output, Response):  # the app's ResponseOp made it
            if form.render_message is not None:
                return Outcome.ANSWER, form.render_message(output)
            output = unpack_outputs(output)
        specs = self._fetches if model.signature is None else model.signature.outputs
        return Outcome.ANSWER, form.render(output, call.response_options, call.model_version, specs)

    def _encoded(self, output: Any) -> list[Part]:
        """Encode an output for another process.

        Raises HookFailed that names the value which can't be encoded.
        """
        try:
            return encode(output, allow_pickle=True)
        except NotEncodable:
            for key, value in output.items():
                try:
                    encode(value, allow_pickle=True)
                except NotEncodable as exc:
                    raise HookFailed(f"[{self._hooks.op.name}] output {key!r}: {exc}") from exc
            raise


def _pick_answer(call: Call, graph: Dag, requested: Collection[str]) -> dict[str, Any]:
    """Return the tensors that answer a request to an ensemble.

    requested: names of outputs; empty: all. Steps may return only some of their outputs. Raises InvalidInput
    if a requested output is not set.
    """
    assert graph.answer is not None
    answer = picked(call.output, graph.answer)
    expected = set(graph.answer.values())
    for source, names in graph.carried.items():
        answer |= picked(call.carried[source], names)
        expected.update(names.values())
    if unset := sorted(expected.intersection(requested or expected) - answer.keys()):
        raise InvalidInput(
            "unexpected deadlock, at least one output is not set while no more ensemble steps can be made: "
            f"no step has returned {', '.join(map(repr, unset))}"
        )
    for name in answer.keys() & graph.answer_axes:
        answer[name] = adapt_array(answer[name], graph.answer_axes[name])
    return answer


LOAD_NOTE = "raised while the model was loaded or warmed up"


@contextmanager
def _marked_as_load() -> Iterator[None]:
    """Mark exceptions of the `with` block as failures to load the model, by a note on the exception.

    The front process may then serve an older version of the model instead.
    """
    try:
        yield
    except Exception as exc:
        exc.add_note(LOAD_NOTE)
        raise


def create_executors(
    op: Op, app: App, name: str, forms: Mapping[str, Form], *, count: int, first: int = 0, shares: bool
) -> tuple[list[Executor], Ready]:
    """Load an Op's model, call its `init_op`, and create an executor for each of `count` instances.

    Returns the executors, and the message that tells the front process of readiness. name: the Op's in `app`.
    forms: response formats of the protocols. first: number of the first instance. shares: the instances share
    a process, so they have no separate `concurrency_idx`. Raises ConfigError, and StartFailed for an
    exception of `init_op`.
    """
    config = app.config.op[name]
    op.concurrency_idx = None if shares else first
    with _marked_as_load():
        model = Model(op, config, app.folder, first, app.choices.get(name), app.config.limits.kserve_rows)
    op.model = model.serving_model
    op.predictor = op._predictor = model.predictor
    if model.sequence_tensors is not None:
        op.sequence_tensors = model.sequence_tensors
    if model.predictor is not None and model.serving_model is not None:
        op.client = LocalClient(model.predictor)
        op._fetch_names = op.client.fetch_names_
    op._settings = get_op_settings(config, op.client)
    if op.model is not None:
        op.set_model_info(op.model)
        model.serving_model = op.model or model.serving_model  # as the Op itself describes it
    call_init_op(op)
    keep_our_loggers()
    with _marked_as_load():
        model.warm_up()
    print_as_numpy_1()
    hooks = get_hooks(op)
    if op.sequence is True and hooks.streams:
        raise ConfigError(
            f"Op {op.name} has sequence = True, and a process or postprocess with yield: remove either"
        )
    signature = model.signature
    limits, joining = model.limits, model.joining
    if op.request_runner is not None:
        limits = replace(limits, requests=config.batch_size)
        joining = replace(joining, ragged=op.ragged_inputs)
    outputs = Outputs(
        hooks,
        forms,
        answers=answered_by(app.models, name),
        fetches=() if signature is None else signature.outputs,
    )
    executors = [
        Executor(
            hooks,
            Runner(hooks, model.predictor, limits, joining, model.costs(), shares_process=count > 1),
            outputs,
            model.probe,
            None if op.sequence_tensors is None else SequenceState(op.sequence_tensors),
            SequenceValues(hooks) if op.sequence is True else None,
        )
        for _ in range(count)
    ]
    return executors, Ready(signature, model.card, streams=op.request_runner is not None or hooks.streams)
