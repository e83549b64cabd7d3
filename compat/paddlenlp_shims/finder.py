"""The import hook that finds `paddlenlp` in this folder if PaddleNLP itself is not installed.

paddlenlp_shims.pth imports this module at every start of Python, so that it imports next to nothing itself.
"""

import sys

FOLDERS = {
    "paddlenlp": "paddlenlp",
    "faster_tokenizers": "fast_tokenizer",
    "faster_tokenizer": "fast_tokenizer",
    "fast_tokenizer": "fast_tokenizer",
}
"""Packages and the folders beside this file that hold them: one had three names over the years."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module is imported by every Python of the environment, which mostly needs none of it
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class PaddleNLPFinder:
    """An import finder for `sys.meta_path`; it comes last, so that an installed PaddleNLP is found first."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the module spec of a module of PaddleNLP; None for other modules.

        Raises ModuleNotFoundError for a module that our `paddlenlp` lacks; the message names the modules
        there are.
        """
        top, _, rest = name.partition(".")
        if top not in FOLDERS:
            return None
        from paddlenlp_shims import places

        return places.spec_inside(name, rest) if rest else places.spec_on_top(name, FOLDERS[top], self)


def install() -> None:
    """Append the finder to `sys.meta_path`, unless it is there already."""
    if not any(type(finder).__name__ == PaddleNLPFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(PaddleNLPFinder())


install()
