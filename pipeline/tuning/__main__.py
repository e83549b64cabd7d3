"""`python -m pipeline.tuning ANSWER`: times one way to run a model, in a process of its own.

The order is read from standard input as JSON, the answer is written to the file ANSWER: what a library prints
meanwhile is neither. A process of its own, because two frameworks in one disturb each other's threads, and
because one that crashes on a model is no more than a candidate that can't be taken.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.errors import InvalidInput, ModelFailed, ServingError, get_error_text
from pipeline.models.serving_model import merge_model_settings
from pipeline.models.variants import load_for_engine
from pipeline.process.processes import die_with
from pipeline.tuning.agreement import require_agreement, require_equal_answers
from pipeline.tuning.choice import Timed
from pipeline.tuning.order import Order
from pipeline.tuning.real_rows import feeds_to_time
from pipeline.tuning.timed_runs import Grid, time_runs


def main(answer: Path, order: Order) -> None:
    """Writes a `Timed`, whatever happens short of a crash."""
    started = time.perf_counter()
    conf = LocalServiceConf.model_validate(order.conf)
    try:
        model = load_for_engine(Path(conf.model_dir), conf.engine, conf.precision)
        predictor = create_predictor(model, merge_model_settings(model, conf))
        if order.agreeing:
            whole = load_for_engine(Path(conf.model_dir), conf.engine)
            fp32 = create_predictor(whole, conf.model_copy(update={"precision": "fp32"}))
            require_agreement(fp32, predictor, model.directory, model.padding)
            fp32.close()
        if order.onednn:
            plain = conf.model_copy(update={"use_mkldnn": False})
            native = create_predictor(model, merge_model_settings(model, plain))
            require_equal_answers(native, predictor, model.directory, model.padding)
            native.close()
        grid = Grid(tuple(order.rows), tuple(order.lengths))
        feeds_of = feeds_to_time(predictor, model.directory, model.padding)
        # CPU time is what a run costs, however busy the host is; several threads can't be told by it.
        clock = time.process_time if conf.thread_num == 1 else time.perf_counter
        try:
            points = time_runs(predictor, grid, order.budget_s, clock, feeds_of)
            timed = Timed(
                order.engine, order.precision, model.program.name, points, time.perf_counter() - started
            )
        except (InvalidInput, ModelFailed) as exc:
            timed = Timed(order.engine, order.precision, refused=exc.message, unsuited=True)
    except Exception as exc:
        reason = exc.message if isinstance(exc, ServingError) else get_error_text(exc)
        timed = Timed(order.engine, order.precision, refused=reason)
    timed = msgspec.structs.replace(timed, onednn=order.onednn)
    answer.write_bytes(msgspec.json.encode(timed))


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    die_with(given.parent)
    main(Path(sys.argv[1]), given)
