"""Counts words that make code hard to read: `python -m tests.wording [--show N] [PATH ...]`.

A part of `make check`. The counts must not exceed `[tool.wording.limits]` in pyproject.toml.
CONTRIBUTING.md lists better words.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAX_SENTENCE_WORDS = 30
COMMON_DEFINITION_FILES = 4  # a name that so many files define says too little

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RULES: dict[str, Any] = _PROJECT["tool"]["wording"]

_UNANCHORED_START = re.compile(rf"({'|'.join(RULES['docstring_starts'])})\b")
_BARE_SUBJECT = re.compile(
    r"(?:^|[.;:]\s+|,\s+and\s+)(?:who|what|whoever)\s+\w+(?:\s+\w+){0,8}\s+"
    r"(?:is|are|was|has|have|does|may|must|can|gets?|leaves?|waits?|comes?|goes|takes?)\b",
    re.IGNORECASE,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_GENERATED = re.compile(r"_pb2|/\.|/node_modules/|/build/")


class Counts:
    """Places by rule. A rule's count is the number of its places."""

    def __init__(self) -> None:
        self.places: dict[str, list[str]] = defaultdict(list)
        self._files_by_name: dict[str, set[Path]] = defaultdict(set)

    def count_file(self, file: Path) -> None:
        """Count the violations of one Python or Markdown file."""
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            self._count_prose(f"{file}", re.sub(r"```.*?```|^\|.*$|`[^`]*`", " ", text, flags=re.S | re.M))
            return
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
                self._count_docstring(file, node)
            if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
                self._count_definition(file, node)
            if isinstance(node, ast.arg):
                self._count_name(file, node.arg, node.lineno)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._count_name(file, node.id, node.lineno)

    def count_common_names(self) -> None:
        """Count the names that many files define; called once, after the last file."""
        for name, files in sorted(self._files_by_name.items()):
            private_or_shared = name.startswith("__") or name in RULES["interface_methods"]
            if len(files) >= COMMON_DEFINITION_FILES and not private_or_shared:
                self.places["common-names"].append(f"{name}: {len(files)} files")

    def _count_docstring(
        self, file: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        docstring = ast.get_docstring(node)
        if not docstring:
            return
        place = f"{file}:{getattr(node, 'lineno', 1)}"
        if _UNANCHORED_START.match(docstring):
            self.places["docstrings"].append(f"{place} {docstring.splitlines()[0]}")
        self._count_prose(place, docstring)

    def _count_prose(self, place: str, text: str) -> None:
        for match in _BARE_SUBJECT.finditer(text):
            self.places["bare-subjects"].append(f"{place} {' '.join(match[0].split())}")
        for sentence in _SENTENCE_END.split(" ".join(text.split())):
            if len(sentence.split()) > MAX_SENTENCE_WORDS:
                self.places["long-sentences"].append(f"{place} {sentence[:90]}")

    def _count_definition(
        self, file: Path, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        self._files_by_name[node.name].add(file)
        if isinstance(node, ast.ClassDef):
            return
        name = node.name.strip("_")
        if name.endswith("_of"):
            self.places["x-of"].append(f"{file}:{node.lineno} {node.name}")
        if name in RULES["vague_verbs"]:
            self.places["vague-verbs"].append(f"{file}:{node.lineno} {node.name}")

    def _count_name(self, file: Path, name: str, line: int) -> None:
        if name.strip("_") in RULES["bare_names"]:
            self.places["bare-names"].append(f"{file}:{line} {name}")


def source_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files of files and folders, without generated ones."""
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".py", ".md") and not _GENERATED.search(str(file)):
                yield file


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="default: the limited folders")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="places to print for each rule")
    options = parser.parse_args()
    counts = Counts()
    for file in source_files(options.paths or [Path(path) for path in RULES["paths"]]):
        counts.count_file(file)
    counts.count_common_names()
    exceeded, lines = False, []
    for rule, limit in RULES["limits"].items():
        places = counts.places[rule]
        above = not options.paths and len(places) > limit
        exceeded |= above
        lines.append(f"{rule}: {len(places)}" + (f", above the limit of {limit}" if above else ""))
        lines += [f"    {place}" for place in places[: options.show or (None if above else 0)]]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
