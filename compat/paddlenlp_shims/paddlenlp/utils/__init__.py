"""`paddlenlp.utils`: its logger, and where PaddleNLP keeps its models."""

from . import env, log

__all__ = ["env", "log"]
