"""What becomes of the jobs that a worker had when it died: `op.<name>.crash_retry`.

The other two retries are for time: `op.<name>.retry` in the batcher (`Batcher.timed_out`), and `dag.retry` in
the DAG run (`DagRun.time_out`), which begins the whole request anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import PoisonRequest, ServingError, WorkerLost
from pipeline.front.pool.worker_process import WorkerProcess
from pipeline.front.scheduler.dag_run import Job, given_back
from pipeline.process.isolation import run_isolated

UNSEEN_DEATHS = 5  # so often a request is tried again whose worker died before it began with it


def tried_again(process: WorkerProcess, crash_retry: bool) -> Iterator[Job]:
    """The jobs of a dying process that are to be queued again: as suspects those that an instance had begun.

    Those that must not be go to `process.refused`, until it is known how it died.
    """
    for instance in process.instances:
        for age, handover in enumerate(instance.in_flight):
            for job in given_back(handover.open_jobs()):
                if job.moved:  # another instance has it already
                    continue
                job.deaths += age == 0
                blamed = age == 0 and (instance.began(handover) or job.deaths > UNSEEN_DEATHS)
                if blamed and (job.suspect or not crash_retry):
                    process.refused.append(job)
                elif job.wanted:
                    job.suspect = job.suspect or blamed
                    yield job
        instance.in_flight.clear()


def refuse_blamed(process: WorkerProcess) -> None:
    """Refuse the jobs that are not tried again, and say how the process died."""
    why = f"the worker of Op {process.op} died under this request ({process.describe_death()})"
    for job in given_back(process.refused):
        if job.suspect:
            error: ServingError = PoisonRequest(f"{why} twice, the second time alone; it is not tried again")
        else:
            error = WorkerLost(f"{why}; crash_retry is off for this Op, so it was not tried again")
        run_isolated(job.fail, error)
    process.refused.clear()  # the process itself may be known for longer
