"""TextRows: tokenized texts, or pairs of them, as the rows that a model reads; a long text has several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.errors import InvalidInput
from pipeline.ops.text_tasks.text_windows import Cut, Reading, cut
from pipeline.ops.tokenizing.text_tokenizer import Row, TextTokenizer, Tokens, shortened


class TextRows:
    """Makes the rows of a request, and tells which parts of each text these are.

    names: of its inputs, one, or two of pairs.
    """

    def __init__(self, tokenizer: TextTokenizer, names: Sequence[str], reading: Reading) -> None:
        self._tokenizer = tokenizer
        self._names = names
        self._reading = reading

    def build_rows(self, texts: Sequence[Sequence[str]]) -> tuple[list[Row], list[Cut]]:
        """The rows of the texts of each input; of pairs one first text may stand for all of them."""
        tokens = [self._tokens(many) for many in texts]
        if len(texts) == 2 and len(texts[0]) < len(texts[1]):
            texts, tokens[0] = [list(texts[0]) * len(texts[1]), texts[1]], tokens[0] * len(texts[1])
        rows, cuts = self.build_text_rows(*tokens) if len(texts) == 1 else self.build_pair_rows(*tokens)
        return rows, self._find_cuts(cuts, *texts)

    def build_rows_with_places(self, texts: Sequence[str]) -> tuple[list[Tokens], list[Row], list[Cut]]:
        """The tokens of texts with their offsets, and what `of` returns."""
        tokens = self._tokens(texts, places=True)
        rows, cuts = self.build_text_rows(tokens)
        return tokens, rows, self._find_cuts(cuts, texts)

    def _tokens(self, texts: Sequence[str], *, places: bool = False) -> list[Tokens]:
        max_chars = self._reading.most_chars
        return self._tokenizer.tokens([text[:max_chars] for text in texts], places=places)

    def _find_cuts(self, cuts: Sequence[Cut], *texts: Sequence[str]) -> list[Cut]:
        """Texts whose last characters were not even tokenized are truncated, too."""
        max_chars = self._reading.most_chars
        over = [any(len(text) > max_chars for text in pair) for pair in zip(*texts, strict=True)]
        return [part._replace(truncated=part.truncated or cut) for part, cut in zip(cuts, over, strict=True)]

    def build_text_rows(self, tokens: Sequence[Tokens]) -> tuple[list[Row], list[Cut]]:
        room, rows, cuts = self._room(paired=False), list[Row](), list[Cut]()
        for number, text in enumerate(tokens):
            part = cut(len(text.ids), room, self._reading, where(self._names[0], number, len(tokens)))
            cuts.append(part)
            rows += [self._tokenizer.row(text.ids[first:last]) for first, last in part.spans]
        return rows, cuts

    def build_pair_rows(
        self, first: Sequence[Tokens], second: Sequence[Tokens]
    ) -> tuple[list[Row], list[Cut]]:
        room, rows, cuts = self._room(paired=True), list[Row](), list[Cut]()
        for number, (first_text, second_text) in enumerate(zip(first, second, strict=True)):
            if self._reading.too_long == "truncate":
                ids, more = shortened(first_text.ids, second_text.ids, room)
                part = Cut([(0, len(ids))], len(ids) + len(more) < len(first_text.ids) + len(second_text.ids))
            else:
                more = second_text.ids
                room_left = self.room_beside(len(more), where(self._names[1], number, len(second)))
                part = cut(
                    len(first_text.ids), room_left, self._reading, where(self._names[0], number, len(first))
                )
            cuts.append(part)
            rows += [self._tokenizer.row(first_text.ids[begin:end], more) for begin, end in part.spans]
        return rows, cuts

    def room_beside(self, second: int, place: str) -> int:
        """The room of a first text beside a second one with so many tokens. place: how a sentence calls that.

        Raises InvalidInput for one that leaves less than half of it.
        """
        room = self._room(paired=True)
        if 2 * second > room and (self._reading.too_long == "windows" or second >= room):
            raise InvalidInput(
                f"{place} has {second} tokens; beside another text {room // 2} are read: shorten it"
            )
        return room - second

    def _room(self, *, paired: bool) -> int:
        """How many tokens of texts a row has."""
        return self._reading.max_tokens - self._tokenizer.special(paired=paired)


def find_prompt(prompts: Mapping[str, str], name: str) -> str:
    """Return what goes before each text. Raises InvalidInput for a name that the model doesn't have."""
    if name and name not in prompts:
        names = ", ".join(prompts)
        raise InvalidInput(
            f"'prompt_name' is {name[:40]!r}; the model has {names}"
            if prompts
            else f"'prompt_name' is {name[:40]!r}; the model has no prompts: put yours before the text"
        )
    return prompts.get(name, "")


def with_prompt(prompt: str, texts: Sequence[str], *, lowercase: bool) -> list[str]:
    """Return the texts after a prompt, in lower case where the model reads them so."""
    joined = [prompt + text for text in texts]
    return [text.lower() for text in joined] if lowercase else joined


def prompt_tokens(count: int, rows: Sequence[Row], cuts: Sequence[Cut]) -> list[int]:
    """Count the tokens at the start of each row that belong to a prompt, special tokens included.

    count: how many tokens the prompt has, which stands before each text.
    """
    firsts = [first for part in cuts for first, _ in part.spans]
    return [row.at + count - first if first < count else 0 for row, first in zip(rows, firsts, strict=True)]


def where(name: str, number: int, of: int) -> str:
    """How a sentence calls one of so many texts."""
    return f"text {number} of {name!r}" if of > 1 else f"the text of {name!r}"
