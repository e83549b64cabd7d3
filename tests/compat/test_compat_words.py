"""Words and videos with `paddle_serving_app.reader`: vocabularies that must be there, frames and crops."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from paddle_serving_app.reader import (
    ChineseBertReader,
    Image2Array,
    IMDBDataset,
    LACReader,
    Normalization,
    OCRReader,
    RCNNPostprocess,
    Sampler,
    Scale,
    SentaReader,
    TenCrop,
    VideoDecoder,
)


def test_a_chinese_text_has_the_four_inputs_of_bert(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n你\n好\nhe\n##llo\n", "utf-8")
    reader = ChineseBertReader({"vocab_file": str(vocabulary), "max_seq_len": 7})
    assert reader.process("你好Hello") == {
        "input_ids": [2, 5, 6, 7, 8, 0, 0],
        "position_ids": [0, 1, 2, 3, 4, 0, 0],
        "segment_ids": [0, 0, 0, 0, 0, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 0, 0],
    }
    assert reader.process("你" * 20)["input_ids"] == [2, 5, 5, 5, 5, 5, 0]


# With the odd lines of bert-base-chinese's vocab.txt (U+2028 is its line 344) and others that look like ends.
ODD_VOCABULARY = [
    *("[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "\u0085", "\u00a0", "\u3000"),
    *("\u0301", "##\u2028", "##\u0301", "x\u000by", "\u001c", "[", "]", "mask", "sep", "中", "国", "cafe"),
    *("##s", "a", "##b", "σ", "ς", "\U0002b820", "“", "##中", "\ufeff", "\u200b", "é"),
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("text", "ids"),
    [  # as FullTokenizer of paddle_serving_app 0.9.0 gives them
        ("中国[MASK]", [19, 20, 15, 17, 16]),
        ("[SEP] cafés", [15, 18, 16, 21, 22]),
        ("中[CLS]国", [19, 15, 2, 16, 20]),
        ("a\u2028中\u0085国\u00a0a\u3000b", [23, 19, 20, 23, 2]),
        ("e\u0301 é a\u0301b Ａ", [2, 2, 23, 24, 2]),
        ("Σ ΑΣ aσ aς", [25, 2, 2, 2]),
        ("a\U0002b820“中”", [23, 27, 28, 19, 2]),
        ("x\u000by x y", [2, 2, 2]),
        ("\ufeffa\u200bb a##b", [23, 24, 23, 2, 2, 2]),
        ("a" * 101, [2]),
        ("", []),
    ],
)
def test_ids_are_the_originals_with_a_vocabulary_of_odd_lines(
    text: str, ids: list[int], end: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_bytes(end.join([*ODD_VOCABULARY, ""]).encode())
    reader = ChineseBertReader({"vocab_file": str(tmp_path / "vocab.txt"), "max_seq_len": 12})
    assert reader.process(text)["input_ids"] == [3, *ids] + [0] * (11 - len(ids))


def test_a_vocabulary_may_give_its_ids_behind_tabs(tmp_path: Path) -> None:
    lines = "[PAD]\t9\n[UNK]\t8\n[CLS]\t7\n[SEP]\t6\n[MASK]\t5\n中\t4\na\tb\tc\n国\t3\n"
    (tmp_path / "vocab.txt").write_text(lines, "utf-8")
    reader = ChineseBertReader({"vocab_file": str(tmp_path / "vocab.txt"), "max_seq_len": 5})
    assert reader.process("中国")["input_ids"] == [7, 4, 8, 9, 9]


def test_a_word_that_looks_like_the_end_of_a_line_ends_none_for_the_other_readers(tmp_path: Path) -> None:
    (tmp_path / "imdb.vocab").write_text("good\n\u2028\nx\u0085y\nfilm\r\n", "utf-8")
    reviews = IMDBDataset()
    reviews.load_resource(tmp_path / "imdb.vocab")
    assert reviews.get_words_only("good film, bad") == [0, 3, 4, 4]

    (tmp_path / "labels.txt").write_text("cat\na\u2028b\ndog\r\n", "utf-8")
    assert RCNNPostprocess(tmp_path / "labels.txt", tmp_path).label_list == ["cat", "a\u2028b", "dog"]

    (tmp_path / "senta.txt").write_text("好\t0\n\u2028\t1\n坏\u0085\t2\r\n\u3000\t3\n", "utf-8")
    assert SentaReader(tmp_path / "senta.txt").process(["坏\u0085", "好", "", "?"]) == [2, 0, 3, 4]

    (tmp_path / "word.dic").write_text("0\t\u2028\r\n1\t爱\r\n2\tOOV\r\n3\t\u0085\r\n", "utf-8")
    (tmp_path / "tag.dic").write_text("0\tO\n", "utf-8")
    (tmp_path / "q2b.dic").write_text("\u3000\t\u2028\n", "utf-8")
    assert LACReader(tmp_path).process("爱\u2028\u0085\u3000城") == [1, 0, 3, 0, 2]

    (tmp_path / "keys.txt").write_text("a\n\u2028\n中\r\n", "utf-8")
    assert OCRReader(char_dict_path=tmp_path / "keys.txt").char_ops.character[:3] == ["a", "\u2028", "中"]


def test_lac_reads_characters_and_joins_tagged_ones(tmp_path: Path) -> None:
    (tmp_path / "word.dic").write_text("0\t我\n1\t爱\n2\tOOV\n3\tA\n", "utf-8")
    (tmp_path / "tag.dic").write_text("0\tr-B\n1\tn-B\n2\tn-I\n3\tO\n", "utf-8")
    (tmp_path / "q2b.dic").write_text("Ａ\tA\n", "utf-8")
    reader = LACReader(str(tmp_path))
    assert reader.process(" 我爱Ａ城 ") == [0, 1, 3, 2]
    assert reader.parse_result("我北京。！爱", [[0], [1], [2], [3], [3], [1]]) == ["我", "北京", "。！", "爱"]
    assert (reader.vocab_size, reader.num_labels, reader.label_to_ids(["n-I", "?"])) == (4, 4, [2, 3])


def test_senta_gives_unknown_words_the_number_after_the_last(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("好\t0\n坏\t1\n", "utf-8")
    assert SentaReader(str(tmp_path / "vocab.txt")).process(["坏", "好", "?"]) == [1, 0, 3]


@pytest.mark.parametrize("reader", [ChineseBertReader, LACReader, SentaReader])
def test_a_file_that_the_original_downloaded_is_asked_for(
    reader: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{reader.__name__} needs .*take it from https://"):
        reader()


def test_a_video_becomes_ten_crops_of_frames_at_equal_distance(tmp_path: Path) -> None:
    path = str(tmp_path / "a.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for number in range(10):
        writer.write(np.full((48, 64, 3), 20 * number, np.uint8))
    writer.release()
    results = Sampler(4, 1, valid_mode=True, select_left=True)(VideoDecoder()({"filename": path}))
    # The middles of four parts of 2.5 frames.
    assert [round(np.asarray(image).mean() / 20) for image in results["imgs"]] == [1, 3, 6, 8]
    for step in (Scale(30, backend="cv2"), TenCrop(24), Image2Array()):
        results = step(results)
    assert results["imgs"].shape == (40, 3, 24, 24) and results["imgs"].dtype == np.float32
    normal = Normalization([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])({"imgs": results["imgs"].copy()})["imgs"]
    np.testing.assert_allclose(normal, results["imgs"] / 127.5 - 1, atol=1e-6)


def test_what_is_no_video_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match="is no video that OpenCV reads"):
        VideoDecoder()({"filename": str(tmp_path / "a.mp4")})
