"""The job file: which documents, how they become rows, which method, where it runs, where to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    create_model,
    field_validator,
    model_validator,
)

from hmrf_dask.documents.yaml_files import NAME_PATTERN, Place
from hmrf_dask.errors import meant
from hmrf_dask.jobs.recipe import Recipe, Text
from hmrf_dask.parameters import (
    LIST_ITEMS,
    METHODS,
    PARAMETERS,
    RANGES,
    REQUIRED,
    Parameter,
    Range,
    problem_of_cost,
    taken_by,
    within,
)
from hmrf_dask.redaction import shortened
from hmrf_dask.storage.addresses import refuse_credentials, url_problem

# Job scripts, command lines and names in clouds are made of these texts: nothing that a shell, a
# scheduler's directives or a template would read as more than a text.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:~][A-Za-z0-9_./:,=+@-]{0,499}|")
_DEPTH: Final = 3
_MOST: Final = 1000  # values
_LARGEST: Final = 2**53  # bytes, the largest of what there is to count
LOOPBACK: Final = "127.0.0.1"


class ClusterClass(NamedTuple):
    """What a job file may say to a class."""

    # Names that may be given a number, a text, true or false, or a list of these, and those that
    # may be given a mapping, each with the keys it may have; none: any.
    arguments: frozenset[str]
    mappings: Mapping[str, frozenset[str]] = {}
    defaults: Mapping[str, Any] = {}  # what the class is given where the file does not say it
    of_scheduler: frozenset[str] = frozenset()  # what it takes within `scheduler_options`


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DASHBOARD = {"dashboard_address": f"{LOOPBACK}:0"}
_LISTENING = _names("host interface dashboard_address")


def _batch(own: str) -> ClusterClass:
    """Return what a batch system's cluster takes; its scheduler is reached by other machines."""
    return ClusterClass(
        _names(
            "n_workers name cores memory processes nanny death_timeout local_directory "
            "log_directory interface host dashboard_address silence_logs"
        )
        | _names(own),
        defaults=_DASHBOARD,
        of_scheduler=_names("host dashboard_address"),
    )


CLASSES: Final[Mapping[str, ClusterClass]] = {
    "coiled.Cluster": ClusterClass(
        _names(
            "name n_workers software container worker_cpu worker_memory worker_vm_types "
            "worker_disk_size worker_gpu worker_gpu_type scheduler_cpu scheduler_memory "
            "scheduler_vm_types scheduler_disk_size account workspace region arm idle_timeout "
            "spot_policy compute_purchase_option use_best_zone allow_cross_zone shutdown_on_close "
            "private_to_creator"
        ),
        {"tags": frozenset()},
        {"private_to_creator": True},
    ),
    "dask_cloudprovider.aws.EC2Cluster": ClusterClass(
        _names(
            "n_workers region availability_zone ami instance_type scheduler_instance_type "
            "worker_instance_type vpc subnet_id security_groups filesystem_size key_name "
            "docker_image auto_shutdown use_private_ip enable_detailed_monitoring spot"
        ),
        {"instance_tags": frozenset(), "volume_tags": frozenset()},
        {"use_private_ip": True},
    ),
    "dask_cloudprovider.aws.FargateCluster": ClusterClass(
        _names(
            "n_workers image cpu_architecture scheduler_cpu scheduler_mem scheduler_timeout "
            "worker_cpu worker_nthreads worker_mem worker_gpu fargate_spot cluster_arn "
            "cloudwatch_logs_group vpc subnets security_groups region_name platform_version "
            "fargate_use_private_ip"
        ),
        {"tags": frozenset()},
        {"fargate_use_private_ip": True},
    ),
    "dask_cloudprovider.azure.AzureVMCluster": ClusterClass(
        _names(
            "n_workers location resource_group vnet subnet security_group public_ingress vm_size "
            "scheduler_vm_size disk_size docker_image auto_shutdown subscription_id"
        ),
        defaults={"public_ingress": False},
    ),
    "dask_cloudprovider.gcp.GCPCluster": ClusterClass(
        _names(
            "n_workers projectid zone network network_projectid machine_type "
            "scheduler_machine_type worker_machine_type source_image docker_image ngpus gpu_type "
            "scheduler_ngpus scheduler_gpu_type worker_ngpus worker_gpu_type filesystem_size "
            "disk_type on_host_maintenance auto_shutdown preemptible"
        ),
        {"instance_labels": frozenset()},
    ),
    "dask_gateway.GatewayCluster": ClusterClass(
        _names(
            "worker_cores worker_memory worker_threads scheduler_cores scheduler_memory image "
            "profile shutdown_on_close"
        )
    ),
    "dask_jobqueue.HTCondorCluster": _batch("disk"),
    "dask_jobqueue.LSFCluster": _batch("queue project ncpus mem walltime lsf_units use_stdin"),
    "dask_jobqueue.OARCluster": _batch(
        "queue project resource_spec walltime memory_per_core_property_name"
    ),
    "dask_jobqueue.PBSCluster": _batch("queue project account resource_spec walltime"),
    "dask_jobqueue.SGECluster": _batch("queue project resource_spec walltime"),
    "dask_jobqueue.SLURMCluster": _batch("queue project account walltime job_cpu job_mem"),
    "dask_kubernetes.operator.KubeCluster": ClusterClass(
        _names(
            "name namespace image n_workers shutdown_on_close idle_timeout resource_timeout "
            "create_mode quiet"
        ),
        {"resources": _names("requests limits cpu memory ephemeral-storage nvidia.com/gpu")},
    ),
    "dask_yarn.YarnCluster": ClusterClass(
        _names(
            "n_workers worker_vcores worker_memory worker_restarts worker_gpus scheduler_vcores "
            "scheduler_memory scheduler_gpus deploy_mode name queue tags host dashboard_address"
        ),
        defaults=_DASHBOARD,
    ),
    "distributed.LocalCluster": ClusterClass(
        _names(
            "n_workers threads_per_worker processes memory_limit local_directory name "
            "scheduler_port silence_logs"
        )
        | _LISTENING,
        defaults={"host": LOOPBACK, **_DASHBOARD},
    ),
    "distributed.SSHCluster": ClusterClass(
        _names("hosts host interface dashboard_address"),
        {"worker_options": _names("nthreads n_workers memory_limit local_directory")},
        _DASHBOARD,
        _LISTENING,
    ),
}


def arguments_problem(name: str, given: Mapping[str, Any]) -> str:
    """Return what is wrong with `cluster.kwargs` for one of `CLASSES`; "" if nothing is.

    Examples
    --------
    >>> arguments_problem("coiled.Cluster", {"n_workers": 2})
    ''
    >>> arguments_problem("coiled.Cluster", {"n_workrs": 2}).partition(";")[0][-40:]
    "t 'n_workrs' (did you mean 'n_workers'?)"
    """
    refuse_credentials(given, "kwargs")
    known = CLASSES[name]
    allowed = sorted(known.arguments | known.mappings.keys())
    for argument, value in given.items():
        if argument not in allowed:
            return (
                f"kwargs of {name} must be among {', '.join(allowed)}, got {argument!r}"
                f"{meant(argument, allowed)}; what else it takes is said in Dask's configuration"
            )
        keys = known.mappings.get(argument)
        if problem := _value_problem(value, keys, _DEPTH):
            return f"kwargs.{argument} {problem}"
    return ""


def arguments_of(
    name: str, given: Mapping[str, Any], configured: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what one of `CLASSES` is made with: `cluster.kwargs`, loopback where they say nothing.

    `configured` are `scheduler_options` of Dask's configuration, which ours would replace.

    Examples
    --------
    >>> arguments_of("coiled.Cluster", {"n_workers": 2})["n_workers"]
    2
    """
    known = CLASSES[name]
    defaults = dict(known.defaults)
    if "interface" in given:
        defaults.pop("host", None)
    arguments = {**defaults, **given}
    if not known.of_scheduler:
        return arguments
    inside = {key: arguments.pop(key) for key in known.of_scheduler & arguments.keys()}
    said = {key: value for key, value in inside.items() if key in given}
    return {**arguments, "scheduler_options": {**inside, **(configured or {}), **said}}


def _value_problem(value: Any, keys: frozenset[str] | None, depth: int) -> str:
    """Return what is wrong with a value; `keys` are those of a mapping, where it may be one."""
    if isinstance(value, Mapping):
        if keys is None or depth == 0:
            return "must be no mapping, got one"
        if keys and (foreign := sorted(map(str, value.keys() - keys))):
            return f"must have no {foreign[0]!r}; known are {', '.join(sorted(keys))}"
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        inner = value
        if depth == 0:
            return "must be a list of plain values, got deeper ones"
    else:
        return _scalar_problem(value)
    if len(inner) > _MOST:
        return f"must have at most {_MOST} values, got {len(inner)}"
    return next((found for one in inner if (found := _value_problem(one, keys, depth - 1))), "")


def _scalar_problem(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        return "" if 0 <= value <= _LARGEST else "must be a number from 0 to 2**53"
    if not isinstance(value, str):
        return f"must be a number, a text, true or false, got a {type(value).__name__}"
    if problem := url_problem(value):
        return problem
    if not _PLAIN.fullmatch(value):
        return (
            "must be a text of letters, digits and _ . / : , = + @ - alone, that does not begin "
            "with a -, because it becomes part of a command; write 16GB, not 16 GB"
        )
    return ""


SCHEMA: Final = "hmrf-dask/job/v1"
MAX_REJECTED: Final = 0.05


def _checked_cost(given: float) -> float:
    if problem := problem_of_cost(given):
        raise ValueError(f"{problem}, got {given!r}")
    return given


class Section(BaseModel):
    """A part of the file: unknown names are mistakes, and nothing changes once it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Method(Section):
    """The method and its parameters; those left out are the method's own defaults."""

    name: str
    n_clusters: int | Literal["auto"]

    @model_validator(mode="after")
    def _only_its_own(self) -> Self:
        known = sorted(parameter.name for parameter in taken_by(self.name))
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
        **{name: _field_of(parameter) for name, parameter in PARAMETERS.items()},
    )


class Cluster(Section):
    """Where the work runs: one of five ways; without any, on all threads of this machine."""

    local: Annotated[int, Field(**within("threads"))] | None = Field(
        default=None, description="Threads of this process."
    )
    processes: Annotated[int, Field(**within("processes"))] | None = Field(
        default=None, description="Worker processes here."
    )
    address: str | None = Field(default=None, description="Of a scheduler: tcp://host:port.")
    scheduler_file: Place | None = Field(default=None, description="File with the address.")
    cluster_class: str | None = Field(
        default=None,
        alias="class",
        json_schema_extra={"enum": [*CLASSES]},
        description="A Dask cluster to start.",
    )
    kwargs: dict[str, Any] = Field(default={}, description="What the class is made with.")
    workers: Annotated[int, Field(**within("workers"))] | None = Field(
        default=None, description="Workers the class starts."
    )

    @field_validator("cluster_class")
    @classmethod
    def _listed(cls, given: str | None) -> str | None:
        if given is not None and given not in CLASSES:
            raise ValueError(
                f"must be one of {', '.join(CLASSES)}, got {shortened(given)}"
                + meant(given, CLASSES)
            )
        return given

    @field_validator("address")
    @classmethod
    def _plain(cls, given: str | None) -> str | None:
        if given is not None and (problem := url_problem(given)):
            raise ValueError(problem)
        return given

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = ("local", "processes", "address", "scheduler_file", "cluster_class")
        given = [one.replace("cluster_", "") for one in ways if getattr(self, one) is not None]
        if len(given) > 1:
            raise ValueError(f"must be one way to run, got {' and '.join(given)}; keep one")
        if self.cluster_class is None and (self.kwargs or self.workers):
            raise ValueError("kwargs and workers must go with a class, got none; name one")
        if self.cluster_class and (problem := arguments_problem(self.cluster_class, self.kwargs)):
            raise ValueError(problem)
        return self

    @property
    def stays(self) -> bool:
        """Whether the cluster is there when the client has gone."""
        return self.address is not None or self.scheduler_file is not None


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
