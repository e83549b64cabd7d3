"""PaddleNLP's logger: `logger.info(...)`, `logger.train(...)`, `logger.set_level("ERROR")`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

LEVELS = {"DEBUG": 10, "INFO": 20, "TRAIN": 21, "EVAL": 22, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


class Logger:
    """A logger with PaddleNLP's levels, such as TRAIN and EVAL, which writes to standard error.

    name: name of the `logging` logger, by default `PaddleNLP`.
    """

    debug: Callable[[str], None]
    info: Callable[[str], None]
    train: Callable[[str], None]
    eval: Callable[[str], None]
    warning: Callable[[str], None]
    error: Callable[[str], None]
    critical: Callable[[str], None]

    def __init__(self, name: str | None = None) -> None:
        self.logger = logging.getLogger(name or "PaddleNLP")
        for key, level in LEVELS.items():
            logging.addLevelName(level, key)
            for spelling in (key, key.lower()):
                setattr(self, spelling, functools.partial(self.__call__, level))
        self.handler = logging.StreamHandler()
        self.handler.setFormatter(logging.Formatter("[%(asctime)-15s] [%(levelname)8s] - %(message)s"))
        self.logger.addHandler(self.handler)
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.is_enable = True

    def __call__(self, log_level: int, msg: str) -> None:
        if self.is_enable:
            self.logger.log(log_level, msg)

    def disable(self) -> None:
        """Drop all messages until `enable`."""
        self.is_enable = False

    def enable(self) -> None:
        """Write messages again."""
        self.is_enable = True

    def set_level(self, log_level: str) -> None:
        """Set the lowest level that is written, by a name in LEVELS. Raise ValueError for other names."""
        if log_level not in LEVELS:
            raise ValueError(
                f"{log_level!r} is no level of PaddleNLP's logger; take one of {', '.join(LEVELS)}"
            )
        self.logger.setLevel(log_level)


logger = Logger()
