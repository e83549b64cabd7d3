"""Helpers that parse a request's input tensors, for user scripts: see `pipeline.api.feeds`."""

from pipeline.api.examples import example_body
from pipeline.api.feeds import read_feeds

__all__ = ["example_body", "read_feeds"]
