"""Words and videos with `paddle_serving_app.reader`: vocabularies that must be there, frames and crops."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from paddle_serving_app.reader import (
    ChineseBertReader,
    Image2Array,
    LACReader,
    Normalization,
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
