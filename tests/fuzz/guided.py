"""Coverage-guided mutation with atheris, which is no dependency of this project: pip install atheris."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.codecs import Codec
from tests.fuzz.messages import kept


def run_guided(codecs: list[Codec], count: int, seed: int, keep: Path) -> int:
    """`count` inputs to one codec. Does not return: libFuzzer ends the process, with 77 after a crash.

    Its find is written into `keep`.
    """
    if len(codecs) != 1:
        sys.exit("atheris tries one codec a run; name it: --only v2-json")
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed here; run: pip install atheris (it has wheels for Linux, x86-64)")
    (codec,) = codecs
    _instrument(atheris)

    def try_one(data: bytes) -> None:
        with contextlib.suppress(codec.refusals):
            codec.read(data)

    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        corpus, words = Path(folder, "corpus"), Path(folder, "words")
        corpus.mkdir()
        for number, data in enumerate([*kept(codec.name), *codec.seeds()]):
            Path(corpus, str(number)).write_bytes(data)
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in codec.words if word))
        options = [f"-runs={count}", f"-seed={seed}", "-timeout=20", "-max_len=65536"]
        options += [f"-dict={words}"] if codec.words else []
        atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={keep}/{codec.name}-", str(corpus)], try_one)
        atheris.Fuzz()
    return 0


def _instrument(atheris: Any) -> None:
    """Count the branches of our own modules, which are loaded already."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pipeline.") and not name.startswith("pipeline.dialects.kserve.models"):
            for value in vars(module).values():
                if (
                    callable(value)
                    and getattr(value, "__module__", "") == name
                    and hasattr(value, "__code__")
                ):
                    atheris.instrument_func(value)


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)
