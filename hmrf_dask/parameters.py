"""Every parameter of the method and the range of every number that a user gives, each said once.

Job files, manifests and the command line read ranges and bounds of streams here; each end has its
reason: what an integer of the kernels holds, what can be waited for, or what nobody has meant so
far. `PARAMETERS` says of each who takes it, its values, its default and its help.
Estimators check against that table; the method section of a job file with its schema, the options
of `hmrf-dask fit` and the table of docs/parameters.md are made from it. To add a parameter:

1. a line of `PARAMETERS`;
2. the argument in the signature of every estimator that takes it, which scikit-learn wants to be
   written out, and its entry in the docstring of the first of them, beginning with the help;
3. a field of the fit's `Settings`, and the code that uses it;
4. `make published`, which writes the schema and that table again.

`tests/test_parameters.py` compares all of these with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    "sampled": Range(200, 1_000_000),  # documents that a plan rehearses a job on
    "price": Range(0.0, 1e9),  # of an hour
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


Choices = tuple[bool | int | str, ...]

SOFT: Final = ("HMRFKMeans", "PCKMeans", "MPCKMeans")  # a pair may be broken, at its cost
SEEDED: Final = ("SeededKMeans", "ConstrainedKMeans")
STARTED: Final = (*SOFT, "COPKMeans", "KMeans")  # from centroids that nobody labelled
METHODS: Final = (*STARTED, *SEEDED)
SWITCH: Final[Choices] = ("auto", True, False)
FLAG: Final[Choices] = (True, False)
REQUIRED: Final = object()
AUTO: Final = "auto"
NOTHING_TO_TRIM: Final = (
    "trim_outliers must be false where outliers is not given, got true; say which rows are "
    "outliers: auto, or a share of all rows"
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of some of the methods.

    Examples
    --------
    >>> PARAMETERS["fill"].values, PARAMETERS["fill"].default
    (('k-means++', 'perturb', 'random'), 'k-means++')
    """

    name: str
    values: Choices | Range
    default: Any
    methods: tuple[str, ...]  # the classes that take it
    help: str  # in a sentence; class docstrings begin with it
    objects: str = ""  # what else it may be, in Python alone
    names: tuple[str, ...] = ()  # what else a number may be
    defaults: Mapping[str, Any] = field(default_factory=dict)  # by method, where they differ
    choices: Mapping[str, Choices] = field(default_factory=dict)  # as well, from `values`
    in_files: Any = None  # the default of job files and the command line where it differs
    python_alone: bool = False  # no part of job files and the command line

    @property
    def is_cost(self) -> bool:
        """Whether it is what a pair costs."""
        return self.values == RANGES["cost"]

    def default_of(self, method: str) -> Any:
        """Return the default that the class of this name has.

        Examples
        --------
        >>> PARAMETERS["init"].default_of("PCKMeans")
        'neighborhoods'
        """
        return self.defaults.get(method, self.default)

    def choices_of(self, method: str) -> Choices:
        """Return the values that the class of this name takes; () of a number.

        Examples
        --------
        >>> PARAMETERS["init"].choices_of("KMeans")
        ('k-means++', 'random')
        """
        return () if isinstance(self.values, Range) else self.choices.get(method, self.values)

    def problem(self, value: Any, method: str = "") -> str:
        """Return what is wrong with a value, "" if nothing is.

        Examples
        --------
        >>> PARAMETERS["init"].problem("auto", "KMeans")
        "must be one of 'k-means++', 'random' or an array of shape (n_clusters, n_features)"
        """
        if value is None and self.default is None:
            return ""
        if self.is_cost:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return problem_of_cost(value) if is_number else COST_MUST_BE
        if isinstance(self.values, Range):
            named = isinstance(value, str) and value in self.names
            problem, joint = "" if named else self.values.problem(value), ", "
            problem += f" or {' or '.join(map(repr, self.names))}" if problem and self.names else ""
        else:
            choices, joint = self.choices_of(method), " or "
            known = any(type(value) is type(choice) and value == choice for choice in choices)
            problem = "" if known else f"must be one of {', '.join(map(repr, choices))}"
        return f"{problem}{joint}{self.objects}" if problem and self.objects else problem


PARAMETERS: Final[Mapping[str, Parameter]] = {
    parameter.name: parameter
    for parameter in (
        Parameter(
            "n_clusters", Range(1, 1_000_000), 8, METHODS,
            "K, the number of clusters; auto: chosen by what speaks for each K on a sample.",
            names=(AUTO,), in_files=REQUIRED,
        ),
        Parameter(
            "distortion", ("cosine", "i-divergence", "kl", "euclidean", "pearson"), "cosine",
            tuple(name for name in METHODS if name != "MPCKMeans"),
            "How far a row is from a centroid.", objects="an object of your own class",
        ),
        Parameter(
            "learn_weights", (*SWITCH, "full"), "auto", ("HMRFKMeans", "MPCKMeans"),
            "Whether feature weights are learned; full: a full metric of dense rows, euclidean; "
            "auto: where the distortion gains by it, and of dense rows what keeps most withheld "
            "answers; in a job, whose dense rows are components or embeddings, never full.",
        ),
        Parameter(
            "penalty", ("auto", "trust", "distance", "potts"), "auto", ("HMRFKMeans", "MPCKMeans"),
            "What a violated pair costs: by how likely it is right (trust), by its distance "
            "(HMRF), or the same whatever it is (potts: PCKMeans); auto: trust for cosine or where "
            "trust is given, else distance.",
        ),
        Parameter(
            "trust", RANGES["share"], None, ("HMRFKMeans", "MPCKMeans"),
            "The probability that an answer is right; 1 is certain, below 1/2 it is turned round; "
            "None: as answers that contradict each other show.",
            objects="an array, one for each pair, or None",
        ),
        Parameter(
            "must_link_cost", RANGES["cost"], 1.0, SOFT,
            "What a violated must-link costs, times its penalty.",
        ),
        Parameter(
            "cannot_link_cost", RANGES["cost"], 1.0, SOFT,
            "What a violated cannot-link costs, times its penalty.",
        ),
        Parameter(
            "init", ("auto", "neighborhoods", "k-means++", "random"), "auto", STARTED,
            "Where centroids begin: auto runs a pool of starts and keeps the lowest J, or one made "
            "of the pairs that keeps more of those withheld from it; neighborhoods is the paper's "
            "start; k-means++ and random run n_init starts that see no pairs.",
            objects="an array of shape (n_clusters, n_features)",
            defaults={
                "PCKMeans": "neighborhoods", "COPKMeans": "k-means++", "KMeans": "k-means++",
            },
            choices={
                "COPKMeans": ("k-means++", "random", "neighborhoods"),
                "KMeans": ("k-means++", "random"),
            },
        ),
        Parameter(
            "fill", ("k-means++", "perturb", "random"), "k-means++",
            (*SOFT, "COPKMeans", *SEEDED),
            "Where the missing centroids of neighborhoods, or of classes without seeds, come "
            "from; perturb is the paper's.",
        ),
        Parameter(
            "inference", ("icm", "belief-propagation"), "icm", SOFT,
            "How an E-step labels rows with pairs: by moves alone, or after min-sum messages.",
        ),
        Parameter(
            "refine", SWITCH, "auto", METHODS,
            "First-variation moves: single rows move where J falls with the centroids "
            "re-optimised.",
        ),
        Parameter(
            "weight_update", ("normalized", "paper"), "normalized", ("HMRFKMeans",),
            "How weights of cosine and pearson are learned.",
        ),
        Parameter(
            "closure", FLAG, True, SOFT,
            "Whether pairs are closed: same and same is same, same and different is different; of "
            "pairs that cost by trust only those that are certain.",
        ),
        Parameter(
            "on_conflict", ("warn", "raise", "keep", "drop"), "warn", SOFT,
            "What to do with pairs that contradict each other: warn, and keep them without the "
            "closure of their documents; refuse them; keep them without a word; drop the "
            "cannot-links among them.",
        ),
        Parameter(
            "retries", Range(0, 255), 20, ("COPKMeans",),
            "How many more searches, each longer than the last, for labels that keep all pairs.",
        ),
        Parameter(  # starts run one after the other
            "n_init", Range(1, 1_000), 10, STARTED,
            "Number of unconstrained starts; of many rows most run a few iterations only.",
        ),
        Parameter(
            "max_iter", Range(1, 1_000_000), 100, METHODS,
            "Most iterations of each fit before refinement.",
        ),
        Parameter(
            "tol", RANGES["share"], 2e-5, METHODS,
            "A fit, and its refinement, ends where five iterations together lower J by less than "
            "this share of it; 0: only where nothing moves.",
        ),
        Parameter(
            "outliers", RANGES["outliers"], None, METHODS,
            "Which rows are marked as of no cluster after the fit, in outliers_ and as cluster -1 "
            "in files; auto: those farther from every centroid than most of their cluster; a share "
            "of all rows; None: none.",
            objects="or None", names=(AUTO,),
        ),
        Parameter(
            "trim_outliers", FLAG, False, METHODS,
            "Whether outliers are kept out of centroids: the fit ends with phases in which a row "
            "counts at most a limit in J.",
        ),
        Parameter(
            "random_state", Range(0, 2**64 - 1), None, METHODS, "The seed.",
            objects="a RandomState or None", in_files=0,
        ),
        Parameter(
            "verbose", (0, 1, False, True), 0, METHODS,
            "Whether to show how far a fit is: lines on stderr, in a notebook a bar.",
            python_alone=True,
        ),
    )
}  # fmt: skip


def taken_by(method: str) -> list[Parameter]:
    """Return the parameters of a class, in the order of its signature.

    Examples
    --------
    >>> [parameter.name for parameter in taken_by("KMeans")][:5]
    ['n_clusters', 'distortion', 'init', 'refine', 'n_init']
    """
    return [parameter for parameter in PARAMETERS.values() if method in parameter.methods]


def in_files_of(method: str) -> list[Parameter]:
    """Return the parameters of a class that job files and the command line have.

    Examples
    --------
    >>> [parameter.name for parameter in in_files_of("KMeans")][-2:]
    ['trim_outliers', 'random_state']
    """
    return [parameter for parameter in taken_by(method) if not parameter.python_alone]


def check_parameter(name: str, value: object, method: str = "") -> None:
    """Raise ConfigurationError unless a parameter, of this class, may have a value.

    Examples
    --------
    >>> check_parameter("max_iter", 0)
    Traceback (most recent call last):
    hmrf_dask.errors.ConfigurationError: max_iter must be an integer from 1 to 1000000, got 0
    """
    if problem := PARAMETERS[name].problem(value, method):
        raise ConfigurationError(f"{name} {problem}, got {shortened(value)}")
