"""Paddle Serving: `python -m bench.peers.apps.paddle_serving_app PORT`, on a Python version that it supports.

Its local predictor has the settings of our service: oneDNN, fused operators, one thread.
"""

import os
import socket
import sys
from pathlib import Path

import numpy as np
import yaml
from paddle import inference
from tokenizers import BertWordPieceTokenizer

from paddle_serving_server.pipeline import Op, PipelineServer, RequestOp, ResponseOp

MODEL = Path(os.environ["PEER_MODEL"], "serving_server")
LONGEST = int(os.environ["PEER_LONGEST"])  # tokens of each row: it concatenates rows without padding


_Config = inference.Config


def pir_config(folder):
    """Return a configuration with the .json program, as our service has it.

    Paddle Serving expects a .pdmodel.
    """
    config = _Config(str(MODEL / "inference.json"), str(MODEL / "inference.pdiparams"))
    config.enable_new_ir(True)
    config.enable_new_executor(True)
    config.disable_glog_info()
    return config


inference.Config = pir_config


class ClassifierOp(Op):
    def init_op(self):
        self.labels = yaml.safe_load((MODEL / "serving.yml").read_text(encoding="utf-8"))["labels"]
        self.tokenizer = BertWordPieceTokenizer(str(MODEL / "vocab.txt"), lowercase=True)
        self.tokenizer.enable_padding(length=LONGEST)
        self.tokenizer.enable_truncation(LONGEST)

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        input_ids = np.array([self.tokenizer.encode(inputs["0"]).ids], "int64")
        mask = (input_ids != 0).astype("int64")
        feed = {"input_ids": input_ids, "token_type_ids": np.zeros_like(input_ids), "attention_mask": mask}
        return feed, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        (logits,) = fetch_data["logits"]
        scores = np.exp(logits - logits.max())
        label, confidence = self.labels[scores.argmax()], scores.max() / scores.sum()
        return {"label": np.array([label]), "confidence": np.array([confidence])}, None, ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def config(port):
    return {
        "http_port": port,
        "rpc_port": free_port(),
        "worker_num": 32,
        "dag": {"is_thread_op": False},
        "op": {
            "bert": {
                "concurrency": int(os.environ["PEER_INSTANCES"]),
                "batch_size": int(os.environ["PEER_BATCH"]),
                "auto_batching_timeout": round(float(os.environ["PEER_WAIT_MS"])),
                "local_service_conf": {
                    "client_type": "local_predictor",
                    "model_config": str(MODEL),
                    "device_type": 0,
                    "devices": "",
                    "thread_num": 1,
                    "ir_optim": True,
                    "use_mkldnn": True,
                    "mkldnn_cache_capacity": 10,
                    "fetch_list": ["logits"],
                },
            }
        },
    }


def main():
    read = RequestOp()
    classifier = ClassifierOp(name="bert", input_ops=[read])
    server = PipelineServer("bert")
    server.set_response_op(ResponseOp(input_ops=[classifier]))
    server.prepare_server(yml_dict=config(int(sys.argv[1])))
    server.run_server()


if __name__ == "__main__":
    main()
