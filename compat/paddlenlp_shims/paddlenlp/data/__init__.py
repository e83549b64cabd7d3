"""`paddlenlp.data`: functions that batch samples, and vocabularies."""

from .collate import Dict, Pad, Stack, Tuple
from .vocab import Vocab

__all__ = ["Dict", "Pad", "Stack", "Tuple", "Vocab"]
