"""What rows are made of, as a job file says it: words, embeddings, or both side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from hmrf_dask.errors import meant
from hmrf_dask.parameters import PATH_CHARACTERS, RANGES, within
from hmrf_dask.redaction import shortened
from hmrf_dask.text.counts import TextSettings

_REFIT = r"^(never|always|drift>[0-9]{1,3}(\.[0-9]{1,9})?%)$"


def _percent(refit: str) -> float | None:
    return float(refit[len("drift>") : -1]) if refit.startswith("drift>") else None


class Text(TextSettings):
    """How texts become rows, and when the vocabulary is made again."""

    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_CHARACTERS,
        description="For embeddings what makes them: wordllama, another name that a package "
        "brings, a local folder (with a /) or module:Class. Without it they are a column of the "
        "documents.",
    )
    weight: Annotated[float, Field(**within("block_weight"))] = Field(
        default=1.0,
        description="In a list of kinds what this one counts: weights are taken as shares of "
        "their sum.",
    )

    refit: str = Field(
        default="drift>5%",
        json_schema_extra={"pattern": _REFIT},
        description="When a later run makes the vocabulary again: never, always, or when the share "
        "of words it does not know is this much larger in new documents.",
    )

    @field_validator("refit")
    @classmethod
    def _known(cls, given: str) -> str:
        if not re.fullmatch(_REFIT, given) or (_percent(given) or 0) > RANGES["drift"].most:
            raise ValueError(
                f"must be never, always or a share such as drift>5%, got {shortened(given)}"
                + meant(given, ("never", "always", "drift>5%"))
            )
        return given

    @model_validator(mode="after")
    def _model_of_embeddings(self) -> Self:
        if self.model is not None and self.kind != "embeddings":
            raise ValueError(f"model must go with kind embeddings, got {self.kind}; leave it out")
        if self.column is not None and self.kind == "embeddings" and self.model is None:
            raise ValueError(
                "column must go with words or a model, got ready embeddings, which are the column "
                "documents.embedding of the manifest; leave it out"
            )
        return self

    @property
    def drift(self) -> float | None:
        """The share that asks for a new vocabulary; None where no share does.

        Examples
        --------
        >>> Text(refit="drift>5%").drift, Text(refit="never").drift
        (0.05, None)
        """
        percent = _percent(self.refit)
        return None if percent is None else percent / 100


class Recipe(NamedTuple):
    """What rows are made of: words, vectors, or both.

    Examples
    --------
    >>> words, vectors = Text(), Text(kind="embeddings", model="wordllama", weight=0.5)
    >>> Recipe.of((words, vectors)).share, Recipe.of((vectors,)).share, Recipe.of((words,)).share
    (0.3333333333333333, 1.0, 0.0)
    """

    words: Text  # those that are counted, for rows or for people alone
    vectors: Text | None  # of kind embeddings
    share: float  # of the vectors, 0 to 1: 1 where words are for people alone

    @staticmethod
    def of(kinds: Sequence[Text]) -> Recipe:
        """Return the recipe of one kind, or of words and embeddings."""
        words = next((one for one in kinds if one.kind != "embeddings"), None)
        vectors = next((one for one in kinds if one.kind == "embeddings"), None)
        if vectors is None:
            return Recipe(words or Text(), None, 0.0)
        if words is None:
            return Recipe(Text(refit=vectors.refit), vectors, 1.0)
        return Recipe(words, vectors, vectors.weight / (words.weight + vectors.weight))
