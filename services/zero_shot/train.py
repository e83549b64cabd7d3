"""Trains the small NLI model that this folder serves: a minute on two cores.

It starts from the demo's encoder. Premises are the demo's headlines, and hypotheses are made of words for
their topics, or of words that a headline has itself. So it judges topics of news well, and other labels by
the words that a text shares with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from rich.console import Console

from convert.cli import ShownSteps
from convert.demo.bert_classifier import load_model
from convert.demo.convert_demo import WEIGHTS_FILE
from convert.demo.fitting import Schedule, fit, seed_training
from convert.demo.headlines import LABELS as TOPICS
from convert.demo.headlines import SPECIALS, Headline, read_headlines, split_headlines, vocabulary
from convert.demo.trained_layer import write_trained
from convert.demo.training import UNKNOWN, demo_tokenizer
from convert.steps.progress import Steps

HERE = Path(__file__).resolve().parent
LABELS = ("contradiction", "neutral", "entailment")
CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)
STEPS, BATCH = 500, 24
OWN_WORDS = 0.25  # share of the pairs about a word of a headline
UNRELATED = 0.08  # share of those that a headline says nothing of
TOKEN_DROPOUT = 0.1

WORDS: Mapping[str, Sequence[str]] = {
    topic: words.split()
    for topic, words in {
        "story": "故事 民间故事 情感故事 情感 家庭 婚姻 亲情 往事",
        "culture": "文化 艺术 传统文化 历史 文学 诗词 文物 书法",
        "entertainment": "娱乐 明星 影视 娱乐圈 演艺 综艺 影视圈 文娱",
        "sports": "体育 运动 赛事 体育比赛 竞技 体坛 球赛 运动员",
        "finance": "财经 经济 金融 理财 商业 财经金融 货币 企业经营",
        "house": "房产 房地产 楼市 买房 住房 房子 地产 置业",
        "car": "汽车 车 车市 轿车 汽车行业 买车 新车 驾驶",
        "edu": "教育 学习 学校 校园 升学 教学 学生 考试",
        "tech": "科技 技术 互联网 数码 高科技 信息技术 科学技术 电子产品",
        "military": "军事 军队 武器 国防 军工 部队 战争 军备",
        "travel": "旅游 旅行 出游 景点 度假 游玩 风景 游客",
        "world": "国际 外国 世界 外交 国外 国际关系 海外 国际新闻",
        "stock": "股票 股市 证券 炒股 股民 个股 大盘 上市公司",
        "agriculture": "农业 农村 种植 三农 农民 养殖 农产品 乡村",
        "game": "游戏 电竞 手游 网游 玩家 游戏玩家 电子游戏 单机游戏",
    }.items()
}
TEMPLATES = (
    "{}",
    "这是{}。",
    "这是关于{}的新闻。",
    "这是关于{}的。",
    "这是一条{}新闻。",
    "这句话讲的是{}。",
    "这条新闻与{}有关。",
    "主题是{}。",
    "它说的是{}的事。",
    "This example is {}.",
    "This text is about {}.",
)
OF_NOTHING = (
    "作者写得很快。",
    "很多人看过这句话。",
    "这句话写于昨天。",
    "读者看完很高兴。",
    "这是他第一次写。",
    "编辑改过两次。",
    "There are many readers.",
)


class PairClassifier(nn.Layer):  # type: ignore[misc]
    """Judges a pair by the means of both texts' states: float32 [N, 3]."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        hidden = encoder.pooler.weight.shape[0]
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        self.compare = nn.Linear(4 * hidden, hidden)
        self.classifier = nn.Linear(hidden, len(LABELS))

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        hidden = self.encoder.encode(input_ids, token_type_ids, attention_mask)
        first = self._mean(hidden, attention_mask * (1 - token_type_ids))
        second = self._mean(hidden, attention_mask * token_type_ids)
        both = paddle.concat([first, second, first * second, paddle.abs(first - second)], axis=-1)
        return self.classifier(self.dropout(nn.functional.relu(self.compare(both))))

    def _mean(self, hidden: Any, chosen: Any) -> Any:
        weights = chosen.astype("float32").unsqueeze(-1)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1).clip(min=1.0)
        return paddle.tanh(self.encoder.pooler(mean))


class Pairs:
    """Makes premises and hypotheses of headlines, and what of each pair is right."""

    def __init__(self, headlines: Sequence[Headline], rng: np.random.Generator) -> None:
        self._headlines = headlines
        self._rng = rng
        self._tokenizer = demo_tokenizer(vocabulary())

    def batches(self, count: int) -> Iterator[tuple[dict[str, Any], Any]]:
        for _ in range(count):
            made = [self._pair() for _ in range(BATCH)]
            feeds = self.feeds([(premise, hypothesis) for premise, hypothesis, _ in made])
            ids = feeds["input_ids"]
            words = (feeds["token_type_ids"] == 0) & (ids >= len(SPECIALS))
            dropped = words & (self._rng.random(ids.shape) < TOKEN_DROPOUT)
            right = np.array([number for *_, number in made])
            yield {**feeds, "input_ids": np.where(dropped, UNKNOWN, ids)}, right

    def feeds(self, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """One batch of them, as long as the longest."""
        encoded = self._tokenizer.encode_batch(list(pairs))
        longest = max(len(one.ids) for one in encoded)
        for one in encoded:
            one.pad(longest)
        told = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
        return {
            name: np.array([getattr(one, made) for one in encoded], np.int64) for name, made in told.items()
        }

    def _pair(self) -> tuple[str, str, int]:
        headline, chance = self._chosen(self._headlines), self._rng.random()
        if chance < UNRELATED:
            return headline.text, self._chosen(OF_NOTHING), NEUTRAL
        template = self._chosen(TEMPLATES)
        entailed = bool(self._rng.random() < 0.4)
        if chance < UNRELATED + OWN_WORDS:
            source = headline if entailed else self._chosen(self._headlines)
            word = self._word(source.text)
            right = ENTAILMENT if word in headline.text else CONTRADICTION
            return headline.text, template.format(word), right
        others = [topic for topic in TOPICS if topic != headline.label]
        topic = headline.label if entailed else self._chosen(others)
        right = ENTAILMENT if entailed else CONTRADICTION
        return headline.text, template.format(self._chosen(WORDS[topic])), right

    def _word(self, text: str) -> str:
        """A part of it, two to four characters long."""
        length = min(len(text), int(self._rng.integers(2, 5)))
        start = self._rng.integers(len(text) - length + 1)
        return text[start : start + length].replace("{", "").replace("}", "")

    def _chosen(self, many: Sequence[Any]) -> Any:
        return many[self._rng.integers(len(many))]


def topics_right(model: PairClassifier, pairs: Pairs, headlines: Sequence[Headline]) -> float:
    """The share of headlines whose own topic, of all, is entailed the most."""
    names = [WORDS[topic][0] for topic in TOPICS]
    right = 0
    for headline in headlines:
        feeds = pairs.feeds([(headline.text, TEMPLATES[2].format(name)) for name in names])
        scores = model(*map(paddle.to_tensor, feeds.values())).numpy()[:, ENTAILMENT]
        right += TOPICS[int(scores.argmax())] == headline.label
    return right / len(headlines)


def train(out: Path, steps: Steps) -> float:
    """Write the serving model; returns the share of held-out headlines whose topic it finds."""
    split = split_headlines(read_headlines())
    seed_training(seed=0)
    pairs = Pairs(split.train, np.random.default_rng(0))
    model = PairClassifier(load_model(WEIGHTS_FILE, vocabulary()))
    steps.step(f"Training {STEPS} steps", STEPS)
    fit(model, pairs.batches(STEPS), nn.functional.cross_entropy, STEPS, Schedule(learning_rate=5e-4), steps)
    with paddle.no_grad():
        right = topics_right(model, pairs, split.held_out)
    of_words = [WORDS[headline.label][0] for headline in split.held_out]
    rows = [
        pairs.feeds([(headline.text, TEMPLATES[2].format(word))])
        for headline, word in zip(split.held_out, of_words, strict=True)
    ]
    write_trained(model, out, "services/zero_shot", labels=LABELS, rows=rows, steps=steps)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python3 train.py")
    parser.add_argument("--out", type=Path, default=HERE / "model", help="the serving model (%(default)s)")
    options = parser.parse_args()
    console = Console()
    with ShownSteps(console) as steps:
        right = train(options.out, steps)
    console.print(
        f"of held-out headlines {right:.3f} have their topic, of {len(TOPICS)}; {options.out} holds the "
        "serving model"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
