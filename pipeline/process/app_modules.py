"""Import paths of user code: the script's folder, modules named like this project's, Paddle Serving's names.

User code imports the client.py beside its script, or the pipeline.py beside its model.py. The project's own
files, and other packages, still import `client` and `pipeline` of this project.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.process.run_module import PACKAGES, ROOT

COMPAT = ROOT / "compat"  # in a checkout; installed packages lack it
_numbers = itertools.count()
_OURS = tuple(f"{ROOT / package}{os.sep}" for package in PACKAGES)


def lead_import_path(*folders: Path, serves: bool = False) -> None:
    """Put the folders of user code first on `sys.path`, in this order.

    serves: whether the folders contain a service's script. The script imports WebService from this package,
    even if there is a pipeline.py beside it.
    """
    for folder in reversed(folders):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    names = frozenset(name for name in PACKAGES if any(_holds_module(folder, name) for folder in folders))
    if names := names - {"pipeline"} if serves else names:
        _import_for_files_below(folders, names)


def _holds_module(folder: Path, name: str) -> bool:
    package = folder / name
    if (package / "__init__.py").is_file():
        return package.resolve() != ROOT / name
    return (folder / f"{name}.py").is_file()


def _import_for_files_below(folders: Sequence[Path], names: frozenset[str]) -> None:
    """Make `import NAME` in files of these folders find the user's module, not this package's module.

    `sys.modules` keeps this package under the plain name; the user's module has a parent package of its own.
    """
    parent = ModuleType(f"paddlewheel_app_{next(_numbers)}")
    parent.__path__ = [str(folder) for folder in folders]
    sys.modules[parent.__name__] = parent
    below = tuple(f"{place}{os.sep}" for folder in folders for place in (folder, folder.resolve()))
    plain_import = builtins.__import__

    def import_module(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in names or not _is_below(below, globals):
            return plain_import(name, globals, locals, fromlist or (), level)
        module = plain_import(f"{parent.__name__}.{name}", globals, locals, fromlist or (), 0)
        return module if fromlist else sys.modules[f"{parent.__name__}.{top}"]

    builtins.__import__ = import_module


def _is_below(places: tuple[str, ...], importer: Mapping[str, Any] | None) -> bool:
    file = importer.get("__file__") if importer else None
    return isinstance(file, str) and file.startswith(places) and not file.startswith(_OURS)


def offer_paddle_serving_names() -> None:
    """Make `import paddle_serving_server` work through the compat/ folder, unless the package is installed.

    Also adds an import finder for `paddlenlp`.
    """
    if COMPAT.is_dir() and importlib.util.find_spec("paddle_serving_server") is None:
        sys.path.append(str(COMPAT))
        importlib.import_module("paddlenlp_shims.finder")
