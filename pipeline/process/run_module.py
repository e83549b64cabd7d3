"""Runs a module of ours from where our packages are installed, whatever the working folder holds.

pipeline/process/processes.py writes the command: `python -P .../run_module.py PARENT MODULE ARGUMENT ...`.
The file imports nothing of ours before `import pipeline` is sure to find our package.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

PACKAGES = ("pipeline", "convert", "client")
ROOT = Path(__file__).resolve().parents[2]


class InstalledPackages:
    """A finder of our packages, which asks no entry of `sys.path`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the place of one of our packages; None for every other module."""
        return PathFinder.find_spec(name, [str(ROOT)]) if path is None and name in PACKAGES else None


def import_installed_packages() -> None:
    """Import our packages from where they are installed from now on, also where others were imported."""
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
    """Import nothing from the folder that Python put first on `sys.path`: the working folder, with -m."""
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
