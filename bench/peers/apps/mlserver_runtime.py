"""A custom MLServer runtime with the model; bench.peers.apps.mlserver_app names it."""

from __future__ import annotations

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse

from bench.peers.apps.classifier import Classifier


class TextClassifier(MLModel):
    async def load(self) -> bool:
        self.classifier = Classifier()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        answers = self.classifier.classify(StringCodec.decode_input(payload.inputs[0]))
        confidences = np.array([[answer["confidence"]] for answer in answers], np.float32)
        labels = [answer["label"] for answer in answers]
        outputs = [
            StringCodec.encode_output("label", labels),
            NumpyCodec.encode_output("confidence", confidences),
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
