"""All models to try, by family."""

from __future__ import annotations

from bench.models import hugging_face, onnx_models, paddle_models, tables, torch_models
from bench.models.subject import Subject

SUBJECTS: tuple[Subject, ...] = tuple(
    subject
    for family in (paddle_models, hugging_face, torch_models, tables, onnx_models)
    for subject in family.SUBJECTS
)


def get_title(subject: Subject) -> str:
    return f"{subject.family}: {subject.name}"


def find_subject(title: str) -> Subject:
    (found,) = (subject for subject in SUBJECTS if get_title(subject) == title)
    return found
