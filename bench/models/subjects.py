"""All models to try, by family."""

from __future__ import annotations

from bench.models import hugging_face, onnx_models, paddle_models, tables, torch_models
from bench.models.subject import Subject

SUBJECTS: tuple[Subject, ...] = tuple(
    subject
    for family in (paddle_models, hugging_face, torch_models, tables, onnx_models)
    for subject in family.SUBJECTS
)


def title_of(subject: Subject) -> str:
    return f"{subject.family}: {subject.name}"


def subject_called(title: str) -> Subject:
    (found,) = (subject for subject in SUBJECTS if title_of(subject) == title)
    return found
