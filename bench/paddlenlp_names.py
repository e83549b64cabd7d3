"""Compares compat's tokenizers with PaddleNLP's: tokens, ids, types, lengths and offsets of many texts.

Needs PaddleNLP (`make convert-env`). `--data` reads a folder of headlines (.json lines with "sentence", .tsv,
.txt); the default is the demo's headlines. Both sides get the same vocabulary, and answer in a process of
their own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLE = "example: python -m bench.paddlenlp_names --data headlines/ --vocab vocab.txt"
ROOT = Path(__file__).resolve().parent.parent
HARD_TEXTS = (
    "", " ", "\t \r\n", "[MASK]是[SEP]什么[CLS]？", "[mask] [UNK][PAD]", "5℃的￥100～→＋☆",
    "#话题# @某人：a.cn/b?c=1", "a\u2028b\u0085c\u00a0d\u3000e", "ＡＢＣ，１２３！", "①②Ⅷ㈱㎡",
    "Café naïve ÀÉÎ", "e\u0301a\u0308", "ΣΑΣ ΟΔΟΣ. Σ", "İstanbul ıI ß ẞ", "\u0130\u0307",
    "🎉🀄👨\u200d👩\u200d👧", "\U00020000\U0002f800\uf900龥", "한국어 テスト ｶﾞ", "ไทย हिन्दी עברית",
    "x" * 101 + " y", "don't, 3.14% (a_b)-c/d\\e", "\x00\x07\ufffd\ufeffz\u200b", "word##piece ##的",
    "  两 个  空格  ", "½³²ª№™©",
)  # fmt: skip
"""A page of hard characters."""


class Case(NamedTuple):
    """A tokenizer of one folder, and the arguments of its calls."""

    tokenizer: str
    folder: str
    arguments: Mapping[str, Any]


CALLS: tuple[Mapping[str, Any], ...] = (
    {"max_seq_len": 12},
    {"max_seq_len": 16, "pad_to_max_seq_len": True},
    {"max_length": 20, "padding": "max_length", "truncation": True, "return_attention_mask": True},
    {"return_length": True, "return_position_ids": True, "return_special_tokens_mask": True},
    {"max_length": 10, "truncation_strategy": "longest_first", "return_offsets_mapping": True},
    {"return_token_type_ids": False, "add_special_tokens": False},
    {"max_length": 8, "truncation": "only_first", "return_overflowing_tokens": True, "stride": 2},
)
BATCH_CALLS: tuple[Mapping[str, Any], ...] = (
    {},
    {"padding": True, "return_attention_mask": True},
    {"max_seq_len": 16, "pad_to_max_seq_len": True, "return_length": True},
    {"max_length": 20, "padding": "max_length", "return_dict": False},
    {"padding": "longest", "pad_to_multiple_of": 8, "return_special_tokens_mask": True},
)
PAIR_CALLS: tuple[Mapping[str, Any], ...] = (
    {},
    {"max_seq_len": 12},
    {"max_length": 14, "truncation": "only_second", "return_attention_mask": True},
    {"max_length": 24, "padding": "max_length", "return_offsets_mapping": True, "return_length": True},
)


def answers(case: Case, texts: Sequence[str], *, thorough: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the answers of this process's `paddlenlp`, with a name for each call.

    An answer is a value of JSON. An error is its class alone, because messages may differ.
    """
    transformers = importlib.import_module("paddlenlp.transformers")
    tokenizer = getattr(transformers, case.tokenizer).from_pretrained(case.folder, **case.arguments)
    roles = ("pad", "cls", "sep", "unk", "mask")
    yield "ids", [getattr(tokenizer, f"{role}_token_id") for role in roles]
    yield "sizes", [len(tokenizer), tokenizer.vocab_size, tokenizer.pad_token_type_id, tokenizer.padding_side]
    for text in texts:
        yield f"tokenize {text!r}", result(tokenizer.tokenize, text)
        yield f"call {text!r}", result(tokenizer, text)
        if thorough:
            yield f"offsets {text!r}", result(tokenizer, text, return_offsets_mapping=True)
            for call in CALLS:
                yield f"{call} {text!r}", result(tokenizer, text, **call)
    pairs = list(zip(texts, reversed(texts), strict=True))
    for text, other in pairs if thorough else pairs[:200]:
        for call in PAIR_CALLS:
            yield f"{call} {text!r}, {other!r}", result(tokenizer, text, other, **call)
    for start in range(0, len(texts), 7):
        batch = list(texts[start : start + 7])
        for call in BATCH_CALLS:
            yield f"{call} {batch}", result(tokenizer, batch, **call)
    yield from of_other_forms(tokenizer, [text for text in texts if text.strip()][:20])


def of_other_forms(tokenizer: Any, texts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield answers for windows, words and ids, and decoded texts."""
    long = "".join(texts)
    windows = {"stride": 5, "max_seq_len": 30, "pad_to_max_seq_len": True}
    yield "windows", result(tokenizer, [texts[0][:8], texts[1][:8]], [long, texts[0]], **windows)
    as_list = {"return_dict": False, "stride": 9, "max_length": 40}
    yield "windows, list", result(tokenizer, [texts[0][:8]], [long], **as_list)
    words = [list(text[:12]) for text in texts]
    yield "words", result(tokenizer, words, is_split_into_words=True, return_length=True)
    yield "words of one", result(tokenizer, words[0], is_split_into_words=True, max_seq_len=6)
    yield (
        "batch_encode",
        result(tokenizer.batch_encode, list(zip(texts, texts[::-1], strict=True)), max_seq_len=20),
    )
    for text in texts:
        tokens = tokenizer.tokenize(text)
        ids = tokenizer.convert_tokens_to_ids(tokens)
        yield f"encode {text!r}", result(tokenizer.encode, text, max_seq_len=10)
        yield f"encode ids of {text!r}", result(tokenizer.encode, ids) if ids else None
        yield f"ids {text!r}", [ids, tokenizer.convert_ids_to_tokens(ids)]
        yield f"string {text!r}", result(tokenizer.convert_tokens_to_string, tokens)
        yield (
            f"decode {text!r}",
            result(tokenizer.decode, [*ids, tokenizer.pad_token_id], skip_special_tokens=True),
        )
    padded = [dict(tokenizer(text)) for text in texts[:4]]
    yield "pad", result(tokenizer.pad, padded, padding=True, return_attention_mask=True)
    yield "np", result(tokenizer, list(texts[:4]), padding=True, return_tensors="np")


def result(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call with the types in it, or the class of its error."""
    try:
        return plain(function(*args, **kwargs))
    except (AssertionError, IndexError, KeyError, TypeError, ValueError) as exc:
        return f"error {type(exc).__name__}"


def plain(value: Any) -> Any:
    """Return a value as JSON, with the names of its types."""
    if hasattr(value, "items"):
        return [type(value).__name__, {name: plain(entry) for name, entry in value.items()}]
    if hasattr(value, "dtype"):
        return [type(value).__name__, str(value.dtype), value.tolist()]
    if isinstance(value, (list, tuple)):
        inner = {type(entry).__name__ for entry in value}
        simple = inner <= {"int", "str"}
        return [type(value).__name__, list(value) if simple else [plain(entry) for entry in value]]
    return value


def differences(
    cases: Sequence[Case], texts: Sequence[str], python: str, *, thorough: bool = True
) -> tuple[int, list[str]]:
    """Return the number of compared answers, and a line for each difference.

    python: the interpreter with PaddleNLP. Raises RuntimeError if one of the two fails.
    """
    ours = _answered_by(sys.executable, cases, texts, thorough)
    theirs = _answered_by(python, cases, texts, thorough)
    misses = []
    for case, our_lines, their_lines in zip(cases, ours, theirs, strict=True):
        for (question, our), (_, their) in zip(our_lines, their_lines, strict=True):
            if our != their:
                misses.append(f"{case.tokenizer} {dict(case.arguments)} {question}: {our}, PaddleNLP {their}")
    return sum(map(len, ours)), misses


def _answered_by(
    python: str, cases: Sequence[Case], texts: Sequence[str], thorough: bool
) -> list[list[list[Any]]]:
    """Return the answers of the `paddlenlp` that this interpreter imports, as a list for each case."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked.json"), Path(folder, "answered.json")
        request = {"cases": cases, "texts": texts, "thorough": thorough}
        asked.write_text(json.dumps(request), "utf-8")
        command = [python, "-m", "bench.paddlenlp_names", "--answer", str(asked), str(answered)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{python} could not answer:\n{done.stderr[-4000:]}")
        result: list[list[list[Any]]] = json.loads(answered.read_text("utf-8"))
        return result


def _answer(asked: Path, answered: Path) -> None:
    warnings.simplefilter("ignore")
    request = json.loads(asked.read_text("utf-8"))
    cases = [Case(*case) for case in request["cases"]]
    texts, thorough = request["texts"], request["thorough"]
    lines = [list(answers(case, texts, thorough=thorough)) for case in cases]
    answered.write_text(json.dumps(lines), "utf-8")


def read_texts(folder: Path) -> list[str]:
    """Return the headlines in the files of a folder. Raises ValueError if there are none."""
    texts: list[str] = []
    for path in sorted(folder.iterdir()):
        lines = path.read_text("utf-8").split("\n") if path.suffix in (".json", ".tsv", ".txt") else []
        if path.suffix == ".json":
            rows = [json.loads(line) for line in lines if line.startswith("{")]
            texts += [row["sentence"] for row in rows if isinstance(row.get("sentence"), str)]
        else:
            texts += [line.split("\t")[-1] for line in lines if line]
    if not texts:
        raise ValueError(
            f"{folder} has no .json lines with 'sentence', no .tsv and no .txt; name another folder"
        )
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.paddlenlp_names", description=(__doc__ or "").split("\n")[0], epilog=EXAMPLE
    )
    parser.add_argument("--data", type=Path, help="a folder of headlines; the demo's when left out")
    parser.add_argument(
        "--vocab", type=Path, help="a BERT vocabulary, a token a line; the demo's when left out"
    )
    parser.add_argument("--answer", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        _answer(*arguments.answer)
        return
    from convert.demo.headlines import read_headlines
    from convert.steps.conversion_environment import conversion_python
    from pipeline.errors import ServingError

    try:
        python = conversion_python(["paddlenlp"])
        texts = read_texts(arguments.data) if arguments.data else [h.text for h in read_headlines()]
    except (OSError, ServingError, ValueError) as exc:
        parser.exit(1, f"{parser.prog}: {exc}\n")
    vocab = arguments.vocab or ROOT / "models/demo/vocab.txt"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.txt").write_bytes(vocab.read_bytes())
        kinds = ("BertTokenizer", "ErnieTokenizer", "RobertaChineseTokenizer")
        cases = [Case(kind, folder, {"do_lower_case": lower}) for kind in kinds for lower in (True, False)]
        count, misses = differences(cases, texts, python, thorough=False)
    for line in misses[:20]:
        print(line)  # noqa: T201
    print(f"{len(texts)} texts, {count} answers of {len(cases)} tokenizers: {len(misses)} differ")  # noqa: T201
    sys.exit(bool(misses))


if __name__ == "__main__":
    main()
