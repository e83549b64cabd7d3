"""Text tokenization: finds and loads the tokenizer in a model's folder, and turns texts into token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pipeline.errors import ConfigError
from pipeline.models.description import TextInput

XLM_R, ALBERT = "sentencepiece.bpe.model", "spiece.model"
_MAX_MODEL_BYTES = 64 << 20
_CONTROL, _USER_DEFINED = 3, 4  # kinds of pieces that a text is first split at
_UNIGRAM = 1
_UNLIKELY = -100.0  # added to the score of a number with its comma, which ALBERT keeps apart
_TYPES = descriptor_pb2.FieldDescriptorProto
# Of sentencepiece_model.proto what is needed: message -> field -> number, type, or the message that it holds.
_FIELDS: dict[str, dict[str, tuple[int, int | str]]] = {
    "Piece": {
        "piece": (1, _TYPES.TYPE_STRING),
        "score": (2, _TYPES.TYPE_FLOAT),
        "type": (3, _TYPES.TYPE_INT32),
    },
    "Trainer": {"model_type": (3, _TYPES.TYPE_INT32), "unk_id": (40, _TYPES.TYPE_INT32)},
    "Normalizer": {"precompiled_charsmap": (2, _TYPES.TYPE_BYTES)},
    "Model": {"pieces": (1, "Piece"), "trainer_spec": (2, "Trainer"), "normalizer_spec": (3, "Normalizer")},
}
_REPEATED = ("pieces",)


def sentence_piece_tokenizer(path: Path, *, lowercase: bool = True, keep_accents: bool = False) -> Any:
    """Build a `tokenizers.Tokenizer` from a SentencePiece file of XLM-R or ALBERT, chosen by file name.

    `lowercase` and `keep_accents` apply to ALBERT. Raises ConfigError for a file that can't be used.
    """
    model = _parse_model(path)
    if (model.trainer_spec.model_type or _UNIGRAM) != _UNIGRAM:
        raise ConfigError(
            f"{path} is no unigram model of SentencePiece: save its tokenizer as tokenizer.json"
        )
    if path.name == ALBERT:
        return _albert(model, lowercase=lowercase, keep_accents=keep_accents)
    return _xlm_r(model)


def _xlm_r(model: Any) -> Any:
    from tokenizers import AddedToken, Regex, normalizers, processors

    start = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary = [*start, *((piece.piece, piece.score) for piece in model.pieces[3:]), ("<mask>", 0.0)]
    steps = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    tokenizer = _unigram(model, vocabulary, 3, [*_charsmap(model), *steps])
    names = [name for name, _ in start]
    tokenizer.add_special_tokens([*names, AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def _albert(model: Any, *, lowercase: bool, keep_accents: bool) -> Any:
    from tokenizers import AddedToken, Regex, normalizers, processors

    vocabulary = [
        (piece.piece, piece.score + (_UNLIKELY if _ends_with_comma(piece.piece) else 0.0))
        for piece in model.pieces
    ]
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    steps += [*_charsmap(model), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer = _unigram(model, vocabulary, model.trainer_spec.unk_id, steps)
    special: Sequence[Any] = ("[CLS]", "[SEP]", "<unk>", "<pad>")
    names = [name for name in special if tokenizer.token_to_id(name) is not None]
    tokenizer.add_special_tokens([*names, AddedToken("[MASK]", lstrip=True, normalized=False)])
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    if any(number is None for _, number in ends):
        raise ConfigError(f"{ALBERT} has no [CLS] and [SEP]: it is of another model than ALBERT")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=ends
    )
    return tokenizer


def _unigram(model: Any, vocabulary: Sequence[tuple[str, float]], unknown: int, steps: Sequence[Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.Unigram(list(vocabulary), unk_id=unknown))
    split = [piece for piece in model.pieces if piece.type in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_tokens(
        [AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL) for piece in split]
    )
    tokenizer.normalizer = normalizers.Sequence(list(steps))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return tokenizer


def _charsmap(model: Any) -> list[Any]:
    from tokenizers import normalizers

    charsmap = model.normalizer_spec.precompiled_charsmap
    return [normalizers.Precompiled(charsmap)] if charsmap else []


def _ends_with_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _parse_model(path: Path) -> Any:
    if path.stat().st_size > _MAX_MODEL_BYTES:
        raise ConfigError(f"{path} has over {_MAX_MODEL_BYTES} bytes: it is no model of SentencePiece")
    model = _message_class()()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as exc:
        raise ConfigError(f"{path} is no model of SentencePiece ({exc})") from exc
    if not model.pieces:
        raise ConfigError(f"{path} is no model of SentencePiece: it has no pieces")
    return model


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="paddlewheel_sentence_pieces.proto", package="paddlewheel.sentence_pieces", syntax="proto2"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = _TYPES.LABEL_REPEATED if field in _REPEATED else _TYPES.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _TYPES.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                added.type = kind  # type: ignore[assignment]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Model"))


WHOLE, WORDS = "tokenizer.json", "vocab.txt"
TOKENIZERS = (WHOLE, WORDS, XLM_R, ALBERT)
SETTINGS = "tokenizer_config.json"
MISSING = "texts are tokenized by tokenizers, which is not installed here: pip install 'paddlewheel[texts]'"
_MAX_BYTES = 1 << 20
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
    """Return the path of the tokenizer file in the first folder that has such a file.

    Raises ConfigError if no folder has a tokenizer file, or if its kind is not supported.
    """
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
    """Whether a model's folder, or its parent folder, has a tokenizer file."""
    return any((place / name).is_file() for place in (folder, folder.parent) for name in TOKENIZERS)


def load_tokenizer(text_input: TextInput, path: Path) -> Any:
    """Load a tokenizer file as a `tokenizers.Tokenizer` that neither pads nor truncates.

    Raises ConfigError.
    """
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
    """Raise ConfigError if this file can't build the tokenizer class that tokenizer_config.json names."""
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
    """Return the content of tokenizer_config.json beside the tokenizer file; empty if it can't be read."""
    try:
        with (path.parent / SETTINGS).open("rb") as file:
            settings = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


class Tokens(NamedTuple):
    """Tokens of one text, without special tokens: ids and, if requested, their positions in the text."""

    ids: list[int]
    offsets: list[tuple[int, int]] = []  # characters of each piece, in the text or in its word
    words: list[int] = []  # number of each piece's word, for texts that clients have split


class Row(NamedTuple):
    """One row of the model's input: token ids and segment ids (token types), special tokens included."""

    ids: list[int]
    types: list[int]
    at: int  # place of the first text's first token


class _Part(NamedTuple):
    """A sequence of special tokens around texts, and the segment id of the text that follows it.

    No text follows the last sequence.
    """

    ids: list[int]
    types: list[int]
    segment: int = 0


class TextTokenizer:
    """Tokenizes texts and adds special tokens, with a `tokenizers.Tokenizer`.

    Safe to use from several threads.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._single = self._layout(paired=False)
        self._paired = self._layout(paired=True)
        self.space: int | None = tokenizer.token_to_id("▁")  # of SentencePiece: stands for a space alone

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def tokens(self, texts: Sequence[str], *, places: bool = False) -> list[Tokens]:
        """Return the tokens of each text, without special tokens.

        `places`: whether the tokens' offsets are included.
        """
        if len(texts) == 1:  # without the threads of the library
            encoding = self._tokenizer.encode(texts[0], add_special_tokens=False)
            return [Tokens(encoding.ids, encoding.offsets if places else [])]
        if not places:
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [Tokens(encoding.ids) for encoding in encoded]
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Tokens(encoding.ids, encoding.offsets) for encoding in encoded]

    def tokens_of_split(self, texts: Sequence[Sequence[str]]) -> list[Tokens]:
        """Return the tokens of texts that clients have already split into words, with each token's word."""
        split = [list(tokens) for tokens in texts]
        encoded = self._tokenizer.encode_batch(split, is_pretokenized=True, add_special_tokens=False)
        return [Tokens(encoding.ids, encoding.offsets, encoding.word_ids) for encoding in encoded]

    def encode(self, text: str, *, special: bool) -> Any:
        """Return the library's encoding of a text: `ids`, `tokens`, `offsets`, `special_tokens_mask`.

        `special` adds special tokens around the text.
        """
        return self._tokenizer.encode(text, add_special_tokens=special)

    def special(self, *, paired: bool) -> int:
        """Return how many special tokens a row has around a single text, or, with `paired`, around a pair."""
        return sum(len(part.ids) for part in (self._paired if paired else self._single))

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> Row:
        """Return the model's input row for the token ids of a text or a pair.

        Adds special tokens and segment ids.
        """
        texts = (first,) if second is None else (first, second)
        layout = self._single if second is None else self._paired
        ids: list[int] = []
        types: list[int] = []
        for part, text in zip(layout, texts, strict=False):
            ids += part.ids
            types += part.types
            ids += text
            types += [part.segment] * len(text)
        ids += layout[-1].ids
        types += layout[-1].types
        return Row(ids, types, len(layout[0].ids))

    def _layout(self, *, paired: bool) -> list[_Part]:
        """Find where the tokenizer puts special tokens, by encoding a known text or pair."""
        encoding = self._tokenizer.encode("a", "a" if paired else None)
        parts: list[_Part] = []
        ids: list[int] = []
        types: list[int] = []
        last = None
        for number, segment, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
            if text is None:
                ids.append(number)
                types.append(segment)
            elif text != last:
                parts.append(_Part(ids, types, segment))
                ids, types = [], []
            last = text
        if len(parts) != 1 + paired:
            raise ConfigError("the tokenizer beside the model makes no token of the text 'a': is it whole?")
        return [*parts, _Part(ids, types)]


def shortened(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Truncate two token lists to `room` tokens in total: first the longer list, then both equally."""
    if len(first) + len(second) <= room:
        return first, second
    half = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        return first[:half], second[: room - half]
    return first[: room - half], second[:half]
