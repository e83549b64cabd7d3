"""Pre- and postprocessing of the LAC model, which splits Chinese text into words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_serving_app.reader.vocabulary_file import words_file

FOLDER = "lac_dict"
_ADDRESS = "https://paddle-serving.bj.bcebos.com/reader/lac/lac_dict.tar.gz"


class LACReader:
    """Converts a Chinese text to character ids (`process`), and LAC's tags to words (`parse_result`).

    dict_folder: a folder with word.dic, tag.dic and q2b.dic.
    """

    def __init__(self, dict_folder: str | Path = FOLDER) -> None:
        folder = Path(dict_folder or FOLDER)
        self.id2word_dict = dict(_pairs(folder / "word.dic"))
        self.id2label_dict = dict(_pairs(folder / "tag.dic"))
        self.word_replace_dict = dict(_pairs(folder / "q2b.dic"))
        self.word2id_dict = {word: int(number) for number, word in self.id2word_dict.items()}
        self.label2id_dict = {label: int(number) for number, label in self.id2label_dict.items()}

    @property
    def vocab_size(self) -> int:
        """The highest character id plus 1."""
        return max(self.word2id_dict.values()) + 1

    @property
    def num_labels(self) -> int:
        """The highest tag id plus 1."""
        return max(self.label2id_dict.values()) + 1

    def word_to_ids(self, words: str) -> list[int]:
        """Return the id of each character.

        Full-width forms are converted to half-width. Unknown characters get the id of "OOV".
        """
        narrow = (self.word_replace_dict.get(word, word) for word in words)
        return [self.word2id_dict.get(word, self.word2id_dict["OOV"]) for word in narrow]

    def label_to_ids(self, labels: Sequence[str]) -> list[int]:
        """Return the id of each tag. Unknown tags get the id of "O"."""
        return [self.label2id_dict.get(label, self.label2id_dict["O"]) for label in labels]

    def process(self, sent: str) -> list[int]:
        """Return the id of each character of a text without surrounding spaces: the model's input."""
        return self.word_to_ids(sent.strip())

    def parse_result(self, words: str, crf_decode: Sequence[Sequence[Any]]) -> list[str]:
        """Split a text into words by the tags that the model gave its characters.

        crf_decode: a tag id for each character. A tag "...-B" begins a word, and so does "O" after another
        tag.
        """
        tags = [self.id2label_dict[str(int(row[0]))] for row in crf_decode]
        segments: list[str] = []
        for place, tag in enumerate(tags):
            if place == 0 or tag.endswith("-B") or (tag == "O" and tags[place - 1] != "O"):
                segments.append(words[place])
            else:
                segments[-1] += words[place]
        return segments


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Read (id, word) pairs: one from each line with exactly one tab. Raise FileNotFoundError."""
    lines = (line.split("\t") for line in words_file(path, "LACReader", _ADDRESS))
    return [(terms[0], terms[1]) for terms in lines if len(terms) == 2]
