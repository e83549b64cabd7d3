"""The default service: news headlines to one of 15 classes, with the model of `python -m convert demo`."""

from itertools import islice
from pathlib import Path

import numpy as np

from pipeline import Op, ServingError, WebService
from pipeline.ops.texts import bert_feed, each, numbered_texts
from pipeline.script import prepare_from_arguments

MAX_TOKENS = 512
MAX_CHARS = 20 * MAX_TOKENS


class BertOp(Op):
    input_tensors = {"text": "BYTES [-1]"}  # for clients of KServe v2
    output_tensors = {"label": "BYTES [-1]", "label_id": "INT64 [-1]", "confidence": "FP32 [-1]"}
    example = {"text": "国足客场两球取胜"}
    example_key_values = {"0": "国足客场两球取胜"}

    def init_op(self):
        from tokenizers import BertWordPieceTokenizer  # imported here: in the worker, after it was started

        self.labels = np.array(self.model.labels)
        self.tokenizer = BertWordPieceTokenizer(str(self.model.directory / "vocab.txt"), lowercase=True)

    def set_dynamic_shape_info(self):
        names = ("input_ids", "token_type_ids", "attention_mask")
        self.dynamic_shape_info = {
            "min_input_shape": {name: [1, 1] for name in names},
            "max_input_shape": {name: [32, MAX_TOKENS] for name in names},
            "opt_input_shape": {name: [8, 32] for name in names},
        }

    def preprocess_batch(self, requests):
        texts = each(lambda request: numbered_texts(request.inputs, MAX_CHARS), requests)
        good = [text for many in texts if not isinstance(many, ServingError) for text in many]
        ids = iter([encoded.ids for encoded in self.tokenizer.encode_batch(good)])
        return each(lambda many: self.feed(many, ids), texts)

    def feed(self, texts, ids):
        if isinstance(texts, ServingError):
            raise texts
        return bert_feed(list(islice(ids, len(texts))), MAX_TOKENS)

    def postprocess_batch(self, requests, fetches):
        logits = np.concatenate([fetch["logits"] for fetch in fetches])
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        label_ids = scores.argmax(axis=-1)
        confidences = 1 / scores.sum(axis=-1)  # the greatest score is 1
        labels = self.labels[label_ids]
        outputs, start = [], 0
        for fetch in fetches:
            rows = slice(start, start + len(fetch["logits"]))
            outputs.append(
                {"label": labels[rows], "label_id": label_ids[rows], "confidence": confidences[rows]}
            )
            start = rows.stop
        return outputs


class BertService(WebService):
    def get_pipeline_response(self, read_op):
        return BertOp(name="bert", input_ops=[read_op])


if __name__ == "__main__":
    service = BertService(name="bert")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()
