"""Texts of tables and plot in each language."""

from __future__ import annotations

from typing import NamedTuple

from bench.peers.scenarios import BUSY, DEMO, MIXED, SHORT


class Words(NamedTuple):
    """Texts in one language; braces are filled in. subjects: translated names by key."""

    models: dict[str, str]
    workloads: dict[str, str]
    subjects: dict[str, str]
    connections: str
    per_s: str
    costs: tuple[str, ...]
    short_texts: str
    note: str
    stop: str  # ends a sentence
    setting: str  # name of a subject, with batch and wait
    between: str
    machine: str
    choice: str
    left_out: str
    plot: str
    plot_note: str
    ours: str
    others: str
    limit: str


_ENGLISH = Words(
    models={"2x128": "BERT of 2 x 128", "12x768": "BERT of 12 x 768", DEMO: "the demo"},
    workloads={
        SHORT: "headlines",
        MIXED: "5 to 400 characters",
        BUSY: "headlines, beside two spinning processes",
    },
    subjects={},
    connections="{} connections",
    per_s="requests/s",
    costs=("p50 ms", "p99 ms", "CPU ms", "busy", "idle", "RSS MB", "start s", "errors"),
    short_texts="p99 of short texts, and alone",
    note=(
        "@ is requests/s to ours at so many connections, with busy cores and CPU ms of a request; the other "
        "figures are those at {}."
    ),
    stop=".",
    setting="{} (batches of {}, wait {:g} ms)",
    between=" to ",
    machine=(
        "{}. Medians of {} rounds at least, turns of {} s. Other work took {:.2f} cores in the "
        "median of all turns, {:.2f} at most."
    ),
    choice="With {0} `auto` chose {2} in {3} (*{1}*), which took {4:.1f} s.",
    left_out="{} is left out: {}.",
    plot="Requests a second, to Paddlewheel's",
    plot_note="Longer is faster. Same model, texts and cores; each in turns with ours.",
    ours="ours",
    others="other servers",
    limit="no server: the limit",
)
_CHINESE = Words(
    models={"2x128": "2 x 128 的 BERT", "12x768": "12 x 768 的 BERT", DEMO: "演示模型"},
    workloads={SHORT: "新闻标题", MIXED: "5 到 400 个字符", BUSY: "新闻标题，旁有两个空转进程"},
    subjects={
        "ours-auto-precision": "Paddlewheel，precision: auto",
        "ours-onnxruntime": "Paddlewheel，engine: onnxruntime",
        "ours-processes": "Paddlewheel，engine: onnxruntime，每批 8 条，进程",
        "ours-shards": "Paddlewheel，2 个分片",
        "ours-ray": "Ray 上的 Paddlewheel",
        "trial": "试验：没有前端的进程",
        "ray-haproxy": "Ray Serve，HAProxy 模式",
        "fastapi": "FastAPI，每次一条文本",
        "fastapi-batching": "FastAPI，自行合批",
        "triton": "Triton，Python 后端",
        "loop-all": "循环，全部文本排序",
        "loop": "循环，每次取连接数条文本",
        "loop-openvino": "同上，用 OpenVINO",
        "loop-openvino-bf16": "同上，用 OpenVINO 的 bf16",
    },
    connections="{} 个连接",
    per_s="请求/s",
    costs=("p50 ms", "p99 ms", "CPU ms", "占用核数", "空闲核数", "RSS MB", "启动 s", "错误"),
    short_texts="短文本的 p99，以及没有长文本时",
    note="@ 为该连接数下与我们的请求/s 之比，括号内为占用核数和每个请求的 CPU ms；其余数字取自 {} 个连接。",
    stop="。",
    setting="{}（每批 {} 条，等 {:g} ms）",
    between=" 到 ",
    machine="{}。至少 {} 轮的中位数，每次 {} s。其他任务占用的核：中位数 {:.2f}，最多 {:.2f}。",
    choice="{0} 上 `auto` 选了 {2}，{3}（*{1}*），用时 {4:.1f} s。",
    left_out="{} 未参加：{}。",
    plot="每秒请求数，与 Paddlewheel 之比",
    plot_note="越长越快。模型、文本和核数相同，各与我们的服务轮流测量。",
    ours="我们",
    others="其他服务",
    limit="没有服务器：极限",
)
_LANGUAGES = {"en": _ENGLISH, "zh": _CHINESE}


def words_in(language: str) -> Words:
    return _LANGUAGES[language]


def get_title(model: str, workload: str, words: Words) -> str:
    return f"{words.models[model]}, {words.workloads[workload]}"
