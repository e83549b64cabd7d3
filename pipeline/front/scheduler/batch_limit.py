"""Online search for the best batch size of an Op with `batch_size: auto`, from the times of its batches.

The code is pure: no clock, no socket.
"""

from __future__ import annotations

import statistics

LIMITS = (4, 8, 16, 32)
WINDOW_S = 0.5  # busy time of a window
ROUNDS_A_WINDOW = 2  # full batches of the larger limit, at least
PAIRS = 3  # windows of a trial, each after a window with the current limit
MIN_GAIN = 0.03  # of the time per request: a smaller gain is noise
MAX_LOSS = 0.15  # of the time per request, in one window: more ends a trial early
FIRST_REST_S, MAX_REST_S = 5.0, 320.0  # without trials, after no other limit was better; doubles each time


class Window:
    """Measurements of a period with one batch size limit: seconds of work, requests, and dispatches."""

    def __init__(self, began: float) -> None:
        self.began = began  # dispatches of before had another limit
        self.busy_s = 0.0
        self.tasks = 0
        self.dispatches = 0

    @property
    def task_s(self) -> float:
        """Seconds of work per request in this window."""
        return self.busy_s / self.tasks


class BatchLimit:
    """Online search for the batch size limit with the least time per request (`batch_size: auto`).

    It compares the current limit with the next smaller and larger limits, and adopts a better one. The
    measure is the time in which the Op had requests, per answered request. It includes the communication with
    workers, and waits of idle instances. A trial alternates between windows of the current limit and of a
    neighbouring limit, so that other work on the machine affects both equally. The pauses between trials grow
    while no trial succeeds.
    """

    def __init__(self, limit: int, max_limit: int, now: float) -> None:
        self.limit = limit  # adopted
        self.used = limit  # of the current window: the adopted limit, or a trial's
        self.saved_share = 0.0  # time per request that the last change has saved
        self._max_limit = max_limit
        self._window = Window(now)
        self._ended = now  # latest end of a dispatch
        self._base_s = 0.0  # time per request of the window before a trial's window
        self._ratios: list[float] = []  # of each pair of windows
        self._candidate = 0  # limit of the trial; 0 between trials
        self._rejected: set[int] = set()  # neighbours that were not better
        self._rest_until = now
        self._rest_s = FIRST_REST_S

    def record(self, queued_at: float, began: float, now: float, tasks: int) -> bool:
        """Record a finished dispatch (a group of tasks sent to a worker). Return whether the limit changes.

        All times are instants of time.monotonic(). queued_at: arrival of its oldest request. began: when the
        dispatch was sent. now: when it ended. tasks: its number of requests.
        """
        busy_s = max(0.0, now - max(self._ended, queued_at))
        self._ended = max(self._ended, now)
        window = self._window
        if began < window.began:
            return False
        window.busy_s += busy_s
        window.tasks += tasks
        window.dispatches += 1
        if window.busy_s < WINDOW_S or window.tasks < ROUNDS_A_WINDOW * max(self.limit, self._candidate):
            return False
        self._window = Window(now)
        before = self.limit, self.used
        self._close(window, now)
        return before != (self.limit, self.used)

    def _close(self, window: Window, now: float) -> None:
        """Evaluate a complete window, and set the limit of the next window."""
        if self.used != self.limit:
            self._compare(window, now)
        else:
            self._base_s = window.task_s
            if self._candidate or now >= self._rest_until:
                self._candidate = self._candidate or self._find_candidate(window)
                self.used = self._candidate or self.limit

    def _compare(self, trial: Window, now: float) -> None:
        """Evaluate a window with the trial's limit: try once more, adopt the limit, or reject it."""
        self._ratios.append(trial.task_s / self._base_s)
        self.used = self.limit
        ends = len(self._ratios) == PAIRS or self._ratios[-1] > 1 + MAX_LOSS
        if not ends:
            return
        ratio = statistics.median(self._ratios)
        if len(self._ratios) == PAIRS and ratio < 1 - MIN_GAIN:
            self._rejected = {self.limit}
            self.limit = self.used = self._candidate
            self.saved_share = 1 - ratio
            self._rest_s = FIRST_REST_S
        else:
            self._rejected.add(self._candidate)
        self._candidate = 0
        self._ratios = []

    def _find_candidate(self, window: Window) -> int:
        """Return the neighbouring limit to try next; 0 to try none.

        It is 0 if batches are too small to show a difference, and for a while after all neighbours were
        rejected.
        """
        mean_tasks = window.tasks / window.dispatches
        lower = [limit for limit in LIMITS if limit < self.limit and limit <= mean_tasks]
        higher = [
            limit for limit in LIMITS if self.limit < limit <= self._max_limit and self.limit <= mean_tasks
        ]
        neighbours = [*lower[-1:], *higher[:1]]
        for limit in neighbours:
            if limit not in self._rejected:
                return limit
        if neighbours:
            self._rejected.clear()
            self._rest_until = self._ended + self._rest_s
            self._rest_s = min(MAX_REST_S, 2 * self._rest_s)
        return 0
