"""Every parameter of the method, said once: who takes it, its values, its default and its help.

Estimators check against this table; the method section of a job file with its schema, the options
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
from typing import Any, Final

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.limits import COST_MUST_BE, RANGES, Range, problem_of_cost
from hmrf_dask.redaction import shortened

Choices = tuple[bool | str, ...]

SOFT: Final = ("HMRFKMeans", "PCKMeans", "MPCKMeans")  # a pair may be broken, at its cost
SEEDED: Final = ("SeededKMeans", "ConstrainedKMeans")
STARTED: Final = (*SOFT, "COPKMeans", "KMeans")  # from centroids that nobody labelled
METHODS: Final = (*STARTED, *SEEDED)
SWITCH: Final[Choices] = ("auto", True, False)
FLAG: Final[Choices] = (True, False)
REQUIRED: Final = object()
AUTO: Final = "auto"


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
            "answers.",
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
