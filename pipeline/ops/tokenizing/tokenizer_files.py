"""The tokenizer in a model's folder: which file it is, and what reads it; in a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.models.description import TextInput
from pipeline.ops.tokenizing.sentence_pieces import ALBERT, XLM_R, sentence_piece_tokenizer

WHOLE, WORDS = "tokenizer.json", "vocab.txt"
TOKENIZERS = (WHOLE, WORDS, XLM_R, ALBERT)
SETTINGS = "tokenizer_config.json"
MISSING = "texts are tokenized by tokenizers, which is not installed here: pip install 'paddlewheel[texts]'"
_MOST_BYTES = 1 << 20
# Whose tokenizer a file is, by what `tokenizer_class` begins with; another's would be read wrongly.
_FAMILIES = {
    WORDS: (
        "AlbertChinese",
        "Bert",
        "DistilBert",
        "Electra",
        "Ernie",
        "MobileBert",
        "NeZha",
        "PPMiniLM",
        "PreTrained",
        "Pretrained",
        "Roberta",
        "Skep",
        "TinyBert",
    ),
    XLM_R: ("XLMRoberta", "PreTrained", "Pretrained"),
    ALBERT: ("Albert", "PreTrained", "Pretrained"),
}
_SYMBOLS_APART = ("Ernie", "PPMiniLM", "Skep")  # of PaddleNLP: each symbol is a word
_SYMBOL = "[\\p{S}\u00ad\u00b2\u00ba\u3007\u00b5\u00d8\u014b\u01b1]"
_OTHERS = ("BertJapanese", "ErnieM", "ErnieDocBPE", "RobertaBPE")
_REMEDY = (
    "save it as tokenizer.json, by AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers"
)


def tokenizer_file(settings: TextInput, folders: Sequence[Path]) -> Path:
    """The tokenizer in the first folder that has one. Raises ConfigError where none has, or one of a kind
    that can't be read."""
    names = (settings.tokenizer,) if settings.tokenizer else TOKENIZERS
    paths = (folder / name for folder in folders for name in names)
    file = next((path for path in paths if path.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{folders[0]} has no {' or '.join(names)}, so its texts can't be tokenized: copy the tokenizer's"
            " file there, or convert the model with --file"
        )
    _refuse_others(file)
    return file


def has_tokenizer(folder: Path) -> bool:
    """Whether one is beside the model, or around it."""
    return any((place / name).is_file() for place in (folder, folder.parent) for name in TOKENIZERS)


def load_tokenizer(text_input: TextInput, path: Path) -> Any:
    """A `Tokenizer` that neither pads nor truncates. Raises ConfigError."""
    try:
        from tokenizers import BertWordPieceTokenizer, Regex, Tokenizer, pre_tokenizers
    except ImportError as exc:
        raise ConfigError(MISSING) from exc
    settings = _settings(path)
    lowercase = (
        text_input.lowercase
        if text_input.lowercase is not None
        else bool(settings.get("do_lower_case", True))
    )
    try:
        if path.suffix == ".json":
            tokenizer = Tokenizer.from_file(str(path))
        elif path.name in (XLM_R, ALBERT):
            keep_accents = bool(settings.get("keep_accents", False))
            tokenizer = sentence_piece_tokenizer(path, lowercase=lowercase, keep_accents=keep_accents)
        else:
            words = BertWordPieceTokenizer(
                str(path),
                lowercase=lowercase,
                strip_accents=settings.get("strip_accents"),
                handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
            )
            tokenizer = Tokenizer.from_str(words.to_str())  # what it wraps can do more
            if _tokenizer_class(settings).startswith(_SYMBOLS_APART):
                apart = pre_tokenizers.Split(Regex(_SYMBOL), "isolated")
                tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, tokenizer.pre_tokenizer])
    except ConfigError:
        raise
    except Exception as exc:  # tokenizers has no classes of its own
        raise ConfigError(f"{path} is no tokenizer that can be read ({exc})") from exc
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _refuse_others(path: Path) -> None:
    """Raises ConfigError where the folder says that its tokenizer is another than this file alone is."""
    name = _tokenizer_class(_settings(path))
    families = _FAMILIES.get(path.name)
    if families is None:
        if path.suffix in (".json", ".txt"):
            return
        raise ConfigError(f"{path} is of a kind that is not known here ({', '.join(TOKENIZERS)}): {_REMEDY}")
    both = path.name == WORDS and (path.parent / XLM_R).is_file()
    if both or (name and (name.startswith(_OTHERS) or not name.startswith(families))):
        told_name = name or "ErnieMTokenizer"
        raise ConfigError(f"{path} belongs to {told_name}, which is not known here: {_REMEDY}")


def _tokenizer_class(settings: Mapping[str, Any]) -> str:
    return str(settings.get("tokenizer_class") or settings.get("init_class") or "")


def _settings(path: Path) -> dict[str, Any]:
    """Return tokenizer_config.json beside the file; empty where it can't be read."""
    try:
        with (path.parent / SETTINGS).open("rb") as file:
            settings = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
