"""A module of ours as one file that stands by itself: what it imports of the project is written into it.

So an exported model.py computes what our services compute, by the same lines.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cache
from pathlib import Path

from pipeline.errors import ConfigError

_OWN = "pipeline."
_ERRORS = "pipeline.errors"  # its classes have statuses of protocols, which nobody asks for there
_ERROR = 'class {}(Exception):\n    """What is wrong, in a sentence."""\n'
_FUTURE = "from __future__ import annotations"


def standalone(module: str) -> str:
    """The source of a module, by its dotted name, and of all that it uses of the project."""
    return _Collected(module).source()


class _Module:
    """What a module defines and imports at its top level."""

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"there is no source of {name}, from which models are exported")
        self.text = Path(spec.origin).read_text("utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.defined: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str]] = {}  # by the name here: module, and the name there
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                self.imported.update((one.asname or one.name, (origin, one.name)) for one in node.names)
            else:
                self.defined.update(dict.fromkeys(_defined_names(node), node))

    def get_source(self, node: ast.stmt) -> str:
        """Its lines, with those of comments over it, and its text below it where it is an assignment."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)]) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        return "\n".join(self.lines[first : node.end_lineno])


class _Collected:
    """What a module uses, found by following names."""

    def __init__(self, name: str) -> None:
        self._imports: set[tuple[str, str, str]] = set()
        self._values: list[str] = []
        self._code: list[str] = []
        self._seen: set[tuple[str, str]] = set()
        self._main = _module(name)
        for node in self._main.tree.body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                self._follow(name, node)
        self._own = [
            self._main.get_source(node)
            for node in self._main.tree.body[1:]
            if not isinstance(node, ast.Import | ast.ImportFrom)
        ]

    def source(self) -> str:
        docstring = self._main.get_source(self._main.tree.body[0])
        parts = [docstring, f"{_FUTURE}\n\n{self._import_lines()}"]
        parts += ["\n".join(self._values)] if self._values else []
        code = "\n\n\n".join([*self._own, *(one.rstrip() for one in self._code)])
        return "\n\n".join(parts) + f"\n\n\n{code}\n"

    def _follow(self, module: str, node: ast.stmt) -> None:
        """Collect what a statement of a module names."""
        known = _module(module)
        for part in ast.walk(node):
            if not isinstance(part, ast.Name):
                continue
            if part.id in known.imported:
                self._collect_import(part.id, *known.imported[part.id])
            elif part.id in known.defined and known is not self._main:
                self._collect(module, part.id)

    def _collect_import(self, alias: str, origin: str, name: str) -> None:
        if origin.startswith(_OWN):
            self._collect(origin, name)
        else:
            self._imports.add((origin, name, alias))

    def _collect(self, module: str, name: str) -> None:
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        if module == _ERRORS:
            self._code.append(_ERROR.format(name))
            return
        known = _module(module)
        if name not in known.defined:
            self._collect_import(name, *known.imported[name])
            return
        node = known.defined[name]
        is_value = isinstance(node, ast.Assign | ast.AnnAssign)
        place = self._values if is_value else self._code
        at = len(place)
        self._follow(module, node)
        source = known.get_source(node)
        if source not in place:  # two modules may name a type alike
            place.insert(len(place) if is_value else at, source)

    def _import_lines(self) -> str:
        """In the order in which they are usually written."""
        of_python, of_others = list[str](), list[str]()
        origins = sorted({(origin or name, bool(origin)) for origin, name, _ in self._imports})
        for module, from_it in sorted(origins, key=lambda one: (one[1], one[0])):
            if module == "__future__":
                continue
            if from_it:
                names = sorted(
                    {_as(name, alias) for origin, name, alias in self._imports if origin == module}
                )
                line = f"from {module} import {', '.join(names)}"
            else:
                line = "\n".join(
                    f"import {_as(name, alias)}"
                    for origin, name, alias in sorted(self._imports)
                    if (origin, name) == ("", module)
                )
            own = module.partition(".")[0] in sys.stdlib_module_names
            (of_python if own else of_others).append(line)
        return "\n\n".join("\n".join(lines) for lines in (of_python, of_others) if lines)


@cache
def _module(name: str) -> _Module:
    return _Module(name)


def _defined_names(node: ast.stmt) -> list[str]:
    """What a statement at the top level defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    if isinstance(node, ast.Assign):
        return [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return []


def _as(name: str, alias: str) -> str:
    return name if name == alias else f"{name} as {alias}"
