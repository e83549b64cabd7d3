"""Finds PaddleNLP's modules in this folder, and explains missing modules."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
FAMILIES = "paddlenlp.transformers."
SUBMODULES = ("", "tokenizer", "fast_tokenizer", "faster_tokenizer")
"""Of a family of models: the folder itself, and the modules there that had its tokenizers over the years."""


def spec_on_top(name: str, folder: str, finder: object) -> ModuleSpec | None:
    """Return the module spec of our compatibility package of this top-level name, in `folder`.

    None for a tokenizer package if PaddleNLP itself is installed, because PaddleNLP uses the original
    packages. finder: our import finder, which is ignored in the search for PaddleNLP.
    """
    if folder == "fast_tokenizer" and _found_by_others("paddlenlp", finder):
        return None
    package = (HERE / folder).resolve()
    return importlib.util.spec_from_file_location(
        name, package / "__init__.py", submodule_search_locations=[str(package)]
    )


def spec_inside(name: str, rest: str) -> ModuleSpec | None:
    """Return the module spec of a model family's module, such as `paddlenlp.transformers.bert`.

    None for a module of an installed PaddleNLP. Raises ModuleNotFoundError for a module that does not exist
    here. name: the module's full name; rest: the part after the package's name.
    """
    top = sys.modules.get(name.partition(".")[0])
    if getattr(top, "__file__", None) is None or HERE not in Path(str(top.__file__)).parents:  # type: ignore[union-attr]
        return None
    family, _, module = name.removeprefix(FAMILIES).partition(".")
    if name.startswith(FAMILIES) and module in SUBMODULES:
        from paddlenlp.transformers import tokenizer_names

        names = tokenizer_names(family, module)
        if names:
            return ModuleSpec(name, FamilyLoader(names), origin=str(HERE), is_package=True)
    raise missing(name)


class FamilyLoader(Loader):
    """Import loader that fills the module of a model family with tokenizer classes of this package.

    For example, `paddlenlp.transformers.bert.tokenizer` gets BertTokenizer.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        transformers = sys.modules[FAMILIES.rstrip(".")]
        for name in self._names:
            setattr(module, name, getattr(transformers, name))
        module.__all__ = list(self._names)  # type: ignore[attr-defined]


def missing(name: str) -> ModuleNotFoundError:
    """Return the error for a module or name of PaddleNLP that does not exist here; the caller raises it.

    The error's attribute `name` is the package's name. With the name requested in `from package import name`,
    Python would replace the error and lose its message.
    """
    return ModuleNotFoundError(sentence(name), name=name.partition(".")[0])


def sentence(name: str) -> str:
    """Return the message for a missing name of PaddleNLP: the names that exist, and what to do."""
    top = name.partition(".")[0]
    if top != "paddlenlp":
        offered = f"{top} has ErnieFastTokenizer, ErnieFasterTokenizer and models.WordPiece"
    else:
        offered = (
            "these are PaddleNLP's tokenizers (paddlenlp.transformers), batch functions (paddlenlp.data), "
            "load_dataset for local files (paddlenlp.datasets), metrics (paddlenlp.metrics) and logger "
            "(paddlenlp.utils.log)"
        )
    return (
        f"{name} is not in Paddlewheel's compat, which stands in for the package here: {offered}. What a "
        "service needs of models is their exported form (paddlewheel convert paddle). For the rest install "
        "PaddleNLP itself, which is found first: python -m pip install paddlenlp --constraint "
        "requirements/paddlenlp-constraints.txt"
    )


def _found_by_others(name: str, finder: object) -> bool:
    """Return whether another import finder finds this package."""
    finders = (other for other in sys.meta_path if other is not finder and hasattr(other, "find_spec"))
    return any(other.find_spec(name, None) is not None for other in finders)
