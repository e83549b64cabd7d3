"""Repositories in WeNet's form: its configurations, small ONNX models, and Python models of that structure.

The language has one tone for each character. The encoder compares the filter bank energies at the tones, so
that the text of a wave is known without training.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tests.support.onnx_graphs import Graph
from tests.support.triton_repository import write_model

TEMPLATES = Path(__file__).parents[1] / "fixtures/wenet"
RATE, BINS, BEAM, WIDTH = 16000, 80, 4, 3
TONES = {"a": 400, "b": 900, "c": 1700, "d": 3000, "e": 5000, "f": 7000}  # Hz
VOCABULARY = ["<blank>", *TONES, "<sos/eos>"]
HOTWORDS = "af: -1000\n"
REFUSED = VOCABULARY.index("e")  # the decoder never chooses a hypothesis with this character
WINDOW, STRIDE, SUBSAMPLING = 67, 64, 4  # frames of a chunk, frames to the next chunk, frames of an output
CHUNK_S = 0.64
FIRST_CHUNK = 11040  # samples of a window, in multiples of the frame shift above a chunk
VALUES = {
    "DTYPE": "FP32", "num_mel_bins": BINS, "beam_size": BEAM, "output_size": WIDTH,
    "encoder_output_size": WIDTH, "vocab_size": len(VOCABULARY), "bidecoder": 1, "lm_path": "None",
    "frame_length": 25, "frame_shift": 10, "sample_rate": RATE, "decoding_window": WINDOW,
    "chunk_size_in_seconds": CHUNK_S, "num_layers": 1, "num_head": 1, "cache_size": 2,
    "att_cache_output_size": 2, "cnn_module_cache": 1,
}  # fmt: skip

FEATURES = """
import json

import _kaldifeat
import kaldifeat


def make_fbank(config, length, shift):
    values = {key: value["string_value"] for key, value in config["parameters"].items()}
    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.frame_length_ms = float(values[length])
    options.frame_opts.frame_shift_ms = float(values[shift])
    options.frame_opts.samp_freq = int(values["sample_rate"])
    options.mel_opts.num_bins = pb_utils.get_output_config_by_name(config, "speech")["dims"][-1]
    return kaldifeat.Fbank(options)


def get(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(speech, lengths):
    lengths = np.array(lengths, np.int32).reshape(-1, 1)
    tensors = [pb_utils.Tensor("speech", speech), pb_utils.Tensor("speech_lengths", lengths)]
    return pb_utils.InferenceResponse(tensors)


"""
OFFLINE_FEATURES = f"""{FEATURES}
class TritonPythonModel:
    def initialize(self, args):
        self.fbank = make_fbank(json.loads(args["model_config"]), "frame_length_in_ms", "frame_shift_in_ms")

    def execute(self, requests):
        answers = []
        for request in requests:
            waves, lengths = get(request, "wav"), get(request, "wav_lens")
            features = self.fbank([wave[:n] * 32768 for wave, (n,) in zip(waves, lengths)])
            frames = _kaldifeat.num_frames(waves.shape[1], self.fbank.opts.frame_opts)
            speech = np.zeros((len(waves), frames, self.fbank.dim()), np.float32)
            for row, wave in zip(speech, features):
                row[: len(wave)] = wave
            answers.append(answer(speech, [len(wave) for wave in features]))
        return answers
"""
STREAMED_FEATURES = f"""{FEATURES}
class Stream:
    def __init__(self):
        self.wave, self.frames = np.zeros(0, np.float32), np.zeros((0, {BINS}), np.float32)


class TritonPythonModel:
    def initialize(self, args):
        self.fbank = make_fbank(json.loads(args["model_config"]), "frame_length_ms", "frame_shift_ms")
        self.streams = {{}}

    def execute(self, requests):
        answers = []
        for request in requests:
            controls = (get(request, name).item() for name in ("START", "READY", "END", "CORRID"))
            start, ready, end, key = controls
            stream = self.streams[key] = Stream() if start else self.streams[key]
            if ready:
                length = get(request, "wav_lens").item()
                stream.wave = np.concatenate([stream.wave, get(request, "wav")[0, :length]])
            frames = self.fbank(stream.wave * 32768)
            stream.wave = stream.wave[len(frames) * 160 :]
            stream.frames = np.concatenate([stream.frames, frames])
            speech, seen = np.zeros((1, {WINDOW}, {BINS}), np.float32), stream.frames[:{WINDOW}]
            speech[0, : len(seen)] = seen
            stream.frames = stream.frames[{STRIDE}:]
            answers.append(answer(speech, [len(seen)]))
            if end:
                del self.streams[key]
        return answers
"""
DECODING = """
import json
import multiprocessing
import os

import yaml
from swig_decoders import HotWordsScorer, PathTrie, Scorer, TrieVector
from swig_decoders import ctc_beam_search_decoder_batch, map_batch


def get(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class Decoder:
    def __init__(self, config, vocabulary):
        self.values = {key: value["string_value"] for key, value in config["parameters"].items()}
        with open(self.values[vocabulary], encoding="utf-8") as file:
            self.vocabulary = [line.split()[0] for line in file]
        self.eos = self.vocabulary.index("<sos/eos>")
        self.language_model = self.hotwords = None
        if os.path.exists(self.values["lm_path"]):
            self.language_model = Scorer(2.0, 1.0, self.values["lm_path"], self.vocabulary)
        if os.path.exists(self.values["hotwords_path"]):
            with open(self.values["hotwords_path"], encoding="utf-8") as file:
                hotwords = yaml.safe_load(file)
            self.hotwords = HotWordsScorer(
                hotwords, self.vocabulary, window_length=4, SPACE_ID=-2, is_character_based=True
            )

    def search(self, log_probs, ids, tries, starts, beam):
        roots = TrieVector()
        for trie in tries:
            roots.append(trie)
        return ctc_beam_search_decoder_batch(
            log_probs, ids, roots, starts, beam, min(len(starts), multiprocessing.cpu_count()), blank_id=0,
            space_id=-2, cutoff_prob=0.9999, ext_scorer=self.language_model, hotwords_scorer=self.hotwords,
        )

    def rescore(self, encoded, hypotheses, beam):
        hypotheses = [[*found, *[(-10000.0, ())] * (beam - len(found))] for found in hypotheses]
        longest = 2 + max(len(ids) for found in hypotheses for _, ids in found)
        shape = (len(hypotheses), beam, longest)
        padded, reversed_ids = np.full(shape, self.eos), np.full(shape, self.eos)
        scores, lengths = np.zeros(shape[:2], np.float32), np.zeros(shape[:2], np.int32)
        for row, found in enumerate(hypotheses):
            for place, (score, ids) in enumerate(found):
                padded[row, place, 1 : 1 + len(ids)] = ids
                reversed_ids[row, place, 1 : 1 + len(ids)] = ids[::-1]
                scores[row, place], lengths[row, place] = score, 1 + len(ids)
        frames = np.zeros((len(encoded), max(map(len, encoded)), encoded[0].shape[-1]), np.float32)
        for row, output in zip(frames, encoded):
            row[: len(output)] = output
        tensors = {
            "encoder_out": frames, "encoder_out_lens": np.array([[len(e)] for e in encoded], np.int32),
            "hyps_pad_sos_eos": padded, "hyps_lens_sos": lengths, "r_hyps_pad_sos_eos": reversed_ids,
            "ctc_score": scores,
        }
        response = pb_utils.InferenceRequest(
            model_name="decoder", requested_output_names=["best_index"],
            inputs=[pb_utils.Tensor(name, value) for name, value in tensors.items()],
        ).exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        best = pb_utils.get_output_tensor_by_name(response, "best_index").as_numpy()
        return [found[index][1] for found, (index,) in zip(hypotheses, best)]

    def texts(self, ids):
        return np.array(map_batch(ids, self.vocabulary, multiprocessing.cpu_count())).astype(np.object_)


"""
SCORING = f"""{DECODING}
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.beam = pb_utils.get_input_config_by_name(config, "batch_log_probs")["dims"][-1]
        self.decoder = Decoder(config, "vocabulary")

    def execute(self, requests):
        encoded, log_probs, ids, counts = [], [], [], []
        for request in requests:
            lengths = get(request, "encoder_out_lens")
            counts.append(len(lengths))
            for row, length in enumerate(lengths):
                encoded.append(get(request, "encoder_out")[row, :length])
                log_probs.append(get(request, "batch_log_probs")[row, :length].tolist())
                ids.append(get(request, "batch_log_probs_idx")[row, :length].tolist())
        tries, starts = [PathTrie() for _ in ids], [True] * len(ids)
        hypotheses = self.decoder.search(log_probs, ids, tries, starts, self.beam)
        texts = self.decoder.texts(self.decoder.rescore(encoded, hypotheses, self.beam))
        ends = np.cumsum(counts)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", texts[end - count : end].reshape(-1, 1))])
            for end, count in zip(ends, counts)
        ]
"""
STREAMED_SCORING = f"""{DECODING}
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoder = Decoder(config, "vocab_path")
        self.beam = int(self.decoder.values["beam_size"])
        self.streams = {{}}

    def execute(self, requests):
        keys, starts, log_probs, ids, ended = [], [], [], [], []
        for request in requests:
            start, end, key = (get(request, name).item() for name in ("START", "END", "CORRID"))
            if start:
                self.streams[key] = PathTrie(), []
            length = get(request, "chunk_out_lens").item()
            self.streams[key][1].append(get(request, "chunk_out")[0, :length])
            log_probs.append(get(request, "log_probs")[0, :length].tolist())
            ids.append(get(request, "log_probs_idx")[0, :length].tolist())
            keys.append(key)
            starts.append(bool(start))
            ended.append(bool(end))
        tries = [self.streams[key][0] for key in keys]
        hypotheses = self.decoder.search(log_probs, ids, tries, starts, self.beam)
        best = [found[0][1] for found in hypotheses]
        for row, (key, end) in enumerate(zip(keys, ended)):
            if end:
                encoded = np.concatenate(self.streams.pop(key)[1])
                (best[row],) = self.decoder.rescore([encoded], [hypotheses[row]], self.beam)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], np.object_))])
            for text in self.decoder.texts(best)
        ]
"""


def speak(text: str, amplitude: float = 0.3) -> np.ndarray:
    """The wave of a text: 80 ms of tone for each character, 80 ms of silence around each."""
    time = np.arange(int(0.08 * RATE)) / RATE
    silence = np.zeros(len(time))
    tones = [amplitude * np.sin(2 * np.pi * TONES[character] * time) for character in text]
    parts = [silence, *(part for tone in tones for part in (tone, silence))]
    return np.concatenate(parts).astype(np.float32)


def write_offline(repository: Path) -> Path:
    """WeNet's offline repository: `attention_rescoring`."""
    fill_templates("offline", repository)
    write_model(repository, "feature_extractor", None, OFFLINE_FEATURES)
    write_model(repository, "scoring", None, SCORING)
    (write_model(repository, "encoder", None) / "1/encoder.onnx").write_bytes(offline_encoder())
    (write_model(repository, "decoder", None) / "1/decoder.onnx").write_bytes(decoder())
    write_model(repository, "attention_rescoring", None)
    return repository


def write_streaming(repository: Path) -> Path:
    """WeNet's streaming repository: `streaming_wenet`."""
    fill_templates("streaming", repository)
    write_model(repository, "feature_extractor", None, STREAMED_FEATURES)
    write_model(repository, "wenet", None, STREAMED_SCORING)
    (write_model(repository, "encoder", None) / "1/encoder.onnx").write_bytes(streaming_encoder())
    (write_model(repository, "decoder", None) / "1/decoder.onnx").write_bytes(decoder())
    write_model(repository, "streaming_wenet", None)
    return repository


def fill_templates(kind: str, repository: Path) -> None:
    """Write the configurations of a kind of repository, as WeNet's convert script fills them in.

    Each model has one instance, so that the repository starts sooner.
    """
    repository.mkdir(parents=True)
    hotwords = repository.parent / "hotwords.yaml"
    hotwords.write_text(HOTWORDS, "utf-8")
    words = repository.parent / f"{repository.name}.words.txt"
    words.write_text("".join(f"{word} {number}\n" for number, word in enumerate(VOCABULARY)), "utf-8")
    values = {**VALUES, "vocabulary_path": words}
    for template in (TEMPLATES / kind).glob("*/config_template.pbtxt"):
        text = template.read_text("utf-8")
        text = re.sub(r"#(\w+)", lambda match: str(values.get(match[1], match[0])), text)
        text = re.sub(r'("hotwords_path",\s*value : \{ string_value: )"None"', rf'\1"{hotwords}"', text)
        text = re.sub(r"count: \d", "count: 1", text)
        folder = repository / template.parent.name
        folder.mkdir()
        (folder / "config.pbtxt").write_text(text, "utf-8")


def _mel_bin(frequency: float) -> int:
    mel = 1127 * np.log(1 + np.array([20, 8000, frequency]) / 700)
    return round(float((mel[2] - mel[0]) / (mel[1] - mel[0]) * (BINS + 1))) - 1


def _add_outputs(graph: Graph, frames: str, names: tuple[str, str, str]) -> str:
    """Add the scores of the tokens in subsampled frames; return the log probabilities of all tokens.

    names: of the best log probabilities, of their tokens, and of the encoder's output.
    """
    weights, bias = np.zeros((BINS, len(VOCABULARY))), np.zeros(len(VOCABULARY))
    for token, character in enumerate(TONES, 1):
        weights[_mel_bin(TONES[character]), token] = 0.5
    bias[0], bias[-1] = 8.0, -50.0
    scores = graph.add("Add", graph.add("MatMul", frames, graph.tensor(weights)), graph.tensor(bias))
    log_probs = graph.add("LogSoftmax", scores, axis=-1)
    best, tokens = graph.split("TopK", log_probs, graph.ints(BEAM), outputs=2, axis=-1)
    graph.fetch(best, names[0], "float32", "rows", "outputs", BEAM)
    graph.fetch(tokens, names[1], "int64", "rows", "outputs", BEAM)
    encoded = graph.add("MatMul", frames, graph.tensor(weights[:, 1 : 1 + WIDTH]))
    graph.fetch(encoded, names[2], "float32", "rows", "outputs", WIDTH)
    return log_probs


def _subsample(graph: Graph, speech: str, end: int) -> str:
    bounds = (graph.ints(0), graph.ints(end), graph.ints(1), graph.ints(SUBSAMPLING))
    return graph.add("Slice", speech, *bounds)


def _add_lengths(graph: Graph, lengths: str, name: str, limit: int) -> None:
    rounded = graph.add("Add", lengths, graph.tensor(SUBSAMPLING - 1, "int32"))
    outputs = graph.add("Div", rounded, graph.tensor(SUBSAMPLING, "int32"))
    graph.fetch(graph.add("Min", outputs, graph.tensor(limit, "int32")), name, "int32", "rows")


def offline_encoder() -> bytes:
    graph = Graph()
    speech = graph.feed("speech", "float32", "rows", "frames", BINS)
    lengths = graph.feed("speech_lengths", "int32", "rows")
    frames = _subsample(graph, speech, 1 << 31)
    log_probs = _add_outputs(graph, frames, ("beam_log_probs", "beam_log_probs_idx", "encoder_out"))
    graph.fetch(log_probs, "ctc_log_probs", "float32", "rows", "outputs", len(VOCABULARY))
    _add_lengths(graph, lengths, "encoder_out_lens", 1 << 30)
    return graph.model()


def streaming_encoder() -> bytes:
    """The offset counts frames, and the caches go on unchanged."""
    graph = Graph()
    speech = graph.feed("chunk_xs", "float32", "rows", WINDOW, BINS)
    lengths = graph.feed("chunk_lens", "int32", "rows")
    _add_outputs(graph, _subsample(graph, speech, STRIDE), ("log_probs", "log_probs_idx", "chunk_out"))
    _add_lengths(graph, lengths, "chunk_out_lens", STRIDE // SUBSAMPLING)
    offset = graph.feed("offset", "int64", "rows", 1)
    graph.fetch(graph.add("Add", offset, graph.ints(STRIDE)), "r_offset", "int64", "rows", 1)
    for name, dims in {"att_cache": (1, 1, 2, 2), "cnn_cache": (1, WIDTH, 1), "cache_mask": (1, 2)}.items():
        graph.fetch(graph.feed(name, "float32", "rows", *dims), f"r_{name}", "float32", "rows", *dims)
    return graph.model()


def decoder() -> bytes:
    """The best index has the greatest CTC score among the hypotheses without REFUSED."""
    graph = Graph()
    graph.feed("encoder_out", "float32", "rows", "outputs", WIDTH)
    graph.feed("encoder_out_lens", "int32", "rows")
    ids = graph.feed("hyps_pad_sos_eos", "int64", "rows", BEAM, "length")
    graph.feed("hyps_lens_sos", "int32", "rows", BEAM)
    graph.feed("r_hyps_pad_sos_eos", "int64", "rows", BEAM, "length")
    score = graph.feed("ctc_score", "float32", "rows", BEAM)
    refused = graph.add("Cast", graph.add("Equal", ids, graph.tensor(REFUSED, "int64")), to=1)
    count = graph.add("ReduceSum", refused, graph.ints(2), keepdims=0)
    total = graph.add("Sub", score, graph.add("Mul", count, graph.tensor(5000.0)))
    graph.fetch(graph.add("ArgMax", total, axis=1, keepdims=0), "best_index", "int64", "rows")
    return graph.model()
