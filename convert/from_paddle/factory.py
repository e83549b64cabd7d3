"""Imports and calls the user's module:factory, and finds the user's source files."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from convert.programs.engines import first_line, import_paddle
from pipeline.errors import ConversionError
from pipeline.process.app_modules import lead_import_path


def create_layer(factory: str) -> tuple[ModuleType, Any]:
    """Import `module` and call `factory` of "module:factory"; return the module and the Layer.

    Raises ConversionError if the call fails or returns something other than a Layer.
    """
    module, layer = call_factory(factory)
    if not isinstance(layer, import_paddle().nn.Layer):
        raise ConversionError(f"{factory} returned a {type(layer).__name__}, not a paddle.nn.Layer.")
    return module, layer


def call_factory(factory: str) -> tuple[ModuleType, Any]:
    """Import `module` of "module:factory" and call `factory`; return the module and the call's result.

    The working folder is importable. Raises ConversionError if the import or the call fails.
    """
    module_name, colon, name = factory.partition(":")
    if not colon or not module_name or not name:
        raise ConversionError(f"{factory!r} is not module:factory; write it like my_model:create_model.")
    lead_import_path(Path.cwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        missing = exc.name or module_name
        hint = (
            "run from the folder that holds it"
            if missing == module_name
            else "install it or correct the import"
        )
        raise ConversionError(f"there is no module {missing!r} ({factory}); {hint}.") from exc
    except Exception as exc:
        raise ConversionError(f"importing {module_name!r} failed ({first_line(exc)}).") from exc
    create = getattr(module, name, None)
    if not callable(create):
        raise ConversionError(f"module {module_name!r} has no function or class {name!r} to call.")
    try:
        return module, create()
    except Exception as exc:
        raise ConversionError(f"calling {factory} without arguments failed ({first_line(exc)}).") from exc


def find_user_sources(*modules: ModuleType) -> list[Path]:
    """Return the .py files of `modules` and of all imported modules outside installed packages, sorted."""
    installed = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    files = {getattr(m, "__file__", None) for m in [*sys.modules.values(), *modules]}
    sources = (Path(f) for f in files if f and f.endswith(".py") and not f.startswith(installed))
    return sorted(source for source in sources if source.is_file())
