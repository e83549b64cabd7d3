"""Recordings of spoken digits to texts: `python3 web_service.py` serves the model of config.yml."""

from pathlib import Path

import numpy as np

from pipeline import InvalidInput, Op, WebService
from pipeline.script import prepare_from_arguments

VOCABULARY = ["<blank>", *"0123456789"]
SUBSAMPLING, BEAM, RATE = 4, 4, 16000
MAX_S = 600  # longest recording


class SpeechRecognitionOp(Op):
    input_tensors = {"WAV": "FP32 [-1, -1]", "WAV_LENS": "INT32 [-1, 1]"}
    output_tensors = {"TRANSCRIPTS": "BYTES [-1, 1]"}

    def init_op(self):
        import swig_decoders
        from kaldifeat import Fbank, FbankOptions

        self.decoders = swig_decoders
        options = FbankOptions()
        options.frame_opts.dither = 0
        options.frame_opts.samp_freq = RATE
        options.mel_opts.num_bins = 80
        self.fbank = Fbank(options)

    def preprocess(self, input_dicts, data_id, log_id):
        (request,) = input_dicts.values()
        waves, lengths = request["WAV"], request["WAV_LENS"].ravel()
        if len(waves) != len(lengths) or any(not 0 < length <= waves.shape[1] for length in lengths):
            raise InvalidInput(f"WAV_LENS has the samples of each row of WAV, from 1 to {waves.shape[1]}")
        if waves.shape[1] > MAX_S * RATE:
            raise InvalidInput(f"WAV has {waves.shape[1] / RATE:.0f} s of audio; send at most {MAX_S} s")
        features = self.fbank([row[:length] * 32768 for row, length in zip(waves, lengths, strict=True)])
        outputs = max(1, *(-(-len(frames) // SUBSAMPLING) for frames in features))
        speech = np.zeros((len(features), outputs * SUBSAMPLING, 80), np.float32)
        for row, frames in zip(speech, features, strict=True):
            row[: len(frames)] = frames
        return {"speech": speech, "speech_lengths": np.array([len(frames) for frames in features], np.int32)}

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        decoders, lengths = self.decoders, fetch_dict["encoder_out_lens"].tolist()
        roots = decoders.TrieVector()
        for _ in lengths:
            roots.append(decoders.PathTrie())
        log_probs, ids = (
            [row[:length].tolist() for row, length in zip(fetch_dict[name], lengths, strict=True)]
            for name in ("beam_log_probs", "beam_log_probs_idx")
        )
        hypotheses = decoders.ctc_beam_search_decoder_batch(
            log_probs, ids, roots, [True] * len(lengths), BEAM, 1, blank_id=0, space_id=-2, cutoff_prob=0.9999
        )
        texts = decoders.map_batch([row[0][1] for row in hypotheses], VOCABULARY, 1)
        return {"TRANSCRIPTS": np.array(texts, object).reshape(-1, 1)}


class SpeechRecognitionService(WebService):
    def get_pipeline_response(self, read_op):
        return SpeechRecognitionOp(name="speech_recognition", input_ops=[read_op])


if __name__ == "__main__":
    service = SpeechRecognitionService(name="speech_recognition")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()
