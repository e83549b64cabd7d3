"""`kaldifeat` with tensors of PyTorch, as WeNet's models call it."""

from __future__ import annotations

import importlib

import torch

from paddlenlp_shims import finder


def test_features_of_tensors_are_tensors() -> None:
    finder.install()  # the environment of these tests reads no .pth file of compat
    kaldifeat = importlib.import_module("kaldifeat")
    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = 80
    options.device = torch.device("cpu")
    fbank = kaldifeat.Fbank(options)
    waves = [torch.arange(length, dtype=torch.float32) % 97 for length in (400, 5000)]
    short, long = fbank(waves)
    assert short.dtype == torch.float32 and short.shape == (1, 80) and long.shape == (29, 80)
    assert torch.equal(long, torch.from_numpy(fbank(waves[1].numpy())))
