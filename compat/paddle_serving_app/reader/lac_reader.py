"""Numbers of a Chinese text's characters for the LAC model, and its tags to words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_serving_app.reader.vocabulary_file import words_file

FOLDER = "lac_dict"
_ADDRESS = "https://paddle-serving.bj.bcebos.com/reader/lac/lac_dict.tar.gz"


class LACReader:
    """`process(text)`, then `parse_result(text, crf_decode)`. A folder has word.dic, tag.dic, q2b.dic."""

    def __init__(self, dict_folder: str | Path = FOLDER) -> None:
        folder = Path(dict_folder or FOLDER)
        self.id2word_dict = dict(_pairs(folder / "word.dic"))
        self.id2label_dict = dict(_pairs(folder / "tag.dic"))
        self.word_replace_dict = dict(_pairs(folder / "q2b.dic"))
        self.word2id_dict = {word: int(number) for number, word in self.id2word_dict.items()}
        self.label2id_dict = {label: int(number) for number, label in self.id2label_dict.items()}

    @property
    def vocab_size(self) -> int:
        return max(self.word2id_dict.values()) + 1

    @property
    def num_labels(self) -> int:
        return max(self.label2id_dict.values()) + 1

    def word_to_ids(self, words: str) -> list[int]:
        """The number of each character; wide forms are narrowed, unknown ones are "OOV"."""
        narrow = (self.word_replace_dict.get(word, word) for word in words)
        return [self.word2id_dict.get(word, self.word2id_dict["OOV"]) for word in narrow]

    def label_to_ids(self, labels: Sequence[str]) -> list[int]:
        """The number of each label; unknown ones are "O"."""
        return [self.label2id_dict.get(label, self.label2id_dict["O"]) for label in labels]

    def process(self, sent: str) -> list[int]:
        """The number of each character of the text, without the spaces around it."""
        return self.word_to_ids(sent.strip())

    def parse_result(self, words: str, crf_decode: Sequence[Sequence[Any]]) -> list[str]:
        """Return the words: a tag that ends with "-B" begins a word, and so does "O" after another tag."""
        tags = [self.id2label_dict[str(int(row[0]))] for row in crf_decode]
        segments: list[str] = []
        for place, tag in enumerate(tags):
            if place == 0 or tag.endswith("-B") or (tag == "O" and tags[place - 1] != "O"):
                segments.append(words[place])
            else:
                segments[-1] += words[place]
        return segments


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Number and word of each line with one tab. Raises FileNotFoundError."""
    lines = (line.split("\t") for line in words_file(path, "LACReader", _ADDRESS))
    return [(terms[0], terms[1]) for terms in lines if len(terms) == 2]
