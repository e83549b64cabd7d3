"""Sequences of an Op: requests of one correlation id that run in order, and the state between them.

The front keeps the state as the bytes that a worker has encoded, and decodes nothing. Each request of a
sequence takes the state to a worker, and the reply brings the next state. A request that fails, or whose
client leaves, does not change the state. A request that is run again, because its worker died, takes the same
state.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from pipeline.api.request_options import NO_OPTIONS, RequestOptions
from pipeline.api.sequences import ID_RANGES, SequenceRules
from pipeline.config.config_file import Limits
from pipeline.errors import InvalidInput, Overloaded, SequenceLost, ServingError
from pipeline.front.dag_run import Answer, Request, SequenceTurn, Task
from pipeline.messages.frames import Part
from pipeline.models.sequence_tensors import END, MAX_ID_BYTES, START

Key = int | str


class LiveSequence:
    """A live sequence (Triton's stateful batching) of one correlation id: its state and its open requests."""

    __slots__ = ("has_slot", "idle_since", "instance", "key", "size", "started", "state", "turns")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.state: Sequence[Part] | None = None  # as a worker has encoded it; None: the initial state
        self.size = 0  # bytes of the state
        self.started = False  # whether a request with START has succeeded
        self.turns: deque[Turn] = deque()  # in the order of the requests; the first one is current
        self.idle_since = 0.0  # end of the last request, time.monotonic()
        self.has_slot = False  # whether its requests may run; always, unless the model keeps the state itself
        self.instance: object = None  # the worker instance that keeps the state; None: the front keeps it

    @property
    def goes_on(self) -> bool:
        """Whether a new request may join without the flag START: no admitted request ends the sequence."""
        return not self.turns[-1].ends if self.turns else self.started

    def set_state(self, state: Sequence[Part] | None) -> None:
        self.state = state
        self.size = get_size(state)


class Turn:
    """The place of one request in its sequence, from its admission to its end. Implements `SequenceTurn`.

    The request may run the Op several times, in an ensemble or after a jump. Its tasks run one after the
    other, each with the state that the previous task has left.
    """

    __slots__ = (
        "_current",
        "_error",
        "_first_options",
        "_owner",
        "_running",
        "_sequence",
        "_waiting",
        "ends",
        "options",
        "starts",
        "state",
        "was_sent",
    )

    def __init__(
        self, owner: Sequences, sequence: LiveSequence, options: RequestOptions, *, ends: bool
    ) -> None:
        """Create the turn of a request. ends: whether the sequence ends with the request."""
        self._owner = owner
        self._sequence = sequence
        self._first_options = options
        self.ends = ends
        self._reset_options()
        self.state: Sequence[Part] | None = None
        self._waiting: deque[Task] = deque()
        self._current = False
        self._running = False  # whether a task of the request is queued, or in a worker
        self.was_sent = False  # whether a worker has got a task of the request
        self._error: ServingError | None = None  # refuses the request: no state precedes it

    def _reset_options(self) -> None:
        self.options = self._first_options
        self.starts = bool(self.options.flags & START)  # whether the next task starts the sequence

    def admit(self, task: Task) -> bool:
        """Return whether a new task of the request may be queued now. Otherwise the turn queues it later."""
        if self._current and self._error is not None:
            asyncio.get_running_loop().call_soon(task.fail, self._error)
            return False
        if self._current and not self._running:
            self._running = True
            return True
        self._waiting.append(task)
        return False

    def record_state(self, state: Sequence[Part]) -> None:
        """Record that a task of the request has ended. state: the new state; empty if it is unchanged."""
        if state:
            self.state = state
        self._running = False
        self._reset_options()
        self._go_on()

    def reschedule(self, task: Task) -> None:
        """Queue a task again, because its model has asked to run the request again in a later batch.

        From then on, the request has no START or END flags, and only the instance that keeps its state may
        run it.
        """
        self.options, self.starts = self._first_options._replace(flags=0), False
        self._owner.release(task)

    @property
    def sequence(self) -> LiveSequence:
        """The sequence of the request."""
        return self._sequence

    def bind(self, instance: object, *, is_retry: bool) -> ServingError | None:
        """Bind the sequence to the worker instance that gets the request, if the instance keeps its state.

        Returns an error if another instance keeps the state, or if the request has run before.
        """
        self.was_sent = True
        return self._owner.bind(self._sequence, self, instance, is_retry=is_retry)

    def restart(self) -> None:
        """Forget the request's tasks and the states that they produced, because the request runs again."""
        self._waiting.clear()
        self._running = False
        self._reset_options()
        self.state = None if self.starts else self._sequence.state

    def begin(self, error: ServingError | None) -> None:
        """Make the request the current one of its sequence. error: if set, the request fails with it."""
        self._current, self._error = True, error
        self.state = None if self.starts else self._sequence.state
        if error is None:
            self._go_on()
            return
        for task in self._waiting:
            asyncio.get_running_loop().call_soon(task.fail, error)

    def _go_on(self) -> None:
        while self._waiting:
            task = self._waiting.popleft()
            if task.wanted:
                self._running = True
                self._owner.release(task)
                return

    def find_refusal(self) -> ServingError | None:
        """Return an error if all states exceed `limits.sequence_bytes` with the new state, else None."""
        return None if self.ends else self._owner.find_refusal(self._sequence, self.state)

    def end(self, *, succeeded: bool) -> None:
        """End the turn, because the request has ended. If it succeeded, the sequence keeps its new state."""
        self._waiting.clear()
        self._owner.end_turn(self._sequence, self, succeeded=succeeded and self._error is None)


def end_turns(turns: Iterable[SequenceTurn], answer: Answer | None) -> Answer | None:
    """End the turns of a finished request in all its sequences. Return its answer.

    The answer is replaced by an error if a new state can't be kept.
    """
    turns = tuple(turns)
    if isinstance(answer, list):
        answer = next(filter(None, (turn.find_refusal() for turn in turns)), answer)
    for turn in turns:
        turn.end(succeeded=isinstance(answer, list))
    return answer


class Sequences:
    """All live sequences (Triton's stateful batching) of one Op: request order, states, expiry and limits."""

    def __init__(
        self,
        op: str,
        rules: SequenceRules,
        limits: Limits,
        release: Callable[[Task], None],
        clock: Callable[[], float] = time.monotonic,
        list_instances: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        """Create the registry, without sequences. release: queues a task whose predecessor has ended.

        list_instances: returns the ready worker instances.
        """
        self.op = op
        self.expired = 0  # sequences that were freed after the idle time
        self.bytes = 0  # of all states
        self.release = release
        self._model = op.rpartition(":")[0] or op
        self._rules = rules
        self._limits = limits
        self._idle_s = rules.idle_s or limits.sequence_idle_s
        self._clock = clock
        self._by_key: dict[Key, LiveSequence] = {}
        # Sequences without open requests, the longest idle first. A plain dict finds its first entry in time
        # that grows with the entries removed before it: seconds when 100,000 sequences expire together.
        self._idle = OrderedDict[Key, LiveSequence]()
        self._slots = rules.slots or sys.maxsize  # of an instance
        self._list_instances = list_instances
        self._bound = Counter[object]()  # sequences by instance
        self._backlog: deque[LiveSequence] = deque()  # without a slot
        self._timer: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)  # for requests of an iterative model without a correlation id

    @property
    def is_bound(self) -> bool:
        """Whether each sequence is bound to the instance that keeps its state and runs all its requests."""
        return self._rules.bound

    @property
    def live(self) -> int:
        """Number of live sequences."""
        return len(self._by_key)

    def check(self, request: Request) -> None:
        """Raise ServingError for a request that can't join a sequence. Frees expired sequences first.

        The error messages are those of Triton, if Triton has an equivalent error.
        """
        self.expire()
        options = request.options or NO_OPTIONS
        key, name = options.correlation_id, self._model
        if not key and not self._rules.iterative:
            raise InvalidInput(
                f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID"
            )
        if request.rows != 1:
            raise InvalidInput(
                f"inference request to model '{name}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        if key:
            self._check_id(key)
        sequence = self._by_key.get(key)
        if key and not options.flags & START and (sequence is None or not sequence.goes_on):
            raise self._unknown(key)
        if sequence is None and len(self._by_key) >= self._limits.sequences:
            raise Overloaded(
                f"model '{name}' has {len(self._by_key)} live sequences, as many as limits.sequences allows"
            )

    def _check_id(self, key: Key) -> None:
        id_type = self._rules.id_type
        if isinstance(key, str):
            if len(key.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
                raise InvalidInput(
                    f"the correlation ID of model '{self._model}' has more than {MAX_ID_BYTES} bytes: "
                    f"{key[:MAX_ID_BYTES]!r}..."
                )
            if id_type in ID_RANGES:
                raise InvalidInput(
                    f"the correlation ID of model '{self._model}' is a number ({id_type}), and {key!r} is a "
                    "text"
                )
        elif id_type in ID_RANGES and key not in ID_RANGES[id_type]:
            raise InvalidInput(
                f"the correlation ID of model '{self._model}' is a number of {id_type}, which can't hold "
                f"{key}"
            )

    def _unknown(self, key: Key) -> InvalidInput:
        return InvalidInput(
            f"inference request for sequence {key} to model '{self._model}' must specify the START flag on "
            "the first request of the sequence; a sequence also ends after "
            f"{self._idle_s:g} s without a request"
        )

    def join(self, request: Request) -> Turn:
        """Add a request that `check` has accepted to the end of its sequence, and return its turn."""
        options = request.options or RequestOptions(parameters={})  # msgpack encodes no other mapping
        if not options.correlation_id:
            unused = next(number for number in self._ids if number not in self._by_key)
            options = options._replace(correlation_id=unused, flags=START)
        key = options.correlation_id
        sequence = self._by_key.get(key)
        if sequence is None:
            sequence = self._by_key[key] = LiveSequence(key)
        self._idle.pop(key, None)
        turn = Turn(self, sequence, options, ends=self._rules.iterative or bool(options.flags & END))
        sequence.turns.append(turn)
        if len(sequence.turns) == 1:
            if not sequence.has_slot:
                self._backlog.append(sequence)
                self.give_slots()
            else:
                turn.begin(None)
        return turn

    def give_slots(self) -> None:
        """Begin the sequences that wait for a slot of an instance, until no slot is free."""
        while self._backlog:
            sequence = self._backlog[0]
            is_waiting = bool(sequence.turns) and not sequence.has_slot  # else its clients have left
            if is_waiting and self._rules.bound and not self._bind_to_least(sequence, self._slots):
                return
            self._backlog.popleft()
            if is_waiting:
                sequence.has_slot = True
                self._begin_first(sequence)

    def _bind_to_least(self, sequence: LiveSequence, slots: int) -> bool:
        """Bind a sequence to the instance with the fewest sequences.

        Returns False if no instance is ready, or if all slots of that instance are in use.
        """
        instances = self._list_instances()
        instance = min(instances, key=self._bound.__getitem__, default=None)
        if instance is None or self._bound[instance] >= slots:
            return False
        self._set_instance(sequence, instance)
        return True

    def _set_instance(self, sequence: LiveSequence, instance: object) -> None:
        former, sequence.instance = sequence.instance, instance
        if former is not None:
            self._bound[former] -= 1
            if not self._bound[former]:
                del self._bound[former]
        if instance is not None:
            self._bound[instance] += 1

    def group_tasks(self, tasks: Iterable[Task]) -> dict[object, list[Task]]:
        """Group queued tasks by the instance that keeps the state of their sequence.

        If the instance is gone, the task fails, unless it starts its sequence; then the task is bound to
        another instance.
        """
        groups: dict[object, list[Task]] = {}
        instances = self._list_instances()
        for task in tasks:
            turn = task.turn
            if not isinstance(turn, Turn) or not task.wanted:
                continue
            sequence = turn.sequence
            is_ready = sequence.instance in instances
            if is_ready or (turn.starts and self._bind_to_least(sequence, sys.maxsize)):
                groups.setdefault(sequence.instance, []).append(task)
            elif not turn.starts:
                asyncio.get_running_loop().call_soon(task.fail, self._lose(sequence))
        return groups

    def clear_backlog(self, error: ServingError) -> None:
        """Fail the requests of the sequences that wait for a slot, because no instance will come."""
        while self._backlog:
            sequence = self._backlog.popleft()
            if not sequence.has_slot:
                for turn in tuple(sequence.turns):
                    turn.begin(error)

    def _begin_first(self, sequence: LiveSequence) -> None:
        first = sequence.turns[0]
        first.begin(None if first.starts or sequence.started else self._unknown(sequence.key))

    def _remove(self, sequence: LiveSequence) -> None:
        del self._by_key[sequence.key]
        self.bytes -= sequence.size
        self._set_instance(sequence, None)
        self.give_slots()

    def bind(
        self, sequence: LiveSequence, turn: Turn, instance: object, *, is_retry: bool
    ) -> ServingError | None:
        """Bind a sequence to an instance at START. Return an error if another instance keeps its state.

        is_retry: whether an earlier try of the request may have changed the state.
        """
        if not self._rules.bound:
            return None
        if turn.starts:
            self._set_instance(sequence, instance)
            return None
        if sequence.instance is instance and not is_retry:
            return None
        return self._lose(sequence)

    def _lose(self, sequence: LiveSequence) -> SequenceLost:
        """End a sequence whose state is lost, and return the error for its request."""
        sequence.started = False
        return SequenceLost(
            f"sequence {sequence.key} of model '{self._model}' has ended: the instance that kept its state "
            "died, was replaced, or did not answer in time; start the sequence again"
        )

    def find_refusal(self, sequence: LiveSequence, state: Sequence[Part] | None) -> ServingError | None:
        """Return an error if all states exceed `limits.sequence_bytes` with this new state, else None."""
        most = self._limits.sequence_bytes
        if self.bytes - sequence.size + get_size(state) <= most:
            return None
        return Overloaded(
            f"the states of model '{self._model}' have {self.bytes} bytes, and limits.sequence_bytes is "
            f"{most}: sequence {sequence.key} keeps its former state"
        )

    def end_turn(self, sequence: LiveSequence, turn: Turn, *, succeeded: bool) -> None:
        """Remove the turn of a finished request. If it is current, store its state and begin the next."""
        turns = sequence.turns
        was_current = bool(turns) and turns[0] is turn
        turns.remove(turn)
        if not was_current:
            return
        if self._rules.bound and turn.ends and turn.was_sent:
            succeeded = True  # the model has seen the end, even if the client has left
        if succeeded:
            self.bytes -= sequence.size
            sequence.started = not turn.ends
            sequence.set_state(None if turn.ends else turn.state)
            self.bytes += sequence.size
        if turns and not sequence.has_slot:
            return
        if turns:
            self._begin_first(sequence)
        elif sequence.started:
            sequence.idle_since = self._clock()
            self._idle[sequence.key] = sequence
            self._arm()
        else:
            self._remove(sequence)

    def expire(self) -> None:
        """Free the sequences that have been idle for too long."""
        latest = self._clock() - self._idle_s
        while self._idle:
            key, sequence = next(iter(self._idle.items()))
            if sequence.idle_since > latest:
                return
            del self._idle[key]
            self._remove(sequence)
            self.expired += 1

    def _arm(self) -> None:
        """Set the expiry timer for the sequence that has been idle longest, unless a timer is set."""
        if self._timer is None and self._idle:
            first = next(iter(self._idle.values()))
            wait_s = max(0.0, first.idle_since + self._idle_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire_and_arm)

    def stop(self) -> None:
        """Stop the timer: no further sequence expires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire_and_arm(self) -> None:
        self._timer = None
        self.expire()
        self._arm()


def get_size(state: Sequence[Part] | None) -> int:
    """Return the size of an encoded sequence state in bytes."""
    return sum(map(len, state or ()))
