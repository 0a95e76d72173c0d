"""The job file: which documents, how they become rows, which method, where it runs, where to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, Union

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    create_model,
    field_validator,
    model_validator,
)

from hmrf_dask.databases.publication import MOST_BYTES
from hmrf_dask.documents.yaml_files import NAME_PATTERN, Place, Variable
from hmrf_dask.errors import meant
from hmrf_dask.jobs.clusters import Cluster, Section
from hmrf_dask.parameters import (
    LIST_ITEMS,
    METHODS,
    NOTHING_TO_TRIM,
    PARAMETERS,
    PATH_CHARACTERS,
    RANGES,
    REQUIRED,
    Parameter,
    Range,
    in_files_of,
    problem_of_cost,
    within,
)
from hmrf_dask.redaction import shortened
from hmrf_dask.text.counts import TextSettings

SCHEMA: Final = "hmrf-dask/job/v1"
MAX_REJECTED: Final = 0.05
_REFIT = r"^(never|always|drift>[0-9]{1,3}(\.[0-9]{1,9})?%)$"


# ---- what rows are made of: words, embeddings, or both side by side


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


# ---- the method


def _checked_cost(given: float) -> float:
    if problem := problem_of_cost(given):
        raise ValueError(f"{problem}, got {given!r}")
    return given


class _Method(Section):
    """The method and its parameters; those left out are the method's own defaults."""

    name: str
    n_clusters: int | Literal["auto"]

    @model_validator(mode="after")
    def _only_its_own(self) -> Self:
        known = sorted(parameter.name for parameter in in_files_of(self.name))
        if foreign := sorted(self.parameters.keys() - known):
            known.remove("n_clusters")
            raise ValueError(
                f"{self.name} must have no {', '.join(foreign)}; it has {', '.join(known)}"
            )
        for name, value in self.parameters.items():
            choices = PARAMETERS[name].choices_of(self.name)
            if choices and value not in choices:
                raise ValueError(
                    f"{name} of {self.name} must be one of {', '.join(map(str, choices))}, "
                    f"got {value}"
                )
        if self.value_of("trim_outliers") and self.value_of("outliers") is None:
            raise ValueError(NOTHING_TO_TRIM)
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """What the method's class is made with."""
        return self.model_dump(exclude={"name"}, exclude_none=True)

    def value_of(self, name: str) -> Any:
        """Return a parameter, which is the default where it was left out."""
        default = PARAMETERS[name].default_of(self.name)
        return self.parameters.get(name, default)


def _field_of(parameter: Parameter) -> tuple[Any, Any]:
    """Return the type and the default that a parameter has in a job file."""
    kind: Any
    if parameter.is_cost:
        kind = Annotated[float, Field(**RANGES["cost"].as_field()), AfterValidator(_checked_cost)]
    elif isinstance(parameter.values, Range):
        number = int if parameter.values.whole else float
        kind = Annotated[number, Field(**parameter.values.as_field())]
        if parameter.names:
            kind |= Literal.__getitem__(parameter.names)
    else:
        names = tuple(value for value in parameter.values if isinstance(value, str))
        kinds = [StrictBool] if True in parameter.values else []
        kind = Union[*kinds, Literal.__getitem__(names)] if names else StrictBool
    if parameter.in_files is REQUIRED:
        return kind, Field(description=parameter.help)
    if parameter.in_files is not None:
        return kind, Field(default=parameter.in_files, description=parameter.help)
    return kind | None, Field(default=None, description=parameter.help)


if TYPE_CHECKING:
    Method = _Method
else:
    Method = create_model(
        "Method",
        __base__=_Method,
        __module__=__name__,
        __doc__=_Method.__doc__,
        name=(
            Literal.__getitem__(METHODS),
            Field(
                default="HMRFKMeans",
                description="SeededKMeans and ConstrainedKMeans take their seeds from the "
                "answers: documents that belong together.",
            ),
        ),
        **{
            name: _field_of(parameter)
            for name, parameter in PARAMETERS.items()
            if not parameter.python_alone
        },
    )


def _is_list(given: Any) -> str:
    return "several" if isinstance(given, list | tuple) else "one"


# By form alone: what is wrong with one of them is not said of the other, too.
_Kinds = Annotated[
    Annotated[Text, Tag("one")] | Annotated[tuple[Text, ...], Tag("several")],
    Discriminator(_is_list),
]


class Names(Section):
    """Who names clusters that nobody named."""

    namer: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        max_length=200,
        description="module:callable, given words and texts, that returns a name; the environment "
        "variable HMRF_DASK_NAMERS must list it.",
    )


class SqlTarget(Section):
    """Tables of a database that show the last release."""

    table: str = Field(
        max_length=200,
        description="Name of the view that shows the assignments, or SCHEMA.NAME; with _clusters, "
        "_releases and _changes at its end there are more. What is there of others is refused.",
    )
    url_env: Variable = Field(
        description="The environment variable with the address of the database: "
        "postgresql://… or sqlite:///…. A password is in that variable or in .pgpass.",
    )
    id_type: Literal["text", "bigint", "uuid", "numeric"] = Field(
        default="text", description="Of the column doc_id; ids must then be such."
    )
    journal: StrictBool = Field(
        default=False,
        description="Whether the answers of the output's journal are published too, in …_journal.",
    )
    wait: Annotated[float, Field(**within("seconds"))] = Field(
        default=300.0,
        description="Seconds to wait for readers and writers that lock the tables; then 75.",
    )

    @field_validator("table")
    @classmethod
    def _has_a_name(cls, given: str) -> str:
        schema, dot, name = given.rpartition(".")
        if not name or (dot and not schema) or "." in schema or "\0" in given:
            raise ValueError(
                f"must be a name, or a schema, a dot and a name, got {shortened(given)}"
            )
        if max(len(name.encode()), len(schema.encode()) - 18) > MOST_BYTES:
            raise ValueError(
                f"must have a name of at most {MOST_BYTES} bytes, as more is put after it, got "
                f"{shortened(name)}"
            )
        return given


class Publish(Section):
    """Where else a release is to be seen."""

    sql: SqlTarget = Field(description="In a database: PostgreSQL or SQLite.")


class Job(Section):
    """What `hmrf-dask run` does.

    Paths are relative to the file. `answers` are pair files beyond those of the manifest.
    """

    schema_: Literal["hmrf-dask/job/v1"] = Field(
        default=SCHEMA, alias="$schema", description="What this file is."
    )
    name: str = Field(
        default="job",
        pattern=NAME_PATTERN,
        max_length=100,
        description="Lower-case letters, digits, '.', '_', '-'. An output belongs to one name.",
    )
    manifest: Place = Field(description="Where the documents are, and answers: a path or URL.")
    answers: tuple[Place, ...] = Field(
        default=(), max_length=LIST_ITEMS, description="More files of answers."
    )
    annotators: dict[str, Annotated[float, Field(**within("share"))]] = Field(
        default={},
        max_length=LIST_ITEMS,
        description="How likely answers of each annotator are right, by the name in the answers' "
        "column annotator; an answer's own trust goes before.",
    )
    text: _Kinds | None = Field(
        default=None,
        description="How texts become rows; a list of two, words and embeddings, for both side by "
        "side.",
    )
    method: Method
    mode: Literal["fit", "predict"] = Field(
        default="fit", description="predict: only give new documents clusters of the last model."
    )
    start: Literal["warm", "cold"] = Field(
        default="warm",
        description="warm: a later fit begins with the last centroids, or a start of new answers.",
    )
    on_bad_record: Literal["stop", "quarantine"] = Field(
        default="stop",
        description="quarantine: bad records and answers are left out, listed in rejects/, and a "
        "warning; stop: they end the run with 65.",
    )
    max_rejected: Annotated[float, Field(**within("share"))] = Field(
        default=MAX_REJECTED,
        description="The largest share of records, and of answers, that quarantine leaves out: a "
        "run that would reject more of either, or all, ends with 65.",
    )
    cluster: Cluster = Cluster()
    output: Place = Field(
        description="A folder or URL. Its store is reached as the environment says: AWS_PROFILE, "
        "AWS_ENDPOINT_URL_S3 and the like.",
    )
    keep: Annotated[int, Field(**within("keep"))] = Field(
        default=3, description="How many releases stay readable."
    )
    names: Names | None = Field(
        default=None, description="Names for clusters that nobody named, made once for their words."
    )
    publish: Publish | None = Field(
        default=None, description="Where readers see each release, next to the output."
    )
    questions: Annotated[int, Field(**within("batch"))] = Field(
        default=0,
        description="How many questions to a person each fit ends with, in questions.parquet: 25 "
        "are a good evening.",
    )
    private: StrictBool = Field(
        default=False,
        description="Whether all files of a local output are 0600 and its folders 0700, those "
        "that are there too; without it the umask says. Of no effect in an object store.",
    )

    @property
    def kinds(self) -> tuple[Text, ...]:
        """The kinds of rows that are named."""
        if self.text is None:
            return ()
        return (self.text,) if isinstance(self.text, Text) else self.text

    @property
    def recipe(self) -> Recipe:
        """What rows are made of; words where nothing is named."""
        return Recipe.of(self.kinds)

    @field_validator("text")
    @classmethod
    def _one_of_each(cls, given: Any) -> Any:
        if isinstance(given, tuple):
            kinds = [one.kind for one in given]
            if len(given) != 2 or kinds.count("embeddings") != 1:
                raise ValueError(
                    "must be one kind of rows, or a list of words (or characters, or hashing) and "
                    f"embeddings, got {shortened(kinds)}; keep one of each"
                )
        return given

    @model_validator(mode="after")
    def _mixable(self) -> Self:
        distortion = self.method.value_of("distortion") if len(self.kinds) > 1 else "cosine"
        if distortion not in ("cosine", "euclidean"):
            raise ValueError(
                "rows of several kinds must go with method.distortion cosine or euclidean, got "
                f"{distortion}; give one kind in text"
            )
        return self

    @property
    def quarantines(self) -> bool:
        """Whether bad records and answers are left out."""
        return self.on_bad_record == "quarantine"

    @field_validator("output", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        if isinstance(given, dict):
            raise ValueError(
                "must be a folder or URL and nothing else, got a mapping; how its store is "
                "reached is said by the environment (AWS_PROFILE, AWS_ENDPOINT_URL_S3 and the like)"
            )
        return given

    @field_validator("cluster", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {} if given == "local" else given

    @field_validator("answers", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema that is published as data_manifests/schema/job-v1.json.

    Examples
    --------
    >>> json_schema()["$id"]
    'hmrf-dask/job/v1'
    """
    schema = Job.model_json_schema(by_alias=True)
    properties = schema["properties"]
    properties["cluster"] = {"anyOf": [{"const": "local"}, properties["cluster"]]}
    properties["answers"] = {"anyOf": [{"type": "string"}, properties["answers"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}
