"""Runs a module of this package from where the package is installed, whatever the working folder holds.

pipeline/process/processes.py writes the command: `python -P .../run_module.py PARENT MODULE ARGUMENT ...`.
This file imports no other file of the package before `import pipeline` is sure to find the right package.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

PACKAGES = ("pipeline", "convert", "client")
ROOT = Path(__file__).resolve().parents[2]


class InstalledPackages:
    """An import finder for this project's packages, which ignores `sys.path`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the location of one of this project's packages; None for every other module."""
        return PathFinder.find_spec(name, [str(ROOT)]) if path is None and name in PACKAGES else None


def import_installed_packages() -> None:
    """Make imports of this project's packages find the installed packages from now on.

    Modules of the same names that were imported from elsewhere are removed from `sys.modules`.
    """
    if _imports_installed_packages():
        return
    sys.meta_path.insert(0, InstalledPackages)
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package in PACKAGES and not _is_installed(package, module):
            del sys.modules[name]
    # A checkout that is not installed: its engines are found by the entry points beside its packages.
    if ROOT.name not in ("site-packages", "dist-packages") and str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))


def isolate_command() -> None:
    """Make imports ignore the working folder, which `python -m` puts first on `sys.path`."""
    if not sys.flags.safe_path and not _imports_installed_packages():
        del sys.path[0]
    import_installed_packages()


def _imports_installed_packages() -> bool:
    # By name: this file may have been run and imported, too.
    return any(getattr(finder, "__name__", "") == InstalledPackages.__name__ for finder in sys.meta_path)


def _is_installed(package: str, module: object) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(ROOT / package)


if __name__ == "__main__":
    import_installed_packages()
    if parent := int(sys.argv[1]):
        from pipeline.process.processes import die_with

        die_with(parent)
    del sys.argv[:2]  # the module's name takes the place of this file's
    runpy.run_module(sys.argv[0], run_name="__main__")
