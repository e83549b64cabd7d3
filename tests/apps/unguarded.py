"""A script without a guard, as users write them: it reads sys.argv and imports a module beside it."""

import os
import sys
from pathlib import Path

import helpers

from pipeline import Op, WebService

MARK = sys.argv[1]  # read at the top, as users' scripts do


class Word:
    def __init__(self, text):
        self.text = text


class SplitOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"words": [Word(text) for text in fetch_dict["text"].split()]}


class JoinOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        words = fetch_dict["words"]
        assert all(isinstance(word, Word) for word in words)
        return {
            "joined": MARK.join(word.text for word in words),
            "arguments": " ".join(sys.argv[1:]),
            "script": Path(sys.argv[0]).name,
            "name": __name__,
            "folder": str(Path.cwd()),
            "helped": helpers.help_out("x"),
        }


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return JoinOp("join", input_ops=[SplitOp("split", input_ops=[read_op])])


service = Service(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
