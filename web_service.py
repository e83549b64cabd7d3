"""The default service: news headlines to one of 15 classes, with the model of `python -m convert demo`."""

from pathlib import Path

import numpy as np

from pipeline import InvalidInput, Op, WebService
from pipeline.script import prepare_from_arguments

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 512
MAX_CHARS = 20 * MAX_TOKENS  # looked at before the tokenizer has any work with it


class BertOp(Op):
    def init_op(self):
        from tokenizers import BertWordPieceTokenizer  # imported here: in the worker, after it was started

        self.labels = np.array(self.model.labels)
        self.tokenizer = BertWordPieceTokenizer(str(self.model.program.parent / "vocab.txt"), lowercase=True)

    def set_dynamic_shape_info(self):
        names = ("input_ids", "token_type_ids", "attention_mask")
        self.dynamic_shape_info = {
            "min_input_shape": {name: [1, 1] for name in names},
            "max_input_shape": {name: [32, MAX_TOKENS] for name in names},
            "opt_input_shape": {name: [8, 32] for name in names},
        }

    def preprocess_batch(self, requests):
        texts = [_texts(request.inputs) for request in requests]
        encoded = iter(
            self.tokenizer.encode_batch([t for many in texts if isinstance(many, list) for t in many])
        )
        return [
            _feed([next(encoded).ids for _ in many]) if isinstance(many, list) else many for many in texts
        ]

    def postprocess_batch(self, requests, fetches):
        logits = np.concatenate([fetch["logits"] for fetch in fetches])
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        label_ids = scores.argmax(axis=-1)
        confidences = scores.max(axis=-1) / scores.sum(axis=-1)
        outputs, start = [], 0
        for fetch in fetches:
            rows = slice(start, start := start + len(fetch["logits"]))
            ids = label_ids[rows]
            outputs.append({"label": self.labels[ids], "label_id": ids, "confidence": confidences[rows]})
        return outputs


def _texts(inputs):
    """The texts under "0", "1", ..., or why they can't be classified."""
    if not inputs:
        return _refusal("the request has no texts")
    texts = [inputs.get(str(i)) for i in range(len(inputs))]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            return _refusal(
                f"text {i} is missing: {len(inputs)} texts have the keys '0' to '{len(inputs) - 1}'"
            )
        if not text.strip():
            return _refusal(f"the text under key '{i}' is empty")
        if len(text) > MAX_CHARS:
            return _refusal(f"the text under key '{i}' has {len(text)} characters, {MAX_CHARS} are allowed")
    return texts


def _feed(ids):
    longest = max(map(len, ids))
    if longest > MAX_TOKENS:
        return _refusal(f"a text has {longest} tokens, the model reads {MAX_TOKENS}: shorten or split it")
    input_ids = np.array([text_ids + [0] * (longest - len(text_ids)) for text_ids in ids], "int64")
    mask = np.minimum(input_ids, 1)  # 0 is [PAD]
    return {"input_ids": input_ids, "token_type_ids": np.zeros_like(input_ids), "attention_mask": mask}


def _refusal(what):
    return InvalidInput(f'{what}. A valid message: {{"key": ["0"], "value": ["国足客场两球取胜"]}}')


class BertService(WebService):
    def get_pipeline_response(self, read_op):
        return BertOp(name="bert", input_ops=[read_op])


if __name__ == "__main__":
    service = BertService(name="bert")
    prepare_from_arguments(service, HERE / "config.yml")
    service.run_service()
