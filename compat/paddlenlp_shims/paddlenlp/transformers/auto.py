"""AutoTokenizer and RobertaTokenizer, which choose a tokenizer class by files or a model's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from ..utils.log import logger
from .byte_pairs import RobertaBPETokenizer
from .pretrained_names import find_tokenizer
from .saved_files import CONFIG, candidate_folders, missing_files
from .wordpiece import RobertaChineseTokenizer

LIKELY = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


class AutoTokenizer:
    """Loads the tokenizer of a trained model: `AutoTokenizer.from_pretrained(NAME_OR_FOLDER)`.

    The class can't be instantiated.
    """

    tokenizer_config_file = CONFIG

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise OSError(
            f"{type(self).__name__} is designed to be instantiated using the "
            f"`{type(self).__name__}.from_pretrained(pretrained_model_name_or_path).`"
        )

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        """Load the tokenizer of a folder or of a named model, with the suitable class.

        The class is determined by the name if PaddleNLP knows it, else by tokenizer_config.json, else by the
        files. use_fast and use_faster have no effect: they request C++ packages that are no longer published.
        Raises FileNotFoundError that names the missing file.
        """
        name = str(pretrained_model_name_or_path)
        if kwargs.pop("use_fast", False) | kwargs.pop("use_faster", False):
            logger.debug(
                f"the tokenizer of {name} is PaddleNLP's own; use_fast and use_faster change nothing here"
            )
        chosen = find_tokenizer(name) or cls._class_of_files(name, kwargs.get("subfolder") or "")
        return tokenizer_class(chosen).from_pretrained(name, *args, **kwargs)

    @classmethod
    def _class_of_files(cls, name: str, subfolder: str) -> str:
        places = [place / subfolder for place in candidate_folders(name)]
        for place in places:
            if (place / CONFIG).is_file():
                config = json.loads((place / CONFIG).read_text("utf-8"))
                stored = config.get("init_class") or config.get("tokenizer_class")
                if stored:
                    return str(stored)
            files = {path.name for path in place.glob("*")} if place.is_dir() else set()
            if files.intersection(LIKELY):
                return _by_files(name, files)
        raise FileNotFoundError(missing_files("the tokenizer of", name, [f"{CONFIG}, vocab.txt"], places))


def _by_files(name: str, files: set[str]) -> str:
    """Guess the tokenizer's class name from the files in a folder that does not name the class.

    If the files are ambiguous, the model's name decides, as in PaddleNLP.
    """
    if "sentencepiece.bpe.model" in files:
        return "ErnieMTokenizer" if any(file.endswith("vocab.txt") for file in files) else "MBartTokenizer"
    if "spiece.model" in files:
        kinds = {"xlnet": "XLNetTokenizer", "t5": "T5Tokenizer"}
        return next((kinds[kind] for kind in kinds if kind in name.lower()), "AlbertEnglishTokenizer")
    if "merges.txt" in files:
        return "LukeTokenizer" if "entity_vocab.json" in files else "RobertaBPETokenizer"
    patterns = {"gram": "ErnieGramTokenizer", "ernie": "ErnieTokenizer", "uie": "ErnieTokenizer"}
    for pattern, chosen in patterns.items():
        if pattern in name.lower():
            return chosen
    return "BertTokenizer"


def tokenizer_class(name: str) -> Any:
    """Return the tokenizer class of this name.

    Hugging Face's names such as BertTokenizerFast work, too. Raises ValueError for an unknown class.
    """
    from paddlenlp import transformers

    plain = (
        name.removesuffix("Fast")
        .replace("FastTokenizer", "Tokenizer")
        .replace("FasterTokenizer", "Tokenizer")
    )
    tokenizer = getattr(transformers, plain, None)
    if tokenizer is None:
        raise ValueError(
            f"the folder was saved by {name}, which is not in Paddlewheel's compat; it has "
            f"{', '.join(sorted(n for n in transformers.__all__ if n.endswith('Tokenizer')))}"
        )
    return tokenizer


class RobertaTokenizer(AutoTokenizer):
    """Loads the tokenizer of a RoBERTa model: WordPiece (Chinese models) or byte-level BPE (English)."""

    _CLASSES: ClassVar[dict[str, Any]] = {
        "RobertaChineseTokenizer": RobertaChineseTokenizer,
        "BertTokenizer": RobertaChineseTokenizer,
        "RobertaBPETokenizer": RobertaBPETokenizer,
    }

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        """Load the tokenizer of a folder or of a named model.

        The class is determined by the name if PaddleNLP knows it, else by tokenizer_config.json, else by the
        existence of vocab.txt. Raises FileNotFoundError with the missing files.
        """
        name = str(pretrained_model_name_or_path)
        kwargs.pop("use_fast", None)
        kwargs.pop("use_faster", None)
        chosen = find_tokenizer(name) or cls._class_of_files(name, kwargs.get("subfolder") or "")
        by_vocabulary = any(next(iter(place.glob("*vocab.txt")), None) for place in _folders(name))
        fallback = RobertaChineseTokenizer if by_vocabulary else RobertaBPETokenizer
        return cls._CLASSES.get(chosen, fallback).from_pretrained(name, *args, **kwargs)


def _folders(name: str) -> list[Path]:
    return [place for place in candidate_folders(name) if place.is_dir()]
