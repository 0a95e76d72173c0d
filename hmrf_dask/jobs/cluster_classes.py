"""The Dask clusters that a job file may start, and what it may say to each.

A job file may come from somebody else. It says how large a cluster is and where; what runs code
(preloads, scripts, commands, images' options, environment variables, classes), carries a secret or
opens more than the work needs stays with Dask's own configuration of the one who runs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hmrf_dask.addresses import refuse_credentials, url_problem
from hmrf_dask.errors import meant

# Job scripts, command lines and names in clouds are made of these texts: nothing that a shell, a
# scheduler's directives or a template would read as more than a text.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:~][A-Za-z0-9_./:,=+@-]{0,499}|")
_DEPTH: Final = 3
_MOST: Final = 1000  # values
_LARGEST: Final = 2**53  # bytes, the largest of what there is to count
LOOPBACK: Final = "127.0.0.1"


class ClusterClass(NamedTuple):
    """What a job file may say to a class.

    Attributes
    ----------
    arguments : frozenset
        Names that may be given a number, a text, true or false, or a list of these.
    mappings : dict
        Names that may be given a mapping, each with the keys it may have; none: any.
    beside : dict
        What the class is given where the file does not say it.
    of_scheduler : frozenset
        Names that the class takes within `scheduler_options`.
    """

    arguments: frozenset[str]
    mappings: Mapping[str, frozenset[str]] = {}
    beside: Mapping[str, Any] = {}
    of_scheduler: frozenset[str] = frozenset()


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
        beside=_DASHBOARD,
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
        beside={"public_ingress": False},
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
        beside=_DASHBOARD,
    ),
    "distributed.LocalCluster": ClusterClass(
        _names(
            "n_workers threads_per_worker processes memory_limit local_directory name "
            "scheduler_port silence_logs"
        )
        | _LISTENING,
        beside={"host": LOOPBACK, **_DASHBOARD},
    ),
    "distributed.SSHCluster": ClusterClass(
        _names("hosts host interface dashboard_address"),
        {"worker_options": _names("nthreads n_workers memory_limit local_directory")},
        _DASHBOARD,
        _LISTENING,
    ),
}


def arguments_problem(name: str, given: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments of a class; "" if nothing is.

    Parameters
    ----------
    name : str
        One of `CLASSES`.
    given : mapping
        `cluster.kwargs` of a job file.
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
    """Return what a class is made with: what the file says, loopback where it does not.

    Parameters
    ----------
    name : str
        One of `CLASSES`.
    given : mapping
        `cluster.kwargs` of a job file.
    configured : mapping, optional
        `scheduler_options` of Dask's configuration, which ours would replace.
    """
    known = CLASSES[name]
    beside = dict(known.beside)
    if "interface" in given:
        beside.pop("host", None)
    found = {**beside, **given}
    if not known.of_scheduler:
        return found
    inside = {key: found.pop(key) for key in known.of_scheduler & found.keys()}
    said = {key: value for key, value in inside.items() if key in given}
    return {**found, "scheduler_options": {**inside, **(configured or {}), **said}}


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
