"""Identifiers of models of one name in several repositories: `bert#2` is in the second repository."""

from __future__ import annotations

_SEPARATOR = "#"  # no name of a model in a repository holds it


def build_identifier(name: str, repository: int) -> str:
    """Return the identifier of a model. repository: number of its repository, from 1."""
    return f"{name}{_SEPARATOR}{repository}"


def split_identifier(identifier: str) -> tuple[str, int]:
    """Return a model's name and the number of its repository; 0 for a name that one repository has."""
    name, separator, repository = identifier.rpartition(_SEPARATOR)
    return (name, int(repository)) if separator and repository.isdecimal() else (identifier, 0)


def get_public_name(identifier: str) -> str:
    """Return the name by which clients and configurations know a model."""
    return split_identifier(identifier)[0]
