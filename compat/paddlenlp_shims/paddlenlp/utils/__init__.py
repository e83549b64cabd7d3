"""`paddlenlp.utils`: the logger, and the folders where PaddleNLP stores models."""

from . import env, log

__all__ = ["env", "log"]
