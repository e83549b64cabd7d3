"""The script's handler of SIGTERM, which one worker calls when the service has stopped serving."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from pipeline.messages.messages import STOP_HANDLER_S
from pipeline.process.log import lines_written

log = logging.getLogger(__name__)

StopHandler = Callable[[int, FrameType | None], object]


def get_stop_handler() -> StopHandler | None:
    """Return the handler that the script has set in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler if callable(handler) and not isinstance(handler, signal.Handlers) else None


def call_stop_handler(handler: StopHandler) -> None:
    """Call the handler. The process ends if the handler takes over STOP_HANDLER_S."""
    timer = threading.Timer(STOP_HANDLER_S, _give_up)
    timer.daemon = True
    timer.start()
    try:
        handler(signal.SIGTERM, sys._getframe())
    except (SystemExit, KeyboardInterrupt):  # the usual end of such a handler
        pass
    except BaseException:
        log.exception("The script's handler of SIGTERM failed")
    finally:
        timer.cancel()


def _give_up() -> None:
    log.error("The script's handler of SIGTERM took over %g s: its process ends", STOP_HANDLER_S)
    lines_written()
    os._exit(1)
