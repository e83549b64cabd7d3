"""`python -m pipeline.tuning ANSWER`: measures how fast one engine runs a model, in a separate process.

The parent (`timed_runs.timed`) writes an `Order` to standard input as JSON. The result, a `Timed`, goes to
the file ANSWER, because libraries print to standard output. The process is separate for two reasons: two
frameworks in one process disturb each other's threads, and a crash must cost no more than a candidate.
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
from pipeline.tuning.choice import Timed
from pipeline.tuning.real_rows import feeds_to_time, require_agreement, require_equal_answers
from pipeline.tuning.timed_runs import Grid, Order, time_runs


def main(answer: Path, order: Order) -> None:
    """Load and time a model as `order` describes, and write the result, a `Timed` as JSON, to `answer`.

    Errors go to the field `refused` of the result. No file is written if the process crashes.
    """
    started = time.perf_counter()
    conf = LocalServiceConf.model_validate(order.conf)
    try:
        model = load_for_engine(Path(conf.model_dir), conf.engine, conf.precision)
        predictor = create_predictor(model, merge_model_settings(model, conf))
        if order.agreeing:
            fp32_model = load_for_engine(Path(conf.model_dir), conf.engine)
            fp32 = create_predictor(fp32_model, conf.model_copy(update={"precision": "fp32"}))
            require_agreement(fp32, predictor, model.directory, model.padding)
            fp32.close()
        if order.onednn:
            plain = conf.model_copy(update={"use_mkldnn": False})
            native = create_predictor(model, merge_model_settings(model, plain))
            require_equal_answers(native, predictor, model.directory, model.padding)
            native.close()
        grid = Grid(tuple(order.rows), tuple(order.lengths))
        make_feeds = feeds_to_time(predictor, model.directory, model.padding)
        # CPU time does not depend on the load of the host, but adds up the time of several threads.
        clock = time.process_time if conf.thread_num == 1 else time.perf_counter
        try:
            points = time_runs(predictor, grid, order.budget_s, clock, make_feeds)
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
    main(Path(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=Order))
