"""A service of sentence embeddings: texts in, the mean over a text's tokens out; MODEL in the environment.

With `gate` a request waits for that file in preprocess.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from pipeline import Op, WebService
from pipeline.models.serving_model import load_serving_model


class EmbeddingOp(Op):
    def init_op(self):
        model = load_serving_model(os.environ["MODEL"])
        self.tokenizer = Tokenizer.from_file(str(model.directory / "tokenizer.json"))
        self.tokenizer.no_padding()

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        gate = inputs.get("gate")
        if gate:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        encoded = self.tokenizer.encode(inputs["text"])
        feeds = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask}
        return {
            name: np.array([ids], np.int64)
            for name, ids in {**feeds, "token_type_ids": encoded.type_ids}.items()
        }

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        (tokens,) = fetch_dict["last_hidden_state"]
        return {"embedding": json.dumps(tokens.mean(axis=0).tolist())}


class EmbeddingService(WebService):
    def get_pipeline_response(self, read_op):
        return EmbeddingOp(name="embeddings", input_ops=[read_op])


service = EmbeddingService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
