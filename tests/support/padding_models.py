"""Tiny ONNX models for the padding proof: padding changes the answers of some, and not those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.support.onnx_graphs import Graph

WORDS, WIDTH, CLASSES, POSITIONS = 200, 8, 3, 512
Build = Callable[[Graph], None]

REJECTED: dict[str, Build] = {}
ACCEPTED: dict[str, Build] = {}


def model(name: str) -> bytes:
    """Return the file of a model of either kind."""
    graph = Graph()
    (REJECTED | ACCEPTED)[name](graph)
    return graph.model()


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rejected(build: Build) -> Build:
    REJECTED[build.__name__] = build
    return build


def accepted(build: Build) -> Build:
    ACCEPTED[build.__name__] = build
    return build


def wave(g: Graph) -> str:
    return g.feed("x", "float32", "n", "length")


def features(g: Graph) -> str:
    return g.feed("x", "float32", "n", "length", WIDTH)


def ids(g: Graph, dtype: str = "int64") -> str:
    return g.feed("input_ids", dtype, "n", "length")


def words(g: Graph, ids: str, *, zero_row: bool = False) -> str:
    """Look ids up in a table of embeddings; zero_row: that of id 0 is zero."""
    table = weights(WORDS, WIDTH)
    table[:1] *= not zero_row
    return g.add("Gather", g.tensor(table), ids)


def row(g: Graph, value: str) -> None:
    """Fetch one number for each row, from [n] or [n, 1]."""
    g.fetch(g.add("Reshape", value, g.ints(-1, 1)), "y", "float32", "n", 1)


def logits(g: Graph, pooled: str) -> None:
    g.fetch(g.add("MatMul", pooled, g.tensor(weights(WIDTH, CLASSES, seed=1))), "y", "float32", "n", CLASSES)


def length(g: Graph, x: str) -> str:
    """The length of the rows as a float."""
    return g.add("Cast", g.add("Shape", x, start=1, end=2), to=1)


def reduction(operator: str) -> None:
    def build(g: Graph) -> None:
        row(g, g.add(operator, wave(g), axes=[1], keepdims=0))

    REJECTED[operator] = build


for _operator in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp"):
    reduction(_operator)


@rejected
def reduce_sum(g: Graph) -> None:
    row(g, g.add("ReduceSum", wave(g), g.ints(1), keepdims=0))


@rejected
def argmax(g: Graph) -> None:
    g.fetch(g.add("ArgMax", wave(g), axis=1, keepdims=1), "y", "int64", "n", 1)


@rejected
def argmax_of_integers(g: Graph) -> None:
    g.fetch(g.add("ArgMax", g.feed("x", "int64", "n", "length"), axis=1, keepdims=1), "y", "int64", "n", 1)


@rejected
def argmin(g: Graph) -> None:
    g.fetch(g.add("ArgMin", wave(g), axis=1, keepdims=1), "y", "int64", "n", 1)


@rejected
def top_k(g: Graph) -> None:
    x = wave(g)
    values, _ = g.split("TopK", x, g.ints(1), outputs=2, axis=1)
    g.fetch(values, "y", "float32", "n", 1)


@rejected
def top_k_of_integers(g: Graph) -> None:
    x = g.feed("x", "int32", "n", "length")
    values, _ = g.split("TopK", x, g.ints(1), outputs=2, axis=1)
    g.fetch(values, "y", "int32", "n", 1)


@rejected
def top_k_beside_a_feed(g: Graph) -> None:
    """The second input holds integers and is no mask, though it is padded with zeros."""
    g.fetch(words(g, ids(g)), "states", "float32", "n", "length", WIDTH)
    values, _ = g.split("TopK", g.feed("x", "int32", "n", "length"), g.ints(1), outputs=2, axis=1)
    g.fetch(values, "y", "int32", "n", 1)


@rejected
def sorting(g: Graph) -> None:
    x = wave(g)
    values, _ = g.split("TopK", x, g.add("Shape", x, start=1, end=2), outputs=2, axis=1)
    g.fetch(values, "y", "float32", "n", "length")


@rejected
def standardised_over_time(g: Graph) -> None:
    x = wave(g)
    centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[1]))
    spread = g.add("Sqrt", g.add("ReduceMean", g.add("Mul", centred, centred), axes=[1]))
    g.fetch(g.add("Div", centred, g.add("Add", spread, g.tensor(1e-5))), "y", "float32", "n", "length")


@rejected
def instance_norm(g: Graph) -> None:
    turned = g.add("Transpose", features(g), perm=[0, 2, 1])
    scale = g.tensor(np.ones(WIDTH))
    normed = g.add("InstanceNormalization", turned, scale, g.tensor(np.zeros(WIDTH)))
    g.fetch(g.add("Transpose", normed, perm=[0, 2, 1]), "y", "float32", "n", "length", WIDTH)


@rejected
def softmax_over_time(g: Graph) -> None:
    g.fetch(g.add("Softmax", wave(g), axis=1), "y", "float32", "n", "length")


@rejected
def layer_norm_over_time(g: Graph) -> None:
    x = wave(g)
    low, high = (g.add(f"Reduce{name}", x, axes=[1]) for name in ("Min", "Max"))
    span = g.add("Add", g.add("Sub", high, low), g.tensor(1e-6))
    g.fetch(g.add("Div", g.add("Sub", x, low), span), "y", "float32", "n", "length")


def channels(g: Graph, x: str) -> str:
    return g.add("Unsqueeze", x, g.ints(1))


@rejected
def global_max_pool(g: Graph) -> None:
    row(g, g.add("GlobalMaxPool", channels(g, wave(g))))


@rejected
def global_average_pool(g: Graph) -> None:
    row(g, g.add("GlobalAveragePool", channels(g, wave(g))))


@rejected
def average_pool(g: Graph) -> None:
    pooled = g.add("AveragePool", channels(g, wave(g)), kernel_shape=[3], pads=[1, 1])
    g.fetch(g.add("Squeeze", pooled, g.ints(1)), "y", "float32", "n", "length")


@rejected
def strided_max_pool(g: Graph) -> None:
    pooled = g.add("MaxPool", channels(g, wave(g)), kernel_shape=[2], strides=[2], ceil_mode=1)
    g.fetch(g.add("Squeeze", pooled, g.ints(1)), "y", "float32", "n", "half")


@rejected
def maximum_of_embeddings(g: Graph) -> None:
    logits(g, g.add("ReduceMax", words(g, ids(g)), axes=[1], keepdims=0))


@rejected
def maximum_of_embeddings_without_padding(g: Graph) -> None:
    """The row of the padding's id is zero, as an embedding is trained with a padding index."""
    logits(g, g.add("ReduceMax", words(g, ids(g), zero_row=True), axes=[1], keepdims=0))


@rejected
def maximum_that_ignores_its_mask(g: Graph) -> None:
    mask = g.add("Cast", g.feed("attention_mask", "int64", "n", "length"), to=1)
    first = g.add("Mul", g.add("ReduceMax", mask, axes=[1]), g.tensor(0.01))
    pooled = g.add("ReduceMax", words(g, ids(g), zero_row=True), axes=[1], keepdims=0)
    logits(g, g.add("Add", pooled, first))


@rejected
def mean_of_embeddings(g: Graph) -> None:
    logits(g, g.add("ReduceMean", words(g, ids(g)), axes=[1], keepdims=0))


@rejected
def product_of_embeddings(g: Graph) -> None:
    logits(g, g.add("ReduceProd", words(g, ids(g)), axes=[1], keepdims=0))


@rejected
def unique_values(g: Graph) -> None:
    x = g.feed("x", "int64", "n", "length")
    value = g.split("Unique", x, outputs=1, axis=1)[0]
    g.fetch(value, "y", "int64", "n", "found")


@rejected
def cumulative_sum_from_the_right(g: Graph) -> None:
    sums = g.add("CumSum", wave(g), g.tensor(1, "int64"), reverse=1)
    g.fetch(sums, "y", "float32", "n", "length")


@rejected
def reversed_row(g: Graph) -> None:
    turned = g.add("Slice", wave(g), g.ints(-1), g.ints(-(1 << 40)), g.ints(1), g.ints(-1))
    g.fetch(turned, "y", "float32", "n", "length")


def convolution(g: Graph, x: str, *, bias: float, **attributes: int | Sequence[int]) -> str:
    kernel = g.tensor(weights(4, 1, 3, seed=3))
    return g.add("Conv", channels(g, x), kernel, g.tensor(np.full(4, bias)), kernel_shape=[3], **attributes)


@rejected
def convolution_with_bias_then_maximum(g: Graph) -> None:
    value = g.add("ReduceMax", g.add("Relu", convolution(g, wave(g), bias=0.5, pads=[1, 1])), axes=[2])
    g.fetch(g.add("Squeeze", value, g.ints(2)), "y", "float32", "n", 4)


@rejected
def convolutions_with_bias(g: Graph) -> None:
    """The bias of the first layer makes the padding count for the second."""
    once = g.add("ReduceSum", convolution(g, wave(g), bias=0.5, pads=[1, 1]), g.ints(1), keepdims=0)
    twice = g.add("ReduceSum", convolution(g, once, bias=0.5, pads=[1, 1]), g.ints(1), keepdims=0)
    g.fetch(twice, "y", "float32", "n", "length")


@rejected
def strided_convolution(g: Graph) -> None:
    value = convolution(g, wave(g), bias=0.1, pads=[1, 1], strides=[2])
    g.fetch(g.add("Transpose", value, perm=[0, 2, 1]), "y", "float32", "n", "half", 4)


def scaled_by(operator: str, name: str) -> None:
    def build(g: Graph) -> None:
        x = words(g, ids(g))
        factor = (
            g.add(operator, g.add("Add", length(g, "input_ids"), g.tensor(1.0)))
            if operator
            else (length(g, "input_ids"))
        )
        g.fetch(g.add("Mul", x, factor), "y", "float32", "n", "length", WIDTH)

    REJECTED[name] = build


scaled_by("Log", "scaled_by_the_logarithm_of_the_length")
scaled_by("Sqrt", "scaled_by_the_root_of_the_length")
scaled_by("", "scaled_by_the_length")


def masked_states(g: Graph, x: str, mask: str) -> str:
    """One layer of attention and a mean, both of what the mask keeps: [n, WIDTH]."""
    keeps = g.add("Cast", mask, to=1)
    hidden = g.add("Mul", g.add("Sub", g.tensor(1.0), keeps), g.tensor(-1e4))
    scores = g.add("MatMul", x, g.add("Transpose", x, perm=[0, 2, 1]))
    chances = g.add("Softmax", g.add("Add", scores, g.add("Unsqueeze", hidden, g.ints(1))), axis=2)
    return g.add("Add", x, g.add("MatMul", chances, x))


def masked_mean(g: Graph, states: str, mask: str) -> str:
    column = g.add("Unsqueeze", g.add("Cast", mask, to=1), g.ints(2))
    total = g.add("ReduceSum", g.add("Mul", states, column), g.ints(1), keepdims=0)
    count = g.add("Clip", g.add("ReduceSum", column, g.ints(1), keepdims=0), g.tensor(1e-9))
    return g.add("Div", total, count)


def attention_mask(g: Graph, dtype: str = "int64") -> str:
    return g.feed("attention_mask", dtype, "n", "length")


def text_model(g: Graph, dtype: str = "int64", *, positions: int = 0) -> tuple[str, str]:
    """States and mask of an encoder; positions: of a table that is added to the words."""
    feed, mask = ids(g, dtype), attention_mask(g, dtype)
    x = words(g, feed)
    if positions:
        count = g.add("Squeeze", g.add("Shape", feed, start=1, end=2), g.ints(0))
        places = g.add("Range", g.tensor(0, "int64"), count, g.tensor(1, "int64"))
        x = g.add("Add", x, g.add("Gather", g.tensor(weights(positions, WIDTH, seed=4)), places))
    return masked_states(g, x, mask), mask


def scaled_beyond(limit: int, name: str) -> None:
    """A masked mean whose scores are scaled by the logarithm of a length over `limit`."""

    def build(g: Graph) -> None:
        states, mask = text_model(g)
        long = g.add("Max", length(g, "input_ids"), g.tensor([float(limit)]))
        factor = g.add("Div", g.add("Log", long), g.tensor([float(np.log(limit))]))
        logits(g, g.add("Mul", masked_mean(g, states, mask), factor))

    REJECTED[name] = build


scaled_beyond(64, "scaled_by_the_logarithm_of_lengths_over_64")
scaled_beyond(300, "scaled_by_the_logarithm_of_lengths_over_300")


def positions_beyond(limit: int, name: str) -> None:
    """Positions count from the end in rows of over `limit`."""

    def build(g: Graph) -> None:
        feed, mask = ids(g), attention_mask(g)
        count = g.add("Squeeze", g.add("Shape", feed, start=1, end=2), g.ints(0))
        places = g.add("Range", g.tensor(0, "int64"), count, g.tensor(1, "int64"))
        behind = g.add("Sub", g.add("Sub", count, g.tensor(1, "int64")), places)
        long = g.add("Greater", count, g.tensor(limit, "int64"))
        table = g.tensor(weights(POSITIONS, WIDTH, seed=4))
        x = g.add("Add", words(g, feed), g.add("Gather", table, g.add("Where", long, behind, places)))
        logits(g, masked_mean(g, masked_states(g, x, mask), mask))

    REJECTED[name] = build


positions_beyond(1, "positions_from_the_end")
positions_beyond(64, "positions_from_the_end_over_64")
positions_beyond(300, "positions_from_the_end_over_300")


@rejected
def last_element(g: Graph) -> None:
    logits(g, g.add("Gather", words(g, ids(g)), g.tensor(-1, "int64"), axis=1))


def recurrent(operator: str, gates: int, name: str, *, direction: str, states: bool) -> None:
    def build(g: Graph) -> None:
        x = g.add("Transpose", words(g, ids(g)), perm=[1, 0, 2])
        wide = 2 if direction == "bidirectional" else 1
        w, r = (g.tensor(weights(wide, gates * 4, size, seed=size) * 0.4) for size in (WIDTH, 4))
        all_states, last = g.split(operator, x, w, r, outputs=2, hidden_size=4, direction=direction)
        if states:
            state = g.add("Squeeze", g.add("Transpose", all_states, perm=[2, 0, 1, 3]), g.ints(2))
            g.fetch(state, "y", "float32", "n", "length", 4)
        else:
            g.fetch(g.add("Squeeze", last, g.ints(0)), "y", "float32", "n", 4)

    (ACCEPTED if direction == "forward" and states else REJECTED)[name] = build


recurrent("LSTM", 4, "final_state_of_an_lstm", direction="forward", states=False)
recurrent("GRU", 3, "states_of_a_backward_gru", direction="reverse", states=True)
recurrent("GRU", 3, "final_state_of_a_backward_gru", direction="reverse", states=False)
recurrent("LSTM", 4, "states_of_a_forward_lstm", direction="forward", states=True)


@rejected
def median(g: Graph) -> None:
    x = wave(g)
    ranked, _ = g.split("TopK", x, g.add("Shape", x, start=1, end=2), outputs=2, axis=1)
    half = g.add("Div", g.add("Shape", x, start=1, end=2), g.ints(2))
    row(g, g.add("Gather", ranked, half, axis=1))


@rejected
def variance(g: Graph) -> None:
    x = wave(g)
    centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[1]))
    row(g, g.add("ReduceMean", g.add("Mul", centred, centred), axes=[1]))


@rejected
def peak_normalisation(g: Graph) -> None:
    x = wave(g)
    peak = g.add("ReduceMax", x, axes=[1])
    g.fetch(g.add("Div", x, peak), "y", "float32", "n", "length")


@rejected
def wake_word(g: Graph) -> None:
    """The chance that a pattern occurs somewhere, mostly near 0."""
    score = g.add("ReduceMax", convolution(g, wave(g), bias=-2.0, pads=[1, 1]), axes=[1, 2], keepdims=0)
    row(g, g.add("Sigmoid", score))


@rejected
def waveform_maximum(g: Graph) -> None:
    row(g, g.add("ReduceMax", g.add("Sub", wave(g), g.tensor(1.0)), axes=[1]))


@rejected
def fourier(g: Graph) -> None:
    x = g.add("Unsqueeze", wave(g), g.ints(2))
    g.fetch(g.add("DFT", x, axis=1), "y", "float32", "n", "length", 2)


@rejected
def rolled(g: Graph) -> None:
    x = wave(g)
    last = g.add("Slice", x, g.ints(-1), g.ints(1 << 40), g.ints(1))
    g.fetch(
        g.add("Concat", last, g.add("Slice", x, g.ints(0), g.ints(-1), g.ints(1)), axis=1),
        "y",
        "float32",
        "n",
        "length",
    )


@rejected
def histogram(g: Graph) -> None:
    counts = g.add("OneHot", g.feed("x", "int64", "n", "length"), g.ints(4), g.tensor([0.0, 1.0]))
    g.fetch(g.add("ReduceSum", counts, g.ints(1), keepdims=0), "y", "float32", "n", 4)


@rejected
def shape_of_the_row(g: Graph) -> None:
    x = wave(g)
    zero = g.add("Mul", g.add("ReduceMax", x, axes=[1]), g.tensor(0.0))
    g.fetch(g.add("Add", zero, length(g, x)), "y", "float32", "n", 1)


@rejected
def mean_of_all_rows(g: Graph) -> None:
    """Rows that share a run change each other's answers."""
    x = words(g, ids(g))
    g.fetch(g.add("Sub", x, g.add("ReduceMean", x, axes=[0])), "y", "float32", "n", "length", WIDTH)


@rejected
def random_noise(g: Graph) -> None:
    x = words(g, ids(g))
    noise = g.add("RandomNormalLike", x)
    g.fetch(g.add("Add", x, noise), "y", "float32", "n", "length", WIDTH)


@rejected
def float_mask(g: Graph) -> None:
    """A float may be anything, so it is no mask."""
    x, weight = words(g, ids(g)), g.feed("mask", "float32", "n", "length")
    row(g, g.add("ReduceMax", weight, axes=[1]))
    g.fetch(x, "states", "float32", "n", "length", WIDTH)


@rejected
def multiples_of_four(g: Graph) -> None:
    """Only some lengths run."""
    x = wave(g)
    parts = g.add("Reshape", x, g.ints(0, -1, 4))
    g.fetch(g.add("Reshape", parts, g.ints(0, -1)), "y", "float32", "n", "length")


@rejected
def always_the_same(g: Graph) -> None:
    """A flag that no random row sets tells nothing."""
    loud = g.add("Greater", g.add("ReduceMax", wave(g), axes=[1]), g.tensor(1e9))
    g.fetch(g.add("Cast", loud, to=7), "y", "int64", "n", 1)


@accepted
def encoder(g: Graph) -> None:
    states, mask = text_model(g, positions=POSITIONS)
    logits(g, masked_mean(g, states, mask))


@accepted
def encoder_of_int32(g: Graph) -> None:
    states, mask = text_model(g, "int32")
    logits(g, masked_mean(g, states, mask))


@accepted
def encoder_with_types(g: Graph) -> None:
    types = g.add(
        "Gather", g.tensor(weights(2, WIDTH, seed=5)), g.feed("token_type_ids", "int64", "n", "length")
    )
    mask = attention_mask(g)
    x = g.add("Add", words(g, ids(g)), types)
    logits(g, masked_mean(g, masked_states(g, x, mask), mask))


@accepted
def first_token(g: Graph) -> None:
    states, _ = text_model(g, positions=POSITIONS)
    logits(g, g.add("Gather", states, g.tensor(0, "int64"), axis=1))


@accepted
def token_classes(g: Graph) -> None:
    states, _ = text_model(g)
    head = g.add("MatMul", states, g.tensor(weights(WIDTH, CLASSES, seed=1)))
    g.fetch(head, "y", "float32", "n", "length", CLASSES)


@accepted
def states_and_pooled(g: Graph) -> None:
    states, mask = text_model(g)
    g.fetch(states, "last_hidden_state", "float32", "n", "length", WIDTH)
    g.fetch(masked_mean(g, states, mask), "pooler_output", "float32", "n", WIDTH)


@accepted
def sentence_embedder(g: Graph) -> None:
    states, mask = text_model(g, positions=POSITIONS)
    pooled = masked_mean(g, states, mask)
    norm = g.add("Clip", g.add("ReduceL2", pooled, axes=[1]), g.tensor(1e-12))
    g.fetch(g.add("Div", pooled, norm), "sentence_embedding", "float32", "n", WIDTH)


def mask_of_ids(g: Graph, pad: int, *, positions: bool = False) -> None:
    feed = ids(g)
    mask = g.add("Not", g.add("Equal", feed, g.tensor(pad, "int64")))
    x = words(g, feed)
    if positions:  # of RoBERTa: counted where there is no padding
        keeps = g.add("Cast", mask, to=7)
        places = g.add("Mul", g.add("CumSum", keeps, g.tensor(1, "int64")), keeps)
        places = g.add("Add", places, g.tensor(pad, "int64"))
        x = g.add("Add", x, g.add("Gather", g.tensor(weights(POSITIONS + 2, WIDTH, seed=4)), places))
    logits(g, masked_mean(g, masked_states(g, x, mask), mask))


@accepted
def mask_of_ids_other_than_0(g: Graph) -> None:
    mask_of_ids(g, 0)


@accepted
def mask_of_ids_other_than_1(g: Graph) -> None:
    mask_of_ids(g, 1)


@accepted
def positions_of_ids_other_than_1(g: Graph) -> None:
    mask_of_ids(g, 1, positions=True)


@accepted
def maximum_of_what_the_mask_keeps(g: Graph) -> None:
    states, mask = text_model(g)
    keeps = g.add("Unsqueeze", g.add("Cast", mask, to=9), g.ints(2))
    logits(g, g.add("ReduceMax", g.add("Where", keeps, states, g.tensor(-1e9)), axes=[1], keepdims=0))


@accepted
def mean_of_float_features(g: Graph) -> None:
    mask = attention_mask(g)
    logits(g, masked_mean(g, features(g), mask))


@accepted
def mask_of_booleans(g: Graph) -> None:
    mask = attention_mask(g, "bool")
    logits(g, masked_mean(g, masked_states(g, words(g, ids(g)), mask), mask))


@accepted
def mask_of_another_name(g: Graph) -> None:
    mask = g.feed("x1", "int32", "n", "length")
    x = words(g, g.feed("x0", "int32", "n", "length"))
    logits(g, masked_mean(g, masked_states(g, x, mask), mask))


@accepted
def answers_to_a_question(g: Graph) -> None:
    """Start and end of an answer; masked places have -1e4."""
    states, mask = text_model(g)
    scores = g.add("MatMul", states, g.tensor(weights(WIDTH, 2, seed=6)))
    hidden = g.add("Mul", g.add("Sub", g.tensor(1.0), g.add("Cast", mask, to=1)), g.tensor(-1e4))
    for place, name in enumerate(("start_logits", "end_logits")):
        state = g.add("Gather", scores, g.tensor(place, "int64"), axis=2)
        g.fetch(g.add("Add", state, hidden), name, "float32", "n", "length")


@accepted
def elementwise(g: Graph) -> None:
    g.fetch(g.add("Tanh", wave(g)), "y", "float32", "n", "length")


@accepted
def label_and_score(g: Graph) -> None:
    states, mask = text_model(g)
    head = g.add("MatMul", masked_mean(g, states, mask), g.tensor(weights(WIDTH, CLASSES, seed=1)))
    chances = g.add("Softmax", head, axis=1)
    g.fetch(g.add("ArgMax", chances, axis=1, keepdims=0), "label", "int64", "n")
    g.fetch(chances, "scores", "float32", "n", CLASSES)


@accepted
def words_scored_one_by_one(g: Graph) -> None:
    logits_ = g.add("MatMul", words(g, ids(g)), g.tensor(weights(WIDTH, CLASSES, seed=1)))
    g.fetch(logits_, "y", "float32", "n", "length", CLASSES)
