"""Which words to mark: those that two documents share, or one has alone; passages shown first."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from hmrf_dask.text.marked import Marks, words_of

TOGETHER, ALONE = "together", "alone"
MOST_MARKED: Final = 12  # words of each kind
WHOLE: Final = 1_500  # characters of a text that is shown whole
PASSAGE: Final = 320  # characters of a passage of a longer one
N_PASSAGES: Final = 3
_END = re.compile(r"[.!?\u3002\uff01\uff1f\u061f]\s*|\n\s*")

Weights = Callable[[Sequence[str]], list[float]]  # what words are worth; 0: they say nothing


def frequencies(texts: Sequence[str]) -> Weights:
    """Return the weights of words where no vocabulary has them: rare ones of some texts say more.

    Examples
    --------
    >>> weigh = frequencies(["the cat", "the dog", "the dog"])
    >>> [round(one, 1) for one in weigh(["the", "cat"])]
    [0.0, 1.1]
    """
    counts = Counter(word for text in texts for word in set(words_of(text)))
    n_texts = max(len(texts), 1)
    return lambda words: [math.log(n_texts / max(counts[word], 1)) for word in words]


def marks_of_pair(texts: tuple[str, str], weigh: Weights) -> tuple[Marks, Marks]:
    """Return which words to mark in two texts: those that both have, and those of one alone.

    Examples
    --------
    >>> first, second = marks_of_pair(("cats purr", "cats bark"), lambda words: [1.0] * len(words))
    >>> sorted(first.items())
    [('cats', 'together'), ('purr', 'alone')]
    """
    first, second = (_weighed(text, weigh) for text in texts)
    shared = {word: min(first[word], second[word]) for word in first.keys() & second.keys()}
    together = dict.fromkeys(_heaviest(shared), TOGETHER)
    alone = [
        dict.fromkeys(_heaviest({w: v for w, v in one.items() if w not in shared}), ALONE)
        for one in (first, second)
    ]
    return {**together, **alone[0]}, {**together, **alone[1]}


def marks_of_groups(text: str, group_words: Sequence[Sequence[str]]) -> Marks:
    """Return which words of a text are words of groups: those of one say most.

    Examples
    --------
    >>> marks_of_groups("orbit of gears", [["orbit", "moon"], ["gears"]])
    {'orbit': 'together', 'gears': 'together'}
    """
    of_groups = {part for words in group_words for word in words for part in words_of(word)}
    return {word: TOGETHER for word in dict.fromkeys(words_of(text)) if word in of_groups}


def _weighed(text: str, weigh: Weights) -> dict[str, float]:
    counts = Counter(words_of(text))
    values = weigh(list(counts))
    return {
        word: value * (1.0 + math.log(counts[word]))
        for word, value in zip(counts, values, strict=True)
        if value > 0.0
    }


def _heaviest(values: Mapping[str, float]) -> list[str]:
    return sorted(values, key=lambda word: (-values[word], word))[:MOST_MARKED]


def passages(text: str, marks: Marks) -> list[str]:
    """Return a short text whole; of a long one its beginning, then what has most marked words.

    Examples
    --------
    >>> passages("short", {})
    ['short']
    """
    if len(text) <= WHOLE:
        return [text]
    pieces = [text[start:end] for start, end in _pieces(text)]
    words = [{word for word in words_of(piece) if word in marks} for piece in pieces]
    chosen, covered = [0], set(words[0])
    for _ in range(N_PASSAGES):
        best = max(range(len(pieces)), key=lambda at: (len(words[at] - covered), -at))
        if not words[best] - covered:
            break
        chosen.append(best)
        covered |= words[best]
    return [pieces[at].strip() for at in chosen]


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield where pieces of a text begin and end: at sentences, or at spaces, if any are near."""
    start = 0
    while start < len(text):
        end = min(start + PASSAGE, len(text))
        if end < len(text):
            ends = [found.end() for found in _END.finditer(text, start + PASSAGE // 2, end)]
            space = text.rfind(" ", start + PASSAGE // 2, end) + 1
            end = ends[-1] if ends else space or end
        yield start, end
        start = end
