"""Filter bank features with the names of `kaldifeat`, computed by kaldi-native-fbank on the CPU.

`import _kaldifeat` finds this package, too. Waves are tensors of PyTorch or arrays of NumPy, and features
have the type of their wave.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

INSTALL = "python3 -m pip install './compat[speech]'"

try:
    _fbank: Any = importlib.import_module("kaldi_native_fbank")
except ImportError as exc:
    raise ImportError(f"kaldifeat's features need kaldi-native-fbank; install it: {INSTALL}") from exc

FrameExtractionOptions = _fbank.FrameExtractionOptions
MelBanksOptions = _fbank.MelBanksOptions


class FbankOptions(_fbank.FbankOptions):  # type: ignore[misc]  # an untyped class
    """Options of filter bank features: the options of kaldi-native-fbank, and `device`.

    device: accepted but not used. Features are computed on the CPU, and copied to the device of the wave.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device: Any = "cpu"


class Fbank:
    """Computes filter bank features of waves whose samples have the range of 16-bit integers."""

    def __init__(self, opts: FbankOptions) -> None:
        self.opts = opts

    def dim(self) -> int:
        """Return the number of features of a frame."""
        return int(_fbank.OnlineFbank(self.opts).dim)

    def __call__(self, waves: Any, vtln_warp: float = 1.0) -> Any:
        """Return the features [frames, bins] of a wave, or of each wave of a list.

        Raises ValueError for a wave that is not one-dimensional, and for a warp factor other than 1.
        """
        if vtln_warp != 1.0:
            raise ValueError(f"vtln_warp is {vtln_warp}; only 1.0 is supported")
        if isinstance(waves, list | tuple):
            return [self._compute_features(wave) for wave in waves]
        return self._compute_features(waves)

    compute = __call__

    def _compute_features(self, wave: Any) -> Any:
        is_tensor = _is_tensor(wave)
        samples = np.asarray(wave.detach().cpu().numpy() if is_tensor else wave, dtype=np.float32)
        if samples.ndim != 1:
            raise ValueError(f"a wave has the shape {list(samples.shape)}; expected [samples]")
        extractor = _fbank.OnlineFbank(self.opts)
        extractor.accept_waveform(self.opts.frame_opts.samp_freq, samples)
        extractor.input_finished()
        frames: Sequence[Any] = [extractor.get_frame(i) for i in range(extractor.num_frames_ready)]
        features = np.array(frames, dtype=np.float32).reshape(len(frames), self.dim())
        return sys.modules["torch"].from_numpy(features).to(wave.device) if is_tensor else features


def num_frames(num_samples: int, opts: Any, flush: bool = True) -> int:
    """Return the number of frames of a wave.

    opts: `frame_opts` of the options. flush: False if more samples follow; then the last frames, which need
    them, are not counted.
    """
    rate = opts.samp_freq
    shift, length = int(rate * 0.001 * opts.frame_shift_ms), int(rate * 0.001 * opts.frame_length_ms)
    if opts.snip_edges:
        return 0 if num_samples < length else 1 + (num_samples - length) // shift
    frames = (num_samples + shift // 2) // shift
    if flush:
        return int(frames)
    last_end = (shift * (frames - 1) + shift // 2 - length // 2) + length
    while frames > 0 and last_end > num_samples:
        frames -= 1
        last_end -= shift
    return int(frames)


def _is_tensor(wave: Any) -> bool:
    """Return whether a wave is a tensor of PyTorch, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(wave, torch.Tensor)
