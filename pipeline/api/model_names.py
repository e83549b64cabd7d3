"""Identifiers of models of one name in several repositories: `bert#2` is in the second repository."""

from __future__ import annotations

_SEPARATOR = "#"  # no name of a model in a repository holds it


def build_identifier(name: str, repository: int) -> str:
    """Return the unique identifier of a model whose name is used in several repositories, such as `bert#2`.

    repository: number of the model's repository, from 1.
    """
    return f"{name}{_SEPARATOR}{repository}"


def split_identifier(identifier: str) -> tuple[str, int]:
    """Split a model's identifier, such as `bert#2`, into the name and the number of its repository.

    The number is 0 if the identifier is a plain name.
    """
    name, separator, repository = identifier.rpartition(_SEPARATOR)
    return (name, int(repository)) if separator and repository.isdecimal() else (identifier, 0)


def get_public_name(identifier: str) -> str:
    """Return the model name that clients and configurations use, from the model's identifier."""
    return split_identifier(identifier)[0]
