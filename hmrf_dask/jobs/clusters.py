"""Clusters that a job may name: which classes, what it may tell them, how many workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    field_validator,
    model_validator,
)

from hmrf_dask.documents.yaml_files import Place
from hmrf_dask.errors import meant
from hmrf_dask.parameters import within
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
    has_tls: bool = True  # False: nothing makes it encrypt, as far as we know


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
        {"quiet": True},  # else it draws on stdout, where a run has its one line of JSON
        has_tls=False,
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
        has_tls=False,
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


class Section(BaseModel):
    """A part of the file: unknown names are mistakes, and nothing changes once it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Bounds(Section):
    """Between how many workers a cluster grows and shrinks with its work."""

    least: Annotated[int, Field(**within("workers"))]
    most: Annotated[int, Field(**within("workers"))]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least must be at most most, got {self.least} and {self.most}")
        return self


def _is_bounds(given: Any) -> str:
    return "bounds" if isinstance(given, dict | Bounds) else "number"


_Workers = Annotated[
    Annotated[int, Field(**within("workers")), Tag("number")] | Annotated[Bounds, Tag("bounds")],
    Discriminator(_is_bounds),
]


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
    workers: _Workers | None = Field(
        default=None,
        description="Workers the class starts; {least: 2, most: 20} lets it grow and shrink.",
    )
    wait_for: Annotated[int, Field(**within("workers"))] | None = Field(
        default=None,
        description="Workers that must be there before the work begins, and while it lasts: with "
        "fewer for wait_seconds the run ends with 75. The default: all that a class starts; of a "
        "scheduler that runs, one.",
    )
    wait_seconds: Annotated[float, Field(**within("seconds"))] = Field(
        default=600.0, description="How long workers are waited for."
    )
    insecure: StrictBool = Field(
        default=False,
        description="Allow a scheduler without TLS that other machines reach: whoever reaches it "
        "reads the documents and runs code. Each run says so.",
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
        if not (self.cluster_class or self.stays) and (self.insecure or self.wait_for):
            raise ValueError(
                "insecure and wait_for must go with address, scheduler_file or class, got none"
            )
        if self.wait_for and self.workers and self.wait_for > self.most_workers:
            raise ValueError(
                f"wait_for must be at most workers, got {self.wait_for} of {self.most_workers}"
            )
        if self.cluster_class and (problem := arguments_problem(self.cluster_class, self.kwargs)):
            raise ValueError(problem)
        return self

    @property
    def most_workers(self) -> int:
        """How many workers a class starts at most; 0 where the file does not say."""
        return self.workers.most if isinstance(self.workers, Bounds) else self.workers or 0

    @property
    def least_workers(self) -> int:
        """How many workers there must be."""
        started = self.workers.least if isinstance(self.workers, Bounds) else self.workers
        return self.wait_for or started or 1

    @property
    def stays(self) -> bool:
        """Whether the cluster is there when the client has gone."""
        return self.address is not None or self.scheduler_file is not None
