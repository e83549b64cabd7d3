"""Filter bank features of recordings."""

import kaldifeat
import numpy as np
import triton_python_backend_utils as pb_utils

SUBSAMPLING = 4  # frames of an output of the encoder, which takes whole outputs


def create_fbank():
    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = 16000
    options.mel_opts.num_bins = 80
    return kaldifeat.Fbank(options)


def get(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
    def initialize(self, args):
        self.fbank = create_fbank()

    def execute(self, requests):
        return [self.answer(get(request, "wav"), get(request, "wav_lens")) for request in requests]

    def answer(self, waves, lengths):
        features = self.fbank([row[:length] * 32768 for row, (length,) in zip(waves, lengths, strict=True)])
        outputs = max(1, *(-(-len(frames) // SUBSAMPLING) for frames in features))
        speech = np.zeros((len(features), outputs * SUBSAMPLING, 80), np.float32)
        for row, frames in zip(speech, features, strict=True):
            row[: len(frames)] = frames
        counts = np.array([[len(frames)] for frames in features], np.int32)
        tensors = [pb_utils.Tensor("speech", speech), pb_utils.Tensor("speech_lengths", counts)]
        return pb_utils.InferenceResponse(tensors)
