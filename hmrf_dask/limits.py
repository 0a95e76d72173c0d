"""The range of every number and the bound of every stream that a user gives, each once.

Job files, manifests and the command line read them here; ranges of the method's parameters are in
`hmrf_dask.parameters`. Each end has its reason: what an integer of the kernels holds, what can be
waited for, or what nobody has meant so far.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.redaction import shortened

LARGEST_INT32: Final = 2**31 - 1


class Range(NamedTuple):
    """The least and the most that a number may be.

    Examples
    --------
    >>> Range(1, 10).whole, Range(0.0, 1.0).whole
    (True, False)
    """

    least: float
    most: float

    @property
    def whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return isinstance(self.most, int)

    def as_field(self) -> dict[str, Any]:
        """Return how a field of a model takes this number: no text, no true or false.

        Examples
        --------
        >>> Range(1, 10).as_field()
        {'strict': True, 'ge': 1, 'le': 10}
        """
        finite = {} if self.whole else {"allow_inf_nan": False}
        return {"strict": True, "ge": self.least, "le": self.most, **finite}

    def problem(self, value: object) -> str:
        """Return what is wrong with a number, "" if nothing is; NaN is in no range.

        Examples
        --------
        >>> Range(1, 10).problem(0), Range(0.0, 1.0).problem(2)
        ('must be an integer from 1 to 10', 'must be a number from 0 to 1')
        """
        kind, word = (Integral, "an integer") if self.whole else (Real, "a number")
        is_one = isinstance(value, kind) and not isinstance(value, bool)  # numpy's are, too
        if is_one and self.least <= value <= self.most:  # type: ignore[operator]  # of Real
            return ""
        ends = (self.least, self.most) if self.whole else (f"{self.least:g}", f"{self.most:g}")
        return f"must be {word} from {ends[0]} to {ends[1]}"


RANGES: Final[dict[str, Range]] = {
    "n_components": Range(1, 10_000),
    "n_iter": Range(0, 1_000),
    "ngram": Range(1, 10),
    "document_count": Range(1, 10**12),  # min_df, max_df as whole numbers
    "share": Range(0.0, 1.0),
    "outliers": Range(0.0, 0.5),  # of rows: more than half of them are no exceptions
    # Of a pair. A document's costs and distances are integers below 2**61 together.
    "cost": Range(0.0, 1e12),
    "block_weight": Range(1e-6, 1e6),  # a kind that counts less is noise in float32
    "columns": Range(1, LARGEST_INT32),  # numbers of features are int32
    "drift": Range(0.0, 100.0),
    "n_partitions": Range(1, 1_000_000),
    "partition_bytes": Range(1, 2**40),
    "keep": Range(1, 10_000),
    "threads": Range(1, 4_096),
    "processes": Range(1, 1_024),  # each is a Python of its own on this machine
    "workers": Range(1, 100_000),
    "seconds": Range(1.0, 86_400.0),  # a day: nobody waits for workers longer
    "questions": Range(0, LARGEST_INT32),
    "batch": Range(0, 10_000),  # questions at a time: nobody answers more in a night
    "neighbourhoods": Range(2, LARGEST_INT32),  # one has nothing to differ from
    "suggested": Range(2, 1_000),  # one cluster has nothing to be compared with
    "release": Range(0, LARGEST_INT32),
    "record_bytes": Range(1024, 2**30),
    "file_bytes": Range(0, 2**63 - 1),
}
LEAST_COST: Final = 1e-12  # of a cost that is not zero: as far below 1 as the largest is above
COST_MUST_BE: Final = "must be 0, or from 1e-12 to 1e+12"
TRUST_MUST_BE: Final = "must be a probability from 0 to 1"

# What a person writes by hand.
YAML_BYTES: Final = 2**20
YAML_VALUES: Final = 20_000
YAML_DEPTH: Final = 20
YAML_CHARACTERS: Final = 65_536  # of one value
LIST_ITEMS: Final = 10_000  # answers files, paths, stop words
PATH_CHARACTERS: Final = 4_096
# Files that are read whole.
ANSWER_BYTES: Final = 2**28
ANSWER_COLUMNS: Final = 1_000
ANSWER_LINES: Final = 10_000_000
BAD_ANSWERS: Final = 100_000  # lines that are none: then it is another kind of file
WHOLE_FILE_BYTES: Final = 2**30
SCHEDULER_FILE_BYTES: Final = 2**20
UNPACKED_BYTES: Final = 2**31  # of a Parquet file that is read whole
# A .npz: what it may unpack to; matrices of text come to 5 times their size, of ones to 30.
NPZ_RATIO: Final = 200
NPZ_FREE_BYTES: Final = 2**28  # below it no ratio is a burden
# Streams of documents.
BYTES_WITHOUT_RECORD: Final = 2**26
LINES_WITHOUT_RECORD: Final = 1_000_000
MOST_RATIO: Final = 1_000  # of what a compressed file holds to its size: text comes to 10 or 20
RATIO_FREE_BYTES: Final = 2**27  # below it no ratio is a burden
CSV_COLUMNS: Final = 100_000
MOST_FILES: Final = 1_000_000
REJECTS_LISTED: Final = 10_000  # of a file: the others are counted
CELLS_BYTES: Final = 2**28  # of Parquet: what rows read at once may come to at worst


def within(name: str) -> dict[str, Any]:
    """Return how a field of a model says that it takes a number in the range of this name.

    Examples
    --------
    >>> within("keep")
    {'strict': True, 'ge': 1, 'le': 10000}
    """
    return RANGES[name].as_field()


def problem_of_cost(cost: float) -> str:
    """Return what is wrong with the cost of a pair, "" if nothing is; NaN is no cost.

    Examples
    --------
    >>> problem_of_cost(1e308)
    'must be 0, or from 1e-12 to 1e+12'
    """
    return "" if cost == 0 or LEAST_COST <= cost <= RANGES["cost"].most else COST_MUST_BE


def check_count(name: str, value: Any) -> None:
    """Raise ConfigurationError unless a number is an integer in the range of its name.

    Examples
    --------
    >>> check_count("n_partitions", 0)
    Traceback (most recent call last):
    hmrf_dask.errors.ConfigurationError: n_partitions must be an integer from 1 to 1000000, got 0
    """
    if problem := RANGES[name].problem(value):
        raise ConfigurationError(f"{name} {problem}, got {shortened(value)}")
