"""CTC prefix beam search with the names of WeNet's `swig_decoders`, in Python.

Scores are sums of natural logarithms. The utterances of a batch are searched one after the other.
"""

from .beam_search import ctc_beam_search_decoder, ctc_beam_search_decoder_batch
from .hotwords import HotWordsScorer
from .path_trie import PathTrie, TrieVector
from .scorer import Scorer
from .texts import map_batch, map_sent

__all__ = [
    "HotWordsScorer",
    "PathTrie",
    "Scorer",
    "TrieVector",
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_batch",
    "map_batch",
    "map_sent",
]
