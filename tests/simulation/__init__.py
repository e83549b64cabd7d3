"""Deterministic simulation of the scheduler and the worker pool: virtual time, one seed for each run.

The cut is at the operating system. `Scheduler`, `Batcher`, `WorkerPool`, `WorkerProcess` and `Instance` are
the real classes, and so are their frames and shared memory. `kernel.py` stands in for processes, sockets,
pidfds and clocks, and `workers.py` for the program that a worker process runs.

`python -m tests.simulation --seed 7` replays one run and prints its events.
"""
