"""The version that an answer names: of the model that makes it, whatever was served when it was asked."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.dialects.answer_form import Wish
from pipeline.errors import UnknownVersion
from pipeline.front.scheduler.job import Job


def of_version(version: str, jobs: Sequence[Job], *, is_services: bool) -> list[Job]:
    """Have each answer name this version. Refuses the jobs that were asked of another.

    is_services: it is the service's, too, so that answers of the whole DAG name it.
    """
    return [job for job in jobs if job.walk.request.wish is None or _is_for(version, job, is_services)]


def _is_for(version: str, job: Job, is_services: bool) -> bool:
    request = job.walk.request
    if not (request.op or is_services):
        return True
    if request.version and int(request.version) != int(version):
        job.fail(UnknownVersion(request.service, request.version))
        return False
    wish = request.wish
    if isinstance(wish, Wish) and wish.version != version:
        request.wish = wish._replace(version=version)
    return True
