"""The options of a TEI response, which the front sends to the worker with the request."""

from __future__ import annotations

from typing import NamedTuple

EMBED, SIMILARITY, RERANK, PREDICT = "tei.embed", "tei.similarity", "tei.rerank", "tei.predict"
EMBED_ALL, TOKENIZE = "tei.embed_all", "tei.tokenize"
"""Names of the response forms, one for each path."""


class TeiResponseOptions(NamedTuple):
    """The options of a TEI response."""

    many: bool = True  # whether the response is a list with an element for each text, not its only element
    texts: bytes = b""  # JSON list of the texts to return with their ranks; empty to return none
