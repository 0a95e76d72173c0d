"""Embedders of a few lines, which a job names as module:Class: they count what they are given."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.support.job_corpus import WORDS

EMBEDDED: list[str] = []  # every text, as often as it was embedded in this process
WIDTH = 8


class Topics:
    """How many words of each class a text has, and noise that is the text's own."""

    identity = "topics/1"
    width = WIDTH
    row_exact = True

    def load(self) -> None:
        """Nothing is to be loaded."""

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        EMBEDDED.extend(texts)
        return np.array([self.one(text) for text in texts], np.float32).reshape(-1, WIDTH)

    def one(self, text: str) -> list[float]:
        words = text.split()
        found = [float(sum(word in some.split() for word in words)) for some in WORDS.values()]
        if not any(found):
            return [0.0] * WIDTH
        noise = np.frombuffer(sha256(text.encode()).digest()[: WIDTH - 3], np.uint8) / 256.0 - 0.5
        return [*found, *noise.tolist()]


class OtherTopics(Topics):
    """The same under another name, with other numbers."""

    identity = "topics/2"

    def one(self, text: str) -> list[float]:
        return [2.0 * value for value in super().one(text)]


LISTED = "HMRF_DASK_TESTS_EMBEDDED"  # names the file that `Listed` writes
PATIENCE = 120.0  # seconds


class Listed(Topics):
    """Lists every text in a file, whatever process embeds it; at a "barrier" it waits for one."""

    identity = "listed"
    row_exact = False  # else the first text is embedded once more, to see

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        listed, until = Path(os.environ[LISTED]), time.monotonic() + PATIENCE
        if any("barrier" in text for text in texts):
            listed.with_suffix(".waiting").touch()
            while not listed.with_suffix(".open").exists() and time.monotonic() < until:
                time.sleep(0.05)
        with listed.open("a") as file:
            file.write("".join(f"{sha256(text.encode()).hexdigest()}\n" for text in texts))
        return super().embed(texts)


class NotFinite(Topics):
    identity = "not-finite"

    def one(self, text: str) -> list[float]:
        return [float("nan")] * WIDTH


class Narrow(Topics):
    identity = "narrow"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return super().embed(texts)[:, 1:]


class Moody(Topics):
    """Says that a vector depends on its text alone, which is not so."""

    identity = "moody"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return super().embed(texts) + np.float32(len(texts))


class Failing(Topics):
    """Fails at one text, whatever comes with it."""

    identity = "failing"

    def one(self, text: str) -> list[float]:
        if "unspeakable" in text:
            raise KeyError("no such token")
        return super().one(text)


class Crowded(Topics):
    """Fails at many texts together, not at one."""

    identity = "crowded"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if len(texts) > 10:
            raise MemoryError("too many")
        return super().embed(texts)


class Ragged(Topics):
    """Gives lists of several lengths."""

    identity = "ragged"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return [[1.0] * (1 + number % 2) for number in range(len(texts))]  # type: ignore[return-value]


class Fewer(Topics):
    """Leaves the last text out."""

    identity = "fewer"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return super().embed(texts)[:-1]


class Unmade(Topics):
    """Cannot be made here."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Unloaded(Topics):
    """Cannot be loaded here."""

    identity = "unloaded"

    def load(self) -> None:
        raise OSError("weights.bin is no file of weights")


class Drifting(Topics):
    """Gives every call other numbers, and says so."""

    identity = "drifting"
    row_exact = False
    calls = 0

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        type(self).calls += 1
        return super().embed(texts) + np.float32(type(self).calls / 100)


class Wider(Topics):
    """Calls itself what another one is called, whose vectors are half as wide."""

    width = 2 * WIDTH

    def one(self, text: str) -> list[float]:
        return 2 * super().one(text)


class Numbered(Topics):
    identity = 7  # type: ignore[assignment]


class Flat(Topics):
    identity = "flat"
    width = 0


class Choosy(Topics):
    def __init__(self, language: str) -> None:
        self.identity = f"choosy/{language}"


class NoEmbedder:
    """Has nothing of what an embedder has."""
