"""File descriptors: as many as the connections need, or as many connections as there are descriptors.

Where there is none left, no client is accepted, and no worker can be started in place of a dead one.
"""

from __future__ import annotations

import logging
import resource

from pipeline.config.config_file import Limits

log = logging.getLogger(__name__)

_OF_A_WORKER = 12  # with those that starting its successor takes
_OTHERS = 64  # ports, logs, libraries


def limits_within(limits: Limits, listeners: int, workers: int, files: int = 0) -> Limits:
    """The limits, with `max_connections` as the process can have for so many listeners and workers.

    workers: those of models that may be loaded later, too. files: that dialects keep open for clients.

    Raises its soft limit of open files where that is too low for them.
    """
    kept = _OTHERS + _OF_A_WORKER * workers + files
    most = _most_files(limits.max_connections * listeners + kept)
    room = max(most - kept, most // 4) // max(1, listeners)
    if room >= limits.max_connections:
        return limits
    log.log(  # a warning where it may be felt: many machines stop just short of two times the default
        logging.INFO if 2 * room > limits.max_connections else logging.WARNING,
        "%d connections of each port are the most, not limits.max_connections (%d): this process may open "
        "%d files (ulimit -n)",
        room,
        limits.max_connections,
        most,
    )
    return limits.model_copy(update={"max_connections": max(1, room)})


def _most_files(wanted: int) -> int:
    """How many files this process may open: as many as wanted, or as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
