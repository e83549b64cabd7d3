"""Pre- and postprocessing of a text recogniser: image crops to input tensors, and CTC outputs to text."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.image_sources import Image
from paddle_serving_app.reader.vision_extra import opencv
from pipeline.text_lines import read_lines

DICTIONARY = "./ppocr_keys_v1.txt"
ALPHANUMERIC = string.digits + string.ascii_lowercase
PRINTABLE = string.printable[:-6]  # 94 characters


def characters(kind: str, dictionary: str | Path | None) -> list[str]:
    """Return the characters that a text recogniser knows, in the order of their class numbers.

    kind: "en", "en_sensitive", "EN_symbol", or another name with a `dictionary`, a file with one character
    per line.
    """
    if kind == "en":
        return list(ALPHANUMERIC)
    if kind in ("en_sensitive", "EN_symbol"):
        return list(PRINTABLE)
    if dictionary is None:
        raise ValueError(f"char_type {kind!r} needs char_dict_path, a file of one character a line")
    return list("".join(read_lines(Path(dictionary))))


class CharacterOps:
    """Converts texts to class numbers of a text recogniser and back.

    config: "character_type", "character_dict_path" and "loss_type". With loss type "ctc", the blank is the
    class after the characters. With "attention", the marks "sos" and "eos" are the classes before the
    characters.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.character_type = config["character_type"]
        self.loss_type = config["loss_type"]
        alphabet = characters(self.character_type, config.get("character_dict_path"))
        self.beg_str, self.end_str = "sos", "eos"
        self.character = (
            [self.beg_str, self.end_str, *alphabet] if self.loss_type == "attention" else alphabet
        )
        self.dict = {character: number for number, character in enumerate(self.character)}

    def encode(self, text: str) -> NDArray[Any]:
        """Return the class numbers of a text's characters; unknown characters are left out."""
        text = text.lower() if self.character_type == "en" else text
        return np.array([self.dict[character] for character in text if character in self.dict])

    def decode(self, text_index: Iterable[int], is_remove_duplicate: bool = False) -> str:
        """Convert class numbers to a text, without marks and blanks.

        is_remove_duplicate: a repeated number counts once.
        """
        ignored = {0, 1} if self.loss_type == "attention" else {self.get_char_num()}
        decoded = []
        last = None
        for number in map(int, text_index):
            if number not in ignored and not (is_remove_duplicate and number == last):
                decoded.append(self.character[number])
            last = number
        return "".join(decoded)

    def get_char_num(self) -> int:
        """Return the number of characters, with the marks of an attention model."""
        return len(self.character)

    def get_beg_end_flag_idx(self, beg_or_end: str) -> NDArray[Any]:
        """Return the class number of an attention model's mark, "beg" or "end", as an array."""
        if self.loss_type != "attention" or beg_or_end not in ("beg", "end"):
            raise ValueError(f"loss_type {self.loss_type!r} has no mark {beg_or_end!r}")
        return np.array(self.dict[self.beg_str if beg_or_end == "beg" else self.end_str])


class CTCLabelDecode:
    """Decodes a CTC model's probabilities, of shape (texts, steps, classes), to texts.

    Class 0 is the blank. The last class is a space, except for "en" and "EN_symbol".
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.character_type = config["character_type"]
        self._dictionary = config.get("character_dict_path")
        alphabet = characters(self.character_type, self._dictionary)
        spaced = alphabet if self.character_type in ("en", "EN_symbol") else [*alphabet, " "]
        self.character = ["blank", *spaced]

    def __call__(self, preds: Any) -> list[tuple[str, Any]]:
        """Return (text, mean probability of its characters) for each text. The mean is NaN for an empty text.

        Raises ValueError for classes that the dictionary does not have.
        """
        preds = np.asarray(preds)
        return [
            self._text(steps, scores) for steps, scores in zip(preds.argmax(2), preds.max(2), strict=True)
        ]

    def _text(self, steps: NDArray[Any], scores: NDArray[Any]) -> tuple[str, Any]:
        begins = np.append(True, steps[1:] != steps[:-1])
        mask = (steps != 0) & begins
        numbers = steps[mask]
        if numbers.max(initial=0) >= len(self.character):
            raise ValueError(
                f"the model answers class {numbers.max()}, but {self._dictionary or self.character_type} has "
                f"{len(self.character)} classes; use the model's own dictionary"
            )
        score = np.mean(scores[mask]) if len(numbers) else np.float64("nan")
        return "".join(self.character[number] for number in numbers), score


class OCRReader:
    """Preprocesses image crops for a text recogniser, and decodes the recogniser's outputs."""

    def __init__(
        self,
        algorithm: str = "CRNN",
        image_shape: Sequence[int] = (3, 32, 320),
        char_type: str = "ch",
        batch_num: int = 1,
        char_dict_path: str | Path = DICTIONARY,
    ) -> None:
        self.rec_image_shape = image_shape
        self.character_type = char_type
        self.rec_batch_num = batch_num
        config = {
            "character_type": char_type,
            "character_dict_path": char_dict_path,
            "loss_type": "ctc",
        }
        self.char_ops = CharacterOps(config)
        self.label_ops = CTCLabelDecode(config)

    def resize_norm_img(self, img: Image, max_wh_ratio: float) -> Image:
        """Resize a crop to a float32 input of `image_shape` between -1 and 1, with zeros on the right.

        For the character type "ch", the width is 32 x `max_wh_ratio`, the ratio of width to height of the
        widest crop.
        """
        channels, height, width = self.rec_image_shape
        if self.character_type == "ch":
            width = int(32 * max_wh_ratio)
        resized_width = min(math.ceil(height * (img.shape[1] / float(img.shape[0]))), width)
        resized = opencv().resize(img, (resized_width, height)).astype(np.float32)
        result = np.zeros((channels, height, width), np.float32)
        result[:, :, :resized_width] = (resized.transpose(2, 0, 1) / np.float32(255) - 0.5) / 0.5
        return result

    def preprocess(self, img_list: Sequence[Image]) -> Image:
        """Return the input tensor of the first crop, as wide as the widest crop.

        The other crops are ignored, as in Paddle Serving.
        """
        widest = max(img.shape[1] / img.shape[0] for img in img_list)
        return self.resize_norm_img(img_list[0], widest)

    def postprocess_ocrv2(
        self, outputs: Mapping[str, Any], with_score: bool = False
    ) -> list[tuple[str, Any]]:
        """Return (text, score) for each crop, from the output "save_infer_model/scale_0.tmp_1".

        with_score has no effect, as in Paddle Serving.
        """
        return self.label_ops(outputs["save_infer_model/scale_0.tmp_1"])

    def postprocess(self, outputs: Mapping[str, Any], with_score: bool = False) -> list[list[Any]]:
        """Return [text], or [text, score] `with_score`, for each crop, from a model with LoD outputs."""
        numbers = np.asarray(outputs["ctc_greedy_decoder_0.tmp_0"])
        offsets = outputs["ctc_greedy_decoder_0.tmp_0.lod"]
        results: list[list[Any]] = [
            [self.char_ops.decode(numbers[begin:end, 0])] for begin, end in pairwise(offsets)
        ]
        if with_score:
            probabilities = np.asarray(outputs["softmax_0.tmp_0"], np.float32)
            offsets = outputs["softmax_0.tmp_0.lod"]
            for result, (begin, end) in zip(results, pairwise(offsets), strict=True):
                steps = probabilities[begin:end]
                result.append(np.mean(steps.max(1)[steps.argmax(1) != steps.shape[1] - 1]))
        return results
