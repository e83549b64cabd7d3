"""The version that makes an answer: of the model that is run, whatever was served when it was asked."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import UnknownVersion
from pipeline.front.scheduler.job import Job


def of_version(version: str, jobs: Sequence[Job], *, is_services: bool) -> list[Job]:
    """Have the answers of this version's model say so. Refuses the jobs that were asked of another.

    is_services: it is the service's, too, so that it makes the answers of the whole DAG.
    """
    return [job for job in jobs if _is_for(version, job, is_services)]


def _is_for(version: str, job: Job, is_services: bool) -> bool:
    request = job.dag_run.request
    if request.op or is_services:
        if request.version and int(request.version) != int(version):
            job.fail(UnknownVersion(request.service, request.version))
            return False
        request.model_version = version
    return True
