"""What is made of text, as a job file says it."""

from __future__ import annotations

import json
import unicodedata
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator

from hmrf_dask.limits import LIST_ITEMS, within

Count = Annotated[int, Field(**within("document_count"))]
Columns = Annotated[int, Field(**within("columns"))]
Length = Annotated[int, Field(**within("ngram"))]
Share = Annotated[float, Field(**within("share"))]
Word = Annotated[str, Field(max_length=1_000)]
STOP_WORD_LANGUAGES = ("english",)
# What a batch's counts depend on; everything else can change without reading a text again.
_COUNTING = ("lowercase", "strip_accents", "stop_words", "ngram_range")


class TextSettings(BaseModel):
    """How texts become rows; names and meanings are scikit-learn's.

    Attributes
    ----------
    kind : {"words", "characters", "hashing", "embeddings"}
        Words, or n-grams of characters within words ("char_wb"), in an exact vocabulary; words
        hashed into `n_features` columns, none with a sign; or a column of ready embeddings, which
        this package takes as it is.
    lowercase : bool
    strip_accents : {"ascii", "unicode"}, optional
    stop_words : "english" or list of str, optional
        The English words are scikit-learn's. Those of other languages have to be given. For words.
    ngram_range : (int, int)
        Shortest and longest n-grams, of words or characters.
    min_df, max_df : int or float
        A whole number counts documents, a fraction is a share of them.
    max_features : int, optional
        Keep the terms that occur most often; of equal ones those that are first by their letters.
    n_features : int
        Columns of hashed words.
    sublinear_tf : bool
        1 + ln count in the place of the count.
    norm : {"l2", "l1"}, optional
    lsa : int, optional
        Components of latent semantic analysis of the rows.

    Examples
    --------
    >>> TextSettings(stop_words="english", min_df=2).ngram_range
    (1, 1)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["words", "characters", "hashing", "embeddings"] = "words"
    lowercase: StrictBool = True
    strip_accents: Literal["ascii", "unicode"] | None = None
    stop_words: Word | Annotated[tuple[Word, ...], Field(max_length=LIST_ITEMS)] | None = None
    ngram_range: tuple[Length, Length] = (1, 1)
    min_df: Count | Share = 1
    max_df: Count | Share = 1.0
    max_features: Columns | None = None
    n_features: Columns = 2**18
    sublinear_tf: StrictBool = False
    norm: Literal["l2", "l1"] | None = "l2"
    lsa: Annotated[int, Field(**within("n_components"))] | None = None

    @field_validator("stop_words")
    @classmethod
    def _known_language(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        """Refuse a language without a list; words are composed as texts are, sorted and unique."""
        if isinstance(value, tuple):
            return tuple(sorted({unicodedata.normalize("NFC", word) for word in value}))
        if value is not None and value not in STOP_WORD_LANGUAGES:
            raise ValueError(
                f"must be a language with a list of stop words (there is: "
                f"{', '.join(STOP_WORD_LANGUAGES)}) or a list of words, got {value!r}; give the "
                "words themselves"
            )
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        """Refuse values that contradict one another."""
        shortest, longest = self.ngram_range
        if shortest > longest:
            raise ValueError(
                f"ngram_range must not fall, got {list(self.ngram_range)}; "
                f"give {[longest, shortest]}"
            )
        if self.kind == "characters" and self.stop_words is not None:
            raise ValueError("stop_words must be left out for characters; they are whole words")
        limited = self.min_df != 1 or self.max_df != 1.0 or self.max_features is not None
        if self.kind == "hashing" and limited:
            raise ValueError(
                "min_df, max_df and max_features must be left out where words are hashed; "
                "n_features says how many columns there are"
            )
        return self

    @property
    def counting_identity(self) -> str:
        """What counts of a text depend on, hashed: equal where counts can be used again."""
        unit = "characters" if self.kind == "characters" else "words"
        return _hashed({"unit": unit, **self.model_dump(mode="json", include=set(_COUNTING))})


def _hashed(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
