"""Bundler: copies a module and the project code that it imports into one Python source file.

An exported model.py runs the same code as our services, without the project being installed.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cache
from pathlib import Path

from pipeline.errors import ConfigError

_PROJECT = "pipeline."
_ERRORS = "pipeline.errors"  # replaced by plain exceptions: protocol statuses have no use in Triton
_ERROR_CLASS = 'class {}(Exception):\n    """Invalid input: the message tells the client what to change."""\n'
_FUTURE = "from __future__ import annotations"


def bundle_module(module: str) -> str:
    """Return the source of a self-contained Python file: a module and the project code that it uses.

    module: a dotted name. Raises ConfigError for a module without source.
    """
    return _Bundle(module).source()


class _Module:
    """A parsed Python module: its source, and the names that it defines and imports at the top level."""

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"there is no source of {name}, from which models are exported")
        self.text = Path(spec.origin).read_text("utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.defined: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str]] = {}  # by local name: module and name in that module
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                self.imported.update(
                    (imported_name.asname or imported_name.name, (origin, imported_name.name))
                    for imported_name in node.names
                )
            else:
                self.defined.update(dict.fromkeys(_list_defined_names(node), node))

    def get_source(self, node: ast.stmt) -> str:
        """Return the source lines of a statement, with the comments directly above it."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        return "\n".join(self.lines[first : node.end_lineno])


class _Bundle:
    """Collects the code of a module and the project code that it uses, by following the names in the code."""

    def __init__(self, name: str) -> None:
        self._imports: set[tuple[str, str, str]] = set()
        self._values: list[str] = []
        self._code: list[str] = []
        self._seen: set[tuple[str, str]] = set()
        self._main = _load_module(name)
        for node in self._main.tree.body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                self._follow(name, node)
        self._main_code = [
            self._main.get_source(node)
            for node in self._main.tree.body[1:]
            if not isinstance(node, ast.Import | ast.ImportFrom)
        ]

    def source(self) -> str:
        """Return the source of the bundled file: docstring, imports, constants, classes and functions."""
        docstring = self._main.get_source(self._main.tree.body[0])
        parts = [docstring, f"{_FUTURE}\n\n{self._import_lines()}"]
        parts += ["\n".join(self._values)] if self._values else []
        code = "\n\n\n".join([*self._main_code, *(block.rstrip() for block in self._code)])
        return "\n\n".join(parts) + f"\n\n\n{code}\n"

    def _follow(self, module: str, node: ast.stmt) -> None:
        """Collect the definitions and imports that a statement of a module uses."""
        source_module = _load_module(module)
        for part in ast.walk(node):
            if not isinstance(part, ast.Name):
                continue
            if part.id in source_module.imported:
                self._collect_import(part.id, *source_module.imported[part.id])
            elif part.id in source_module.defined and source_module is not self._main:
                self._collect(module, part.id)

    def _collect_import(self, alias: str, origin: str, name: str) -> None:
        if origin.startswith(_PROJECT):
            self._collect(origin, name)
        else:
            self._imports.add((origin, name, alias))

    def _collect(self, module: str, name: str) -> None:
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        if module == _ERRORS:
            self._code.append(_ERROR_CLASS.format(name))
            return
        source_module = _load_module(module)
        if name not in source_module.defined:
            self._collect_import(name, *source_module.imported[name])
            return
        node = source_module.defined[name]
        is_value = isinstance(node, ast.Assign | ast.AnnAssign)
        place = self._values if is_value else self._code
        at = len(place)
        self._follow(module, node)
        source = source_module.get_source(node)
        if source not in place:  # two modules may define the same type variable or alias
            place.insert(len(place) if is_value else at, source)

    def _import_lines(self) -> str:
        """Return the import statements of the bundled file: standard library first, then other packages."""
        of_python, of_others = list[str](), list[str]()
        origins = sorted({(origin or name, bool(origin)) for origin, name, _ in self._imports})
        for module, from_it in sorted(origins, key=lambda entry: (entry[1], entry[0])):
            if module == "__future__":
                continue
            if from_it:
                names = sorted(
                    {_format_import(name, alias) for origin, name, alias in self._imports if origin == module}
                )
                line = f"from {module} import {', '.join(names)}"
            else:
                line = "\n".join(
                    f"import {_format_import(name, alias)}"
                    for origin, name, alias in sorted(self._imports)
                    if (origin, name) == ("", module)
                )
            is_stdlib = module.partition(".")[0] in sys.stdlib_module_names
            (of_python if is_stdlib else of_others).append(line)
        return "\n\n".join("\n".join(lines) for lines in (of_python, of_others) if lines)


@cache
def _load_module(name: str) -> _Module:
    return _Module(name)


def _list_defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a top-level class, function or assignment defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    if isinstance(node, ast.Assign):
        return [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return []


def _format_import(name: str, alias: str) -> str:
    return name if name == alias else f"{name} as {alias}"
