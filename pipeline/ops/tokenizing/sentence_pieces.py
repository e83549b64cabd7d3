"""Tokenizers of SentencePiece models as `tokenizers` runs them: XLM-R's and ALBERT's.

The model's file lacks the special tokens and the preparation of texts. Both are as transformers has them
(convert_slow_tokenizer.py, Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pipeline.errors import ConfigError

XLM_R, ALBERT = "sentencepiece.bpe.model", "spiece.model"
_MOST_BYTES = 64 << 20
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
    """The tokenizer of a file of one of the two names. Raises ConfigError for one that can't be used.

    lowercase, keep_accents: of ALBERT, as its tokenizer_config.json says.
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
    if path.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{path} has over {_MOST_BYTES} bytes: it is no model of SentencePiece")
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
