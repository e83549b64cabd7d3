"""Logging: one line per event on stderr, as text or JSON, from the front and the workers alike."""

from __future__ import annotations

import json
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from pipeline.config import LoggingConfig

_FILE_BYTES = 64 * 1024 * 1024
_FILES_KEPT = 5


class _JsonLines(logging.Formatter):
    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "process": self._process_name,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(config: LoggingConfig, process_name: str) -> None:
    """Log to stderr, and to `directory` where it is set. Only our own loggers: the app's stay its own."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if config.directory:
        Path(config.directory).mkdir(parents=True, exist_ok=True)
        path = Path(config.directory, f"{process_name}.log")
        handlers.append(RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT))
    formatter: logging.Formatter = logging.Formatter(
        f"%(asctime)s %(levelname)s [{process_name}] %(message)s"
    )
    if config.format == "json":
        formatter = _JsonLines(process_name)
    ours = logging.getLogger("pipeline")
    ours.handlers.clear()
    ours.propagate = False
    ours.setLevel(config.level)
    for handler in handlers:
        handler.setFormatter(formatter)
        ours.addHandler(handler)


def keep_our_loggers() -> None:
    """Undo what an app's `logging.config.dictConfig` did to ours: by default it disables all that exist."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "pipeline":
            logger.disabled = False
