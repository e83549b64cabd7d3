"""An Op whose app sets logging up by itself, as its first argument says, when it is read and in init_op."""

import importlib
import logging
import logging.config
import os
import sys

from pipeline import Op, WebService


def set_up():
    if "reload" in sys.argv[1]:
        importlib.reload(logging)
    if "dictConfig" in sys.argv[1]:
        file = {"class": "logging.FileHandler", "filename": "own.log", "formatter": "own"}
        logging.config.dictConfig(
            {
                "version": 1,
                "formatters": {"own": {"format": "own %(name)s %(message)s"}},
                "handlers": {"file": file},
                "root": {"level": "DEBUG", "handlers": ["file"]},
            }
        )


set_up()


class TalkativeOp(Op):
    def init_op(self):
        set_up()

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        logging.getLogger("app").info("asked for %s", inputs["text"])
        logging.getLogger("pipeline.late").info("a logger of ours that is made late: %s", inputs["text"])
        sys.stdout.write(f"printed: {inputs['text']}\n")
        if "fail" in inputs:
            raise KeyError(inputs["fail"])
        return {"text": inputs["text"]}


class TalkativeService(WebService):
    def get_pipeline_response(self, read_op):
        return TalkativeOp(name="talk", input_ops=[read_op])


service = TalkativeService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
