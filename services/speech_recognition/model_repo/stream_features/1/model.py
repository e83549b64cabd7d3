"""Filter bank features of the chunks of streams; the rest of a chunk waits for the next one."""

import kaldifeat
import numpy as np
import triton_python_backend_utils as pb_utils

CHUNK_FRAMES, FRAME_SHIFT = 64, 160


def create_fbank():
    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = 16000
    options.mel_opts.num_bins = 80
    return kaldifeat.Fbank(options)


def get(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class Stream:
    def __init__(self):
        self.wave = np.zeros(0, np.float32)  # samples of frames to come
        self.frames = np.zeros((0, 80), np.float32)  # frames of the next chunk


class TritonPythonModel:
    def initialize(self, args):
        self.fbank = create_fbank()
        self.streams = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        start, end, key = (get(request, name).item() for name in ("START", "END", "CORRID"))
        stream = self.streams[key] = Stream() if start else self.streams[key]
        stream.wave = np.concatenate([stream.wave, get(request, "wav")[0, : get(request, "wav_lens").item()]])
        frames = np.asarray(self.fbank(stream.wave * 32768)).reshape(-1, 80)
        stream.wave = stream.wave[len(frames) * FRAME_SHIFT :]
        stream.frames = np.concatenate([stream.frames, frames])
        speech, chunk = np.zeros((1, CHUNK_FRAMES, 80), np.float32), stream.frames[:CHUNK_FRAMES]
        speech[0, : len(chunk)] = chunk
        stream.frames = stream.frames[CHUNK_FRAMES:]
        if end:
            del self.streams[key]
        tensors = [
            pb_utils.Tensor("speech", speech),
            pb_utils.Tensor("speech_lengths", np.array([[len(chunk)]], np.int32)),
        ]
        return pb_utils.InferenceResponse(tensors)
