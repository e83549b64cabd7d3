"""Preprocessing of a video for the PP-TSN classifier; each transform changes a dict and returns it.

"filename" becomes "frames" and "frames_len", these "imgs": a list of PIL images, and at last one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paddle_serving_app.reader.vision_extra import opencv

Results = dict[str, Any]


class VideoDecoder:
    """Decodes the video file "filename" to RGB arrays in "frames", with OpenCV."""

    def __init__(self, backend: str = "cv2", **_: Any) -> None:
        if backend != "cv2":
            raise ValueError(f"VideoDecoder reads with backend 'cv2' here, not {backend!r}")
        self.backend = backend

    def __call__(self, results: Results) -> Results:
        """Add "frames" and "frames_len" to the dict. Raise ValueError for a file without a frame."""
        cv2 = opencv()
        capture = cv2.VideoCapture(str(results["filename"]))
        frames = []
        try:
            for _ in range(int(capture.get(cv2.CAP_PROP_FRAME_COUNT))):
                is_read, frame = capture.read()
                if is_read:
                    frames.append(frame[:, :, ::-1])
        finally:
            capture.release()
        if not frames:
            raise ValueError(f"{results['filename']} is no video that OpenCV reads")
        results.update(format="video", backend=self.backend, frames=frames, frames_len=len(frames))
        return results


class Sampler:
    """Selects frames of a video: `seg_len` frames from each of `num_seg` segments, as PIL images in "imgs".

    frame_interval: distance between the frames of a segment, 1 by default. linspace_sample: select `num_seg`
    evenly spaced frames. select_left: select one frame in the middle of each segment. dense_sample: select
    ten clips of `num_seg` frames each. valid_mode=False is for training, and refused unless linspace_sample
    is set.
    """

    def __init__(
        self,
        num_seg: int,
        seg_len: int,
        frame_interval: int | None = None,
        valid_mode: bool = False,
        select_left: bool = False,
        dense_sample: bool = False,
        linspace_sample: bool = False,
        use_pil: bool = True,
    ) -> None:
        if not valid_mode and not linspace_sample:
            raise ValueError("Sampler with valid_mode=False is for training; give valid_mode=True")
        self.num_seg = num_seg
        self.seg_len = seg_len
        self.frame_interval = frame_interval
        self.select_left = select_left
        self.dense_sample = dense_sample
        self.linspace_sample = linspace_sample

    def __call__(self, results: Results) -> Results:
        numbers = self._numbers(int(results["frames_len"]))
        if results["format"] == "frame":
            results["imgs"] = [_frame_file(results, number + 1) for number in numbers]
        else:
            frames = results["frames"]
            results["imgs"] = [Image.fromarray(np.ascontiguousarray(frames[n])) for n in numbers]
        return results

    def _numbers(self, frames: int) -> list[int]:
        if self.frame_interval is not None:
            return self._at_interval(frames, self.frame_interval)
        if self.linspace_sample:
            places = np.linspace(0, frames - 1, self.num_seg)
            return [int(place) for place in np.clip(places, 0, frames - 1)]
        if self.select_left:
            part = frames / self.num_seg if frames > self.num_seg else 0.0
            return [int(part / 2.0 + part * i) for i in range(self.num_seg)]
        if self.dense_sample:
            return self._dense(frames)
        return self._middles(frames)

    def _at_interval(self, frames: int, interval: int) -> list[int]:
        span = self.seg_len * interval
        step = (frames - span + 1) / self.num_seg
        if frames > span - 1:
            starts = [int(i * step + step / 2.0) for i in range(self.num_seg)]
        else:
            starts = [0] * self.num_seg
        return [(start + i * interval) % frames for start in starts for i in range(self.seg_len)]

    def _dense(self, frames: int) -> list[int]:
        """Return `num_seg` frame numbers from each of ten clips of 64 frames.

        The numbers are one too high, and the last is repeated, because Paddle Serving counts frames from 1.
        """
        last = max(1, 1 + frames - 64) - 1
        step = 64 // self.num_seg
        starts = np.linspace(0, last, num=10, dtype=int).tolist()
        numbers = [(i * step + start) % frames + 1 for start in starts for i in range(self.num_seg)]
        return [min(number, frames - 1) for number in numbers]

    def _middles(self, frames: int) -> list[int]:
        part = frames // self.num_seg
        numbers = []
        for i in range(self.num_seg):
            start = i * part if part else i
            start += (part - 1) // 2 if part >= self.seg_len else 0
            numbers += [number % frames for number in range(start, start + self.seg_len)]
        return numbers


def _frame_file(results: Results, number: int) -> Image.Image:
    with Image.open(Path(results["frame_dir"], results["suffix"].format(number))) as file:
        return file.convert("RGB")


class Scale:
    """Resizes the images so that the shorter side is `short_size`.

    The longer side is 4/3 of it with `fixed_ratio`, scaled alike with `keep_ratio`, else also `short_size`.
    """

    def __init__(
        self,
        short_size: int,
        fixed_ratio: bool = True,
        keep_ratio: bool | None = None,
        do_round: bool = False,
        backend: str = "pillow",
    ) -> None:
        if fixed_ratio and keep_ratio:
            raise ValueError("fixed_ratio and keep_ratio can't both be true")
        if backend not in ("pillow", "cv2"):
            raise ValueError(f"Scale's backend is 'pillow' or 'cv2', not {backend!r}")
        self.short_size = short_size
        self.fixed_ratio = fixed_ratio
        self.keep_ratio = keep_ratio
        self.do_round = do_round
        self.backend = backend

    def __call__(self, results: Results) -> Results:
        results["imgs"] = [self._scaled(image) for image in results["imgs"]]
        return results

    def _scaled(self, image: Any) -> Any:
        width, height = image.shape[1::-1] if isinstance(image, np.ndarray) else image.size
        target = self._target(width, height)
        if self.backend == "pillow":
            return image.resize(target, Image.Resampling.BILINEAR)
        cv2 = opencv()
        resized = cv2.resize(np.asarray(image), target, interpolation=cv2.INTER_LINEAR)
        return resized if self.keep_ratio is not None else Image.fromarray(resized)

    def _target(self, width: int, height: int) -> tuple[int, int]:
        if self.fixed_ratio:
            long = int(self.short_size * 4.0 / 3.0)
        elif not self.keep_ratio:
            long = self.short_size
        else:
            scaled = max(width, height) * self.short_size / min(width, height)
            long = int(scaled + 0.5) if self.do_round else int(scaled)
        return (self.short_size, long) if width <= height else (long, self.short_size)


class TenCrop:
    """Crops each image at the four corners and in the middle, and adds the mirror image of each crop."""

    def __init__(self, target_size: int) -> None:
        self.target_size = (target_size, target_size)

    def __call__(self, results: Results) -> Results:
        images = results["imgs"]
        width, height = self.target_size
        step_x, step_y = (images[0].size[0] - width) // 4, (images[0].size[1] - height) // 4
        crops = []
        for x, y in ((0, 0), (4, 0), (0, 4), (4, 4), (2, 2)):
            crop_left, top = x * step_x, y * step_y
            cropped = [image.crop((crop_left, top, crop_left + width, top + height)) for image in images]
            crops += cropped
            crops += [crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for crop in cropped]
        results["imgs"] = crops
        return results


class Image2Array:
    """Stacks the images to one float32 array: (images, 3, height, width), or "cthw" (3, images, ...).

    transpose: False gives (images, height, width, 3).
    """

    def __init__(self, transpose: bool = True, data_format: str = "tchw") -> None:
        if data_format not in ("tchw", "cthw"):
            raise ValueError(f"data_format is 'tchw' or 'cthw', not {data_format!r}")
        self.transpose = transpose
        self.data_format = data_format

    def __call__(self, results: Results) -> Results:
        array = np.stack([np.asarray(image) for image in results["imgs"]]).astype(np.float32)
        if self.transpose:
            array = array.transpose((0, 3, 1, 2) if self.data_format == "tchw" else (3, 0, 1, 2))
        results["imgs"] = array
        return results


class Normalization:
    """Divides pixels by 255, then normalizes by mean and deviation of each channel; float32."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], tensor_shape: Sequence[int] = (3, 1, 1)
    ) -> None:
        self.mean = np.array(mean, np.float32).reshape(tensor_shape)
        self.std = np.array(std, np.float32).reshape(tensor_shape)

    def __call__(self, results: Results) -> Results:
        array = results["imgs"] / np.float32(255)
        array -= self.mean
        array /= self.std
        results["imgs"] = array
        return results
