"""A Kubernetes of one process: an API server that keeps and checks objects, and one node.

It is what deploy/kubernetes is tried on where there is no cluster. Objects are created, patched,
watched and deleted as the API says (finalizers, owners, subresources of status); what a role does
not allow is refused; what the schemas of a release of Kubernetes do not know is, too. Of the node
that would run pods the first container of each is started as a process of this machine, with an
address of its own on loopback, its ConfigMaps as folders, and services have names (names.py). There
are no images, limits, probes or network policies.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonpatch
import yaml
from aiohttp import web

from tests.support.names import named_hosts

JSON = dict[str, Any]
Key = tuple[str, str]  # plural, name
NAMESPACE = "default"
RELEASE = "1.34"
DASK = "kubernetes.dask.org/v1"
# By plural: group and version, kind, whether the status is a resource of its own.
RESOURCES: Mapping[str, tuple[str, str, bool]] = {
    "pods": ("v1", "Pod", True),
    "services": ("v1", "Service", True),
    "configmaps": ("v1", "ConfigMap", False),
    "events": ("v1", "Event", False),
    "namespaces": ("v1", "Namespace", True),
    "serviceaccounts": ("v1", "ServiceAccount", False),
    "deployments": ("apps/v1", "Deployment", True),
    "cronjobs": ("batch/v1", "CronJob", True),
    "jobs": ("batch/v1", "Job", True),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy", False),
    "roles": ("rbac.authorization.k8s.io/v1", "Role", False),
    "rolebindings": ("rbac.authorization.k8s.io/v1", "RoleBinding", False),
    "customresourcedefinitions": ("apiextensions.k8s.io/v1", "CustomResourceDefinition", True),
    "daskclusters": (DASK, "DaskCluster", False),
    "daskworkergroups": (DASK, "DaskWorkerGroup", False),
    "daskautoscalers": (DASK, "DaskAutoscaler", False),
    "daskjobs": (DASK, "DaskJob", True),
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _validate(content: JSON) -> None:
    """Refuse an object that a server of this release would refuse; of Dask's own see the suite."""
    import kubernetes_validate

    if content.get("apiVersion") != DASK:
        try:
            kubernetes_validate.validate(content, RELEASE, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise RefusedError(422, error.message) from error


class Objects:
    """All objects of one namespace, and everything that happened to them."""

    def __init__(self) -> None:
        self.objects: dict[Key, JSON] = {}
        self.happened: list[tuple[str, str, JSON]] = []  # plural, what, the object then
        self.listeners: list[Any] = []  # called with plural, what, object
        self.create("namespaces", {"metadata": {"name": NAMESPACE}})

    def all(self, plural: str) -> list[JSON]:
        return [content for (kind, _), content in self.objects.items() if kind == plural]

    def get(self, plural: str, name: str) -> JSON:
        try:
            return self.objects[plural, name]
        except KeyError:
            raise RefusedError(404, f"{plural} {name!r} not found") from None

    def create(self, plural: str, content: JSON) -> JSON:
        version, kind, _ = RESOURCES[plural]
        content = copy.deepcopy(content) | {"apiVersion": version, "kind": kind}
        metadata = content["metadata"] = dict(content.get("metadata", {}))
        name = metadata.setdefault(
            "name", f"{metadata.pop('generateName', '')}{uuid.uuid4().hex[:5]}"
        )
        if (plural, name) in self.objects:
            raise RefusedError(409, f"{plural} {name!r} already exists")
        _validate(_without_nothing(content))
        metadata |= {
            "namespace": NAMESPACE,
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": _now(),
        }
        if plural == "services":
            content |= {"status": {"loadBalancer": {}}}
        return self._happens("ADDED", plural, content)

    def change(self, plural: str, name: str, content: JSON) -> JSON:
        """Put an object in the place of what there is; gone, where nothing held it any more."""
        before = self.get(plural, name)
        if content == before:
            return before
        if content.get("spec") != before.get("spec"):
            content["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
        metadata = content["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(plural, name)
            return content
        return self._happens("MODIFIED", plural, content)

    def delete(self, plural: str, name: str) -> JSON:
        content = copy.deepcopy(self.get(plural, name))
        if not content["metadata"].get("finalizers"):
            self._remove(plural, name)
            return content
        content["metadata"].setdefault("deletionTimestamp", _now())
        return self.change(plural, name, content)

    def _remove(self, plural: str, name: str) -> None:
        content = self.objects.pop((plural, name))
        self._happens("DELETED", plural, content)
        own = content["metadata"]["uid"]
        for (kind, child), candidate in list(self.objects.items()):
            owners = candidate["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == own for owner in owners) and (kind, child) in self.objects:
                self.delete(kind, child)

    def _happens(self, what: str, plural: str, content: JSON) -> JSON:
        content = copy.deepcopy(content)
        content["metadata"]["resourceVersion"] = str(len(self.happened) + 1)
        if what != "DELETED":
            self.objects[plural, content["metadata"]["name"]] = content
        self.happened.append((plural, what, content))
        for listener in self.listeners:
            listener(plural, what, content)
        return content


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_nothing(content: Any) -> Any:
    """Return an object without what is null, which a server drops."""
    if isinstance(content, dict):
        return {key: _without_nothing(one) for key, one in content.items() if one is not None}
    return [_without_nothing(one) for one in content] if isinstance(content, list) else content


def _merged(before: Any, patch: Any) -> Any:
    """Return what a merge patch makes of a value."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), change)
    return merged


def _chosen(content: JSON, labels: str, fields: str) -> bool:
    """Tell whether an object has all labels and fields of selectors, each as name=value."""
    for selector, values in ((labels, content["metadata"].get("labels", {})), (fields, content)):
        for term in filter(None, selector.split(",")):
            name, _, wanted = term.replace("==", "=").partition("=")
            value: Any = values
            for part in [name] if selector is labels else name.split("."):
                value = value.get(part, {}) if isinstance(value, dict) else {}
            if value != wanted:
                return False
    return True


class Server:
    """The API over HTTP; a token says who asks."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.refused: list[str] = []
        self.may: dict[str, list[JSON]] = {}  # rules of roles by token; without any: everything
        self.application = web.Application()
        self.application.router.add_route("*", "/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answered(request)
        except RefusedError as error:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
            status |= {"message": str(error), "code": error.status}
            return web.json_response(status, status=error.status)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        length = 2 if parts[0] == "api" else 3
        version, rest = "/".join(parts[1:length]), parts[length:]
        if not rest:
            return web.json_response(_discovered(parts[0], version))
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        plural, name, subresource = [*rest, "", ""][:3]
        if plural not in RESOURCES or RESOURCES[plural][0] != version:
            raise RefusedError(404, f"no resource {request.path}")
        self._check_right(request, plural, subresource, version.rpartition("/")[0])
        if request.method == "GET" and request.query.get("watch") == "true":
            return await self._watch(request, plural)
        if request.method == "GET" and not name:
            return web.json_response(self._list(request, plural, version))
        content = await request.json() if request.can_read_body else {}
        return web.json_response(
            self._done(request.method, plural, name, subresource, content, request.content_type)
        )

    def _done(
        self, method: str, plural: str, name: str, subresource: str, content: Any, form: str
    ) -> JSON:
        if method == "POST":
            return self.objects.create(plural, content)
        if method == "DELETE":
            return self.objects.delete(plural, name)
        before = self.objects.get(plural, name)
        if method == "GET":
            return before
        if form == "application/json-patch+json":
            try:
                after = jsonpatch.apply_patch(before, content)
            except jsonpatch.JsonPatchTestFailed as error:
                raise RefusedError(422, str(error)) from error
        else:
            after = _merged(before, content)
        if RESOURCES[plural][2]:  # each is changed by its own address alone
            own = before if subresource != "status" else after
            after = (after if subresource != "status" else before) | {"status": own.get("status")}
        return self.objects.change(plural, name, _without_nothing(copy.deepcopy(after)))

    def _check_right(self, request: web.Request, plural: str, subresource: str, group: str) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        rules = self.may.get(token)
        verb = {"POST": "create", "PUT": "update"}.get(request.method, request.method.lower())
        if verb == "get" and request.query.get("watch") == "true":
            verb = "watch"
        elif verb == "get" and plural == request.path.rpartition("/")[2]:
            verb = "list"
        wanted = f"{plural}/{subresource}" if subresource else plural
        if rules is not None and not any(
            group in rule["apiGroups"] and wanted in rule["resources"] and verb in rule["verbs"]
            for rule in rules
        ):
            self.refused.append(f"{verb} {wanted}")
            raise RefusedError(403, f"{token} cannot {verb} {wanted}")

    def _list(self, request: web.Request, plural: str, version: str) -> JSON:
        query = request.query
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        chosen = [one for one in self.objects.all(plural) if _chosen(one, labels, fields)]
        number = str(len(self.objects.happened))
        kind = f"{RESOURCES[plural][1]}List"
        metadata = {"resourceVersion": number}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "items": chosen}

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        async for what, content in self._events(request, plural):
            line = json.dumps({"type": what, "object": content})
            with suppress(ConnectionError):
                await response.write(f"{line}\n".encode())
        return response

    async def _events(self, request: web.Request, plural: str) -> AsyncIterator[tuple[str, JSON]]:
        number = int(request.query.get("resourceVersion") or 0)
        ends = time.monotonic() + float(request.query.get("timeoutSeconds", "60"))
        while time.monotonic() < ends and not _is_gone(request):
            for kind, what, content in self.objects.happened[number:]:
                if kind == plural:
                    yield what, content
            number = len(self.objects.happened)
            await asyncio.sleep(0.05)


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _discovered(base: str, version: str) -> JSON:
    """Return what a server says of itself, of its groups, or of a version of one."""
    if base == "version":
        return {"major": "1", "minor": "34", "gitVersion": f"v{RELEASE}.0"}
    if version:
        names = [name for name, (own, _, _) in RESOURCES.items() if own == version]
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [one for name in names for one in _resource(name)],
        }
    if base == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = sorted({own.split("/")[0] for own, _, _ in RESOURCES.values() if "/" in own})
    one = [{"groupVersion": f"{name}/v1", "version": "v1"} for name in groups]
    named = [
        {"name": n, "versions": [v], "preferredVersion": v}
        for n, v in zip(groups, one, strict=True)
    ]
    return {"kind": "APIGroupList", "groups": named}


def _resource(plural: str) -> list[JSON]:
    _, kind, has_status = RESOURCES[plural]
    everywhere = plural in ("namespaces", "customresourcedefinitions")
    one = {"kind": kind, "singularName": kind.lower(), "namespaced": not everywhere, "verbs": VERBS}
    names = [plural, f"{plural}/status"] if has_status else [plural]
    return [{"name": name, **one} for name in names]


# ---- the node, and what makes pods of deployments


class Node:
    """Starts and ends the processes of pods; it makes one pod of each deployment."""

    def __init__(self, objects: Objects, folder: Path, environment: Mapping[str, str]) -> None:
        self.objects = objects
        self.folder = folder
        self.environment = dict(environment)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.codes: dict[str, int] = {}
        self._hosts = named_hosts(folder, {})
        objects.listeners.append(self._notice)

    @property
    def cluster_environment(self) -> dict[str, str]:
        """What a process needs to live in the cluster: programs, the package, names."""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            **self.environment,
            **self._hosts,
            "PATH": programs,
        }

    def _notice(self, plural: str, what: str, content: JSON) -> None:
        name = content["metadata"]["name"]
        if plural == "deployments" and what == "ADDED":
            template = copy.deepcopy(content["spec"]["template"])
            owner = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": name,
                "controller": True,
            }
            template["metadata"] |= {
                "name": f"{name}-0",
                "ownerReferences": [owner | {"uid": content["metadata"]["uid"]}],
            }
            self.objects.create("pods", template)
        elif plural == "pods" and what == "ADDED":
            self._start(content)
        elif plural == "pods" and (what == "DELETED" or "deletionTimestamp" in content["metadata"]):
            process = self.processes.get(name)
            if process is not None:
                process.terminate()

    def _start(self, pod: JSON) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        address = f"127.77.{os.getpid() % 250}.{len(self.commands) + 1}"
        given = {one["name"]: one.get("value", "") for one in container.get("env") or []}
        words = [*container.get("command", []), *container.get("args", [])]
        for variable, value in given.items():
            words = [word.replace(f"$({variable})", value) for word in words]
        for mount, folder in self._folders(pod, container).items():
            words = [word.replace(f"{mount}/", f"{folder}/") for word in words]
        if words[0] == "dask":  # which listens on all addresses of its pod
            words += ["--host", address]
        if "-scheduler-" in name:
            (self.folder / "names" / name.removesuffix("-0")).write_text(address)
        self.commands[name] = words
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.cluster_environment | given,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._set_status(name, {"phase": "Running", "podIP": address, "conditions": _READY})

    def _folders(self, pod: JSON, container: JSON) -> dict[str, Path]:
        """Return the folders of this machine that stand for what a container mounts."""
        maps = {
            v["name"]: v["configMap"]["name"]
            for v in pod["spec"].get("volumes", [])
            if "configMap" in v
        }
        folders = {}
        for mount in container.get("volumeMounts", []):
            if mount["name"] in maps:
                folder = folders[mount["mountPath"]] = self.folder / maps[mount["name"]]
                folder.mkdir(exist_ok=True)
                for file, text in self.objects.get("configmaps", folder.name)["data"].items():
                    (folder / file).write_text(text)
        return folders

    def _set_status(self, name: str, status: JSON) -> None:
        pod = copy.deepcopy(self.objects.get("pods", name))
        self.objects.change("pods", name, pod | {"status": pod.get("status", {}) | status})

    async def watch(self) -> None:
        """Tell of processes that have ended."""
        while True:
            await asyncio.sleep(0.1)
            for name, process in self.processes.items():
                code = process.poll()
                if code is None or name in self.codes:
                    continue
                self.codes[name] = code if code >= 0 else 128 - code
                if ("pods", name) in self.objects.objects:
                    phase = "Failed" if code else "Succeeded"
                    state = {"terminated": {"exitCode": self.codes[name]}}
                    statuses = [{"name": "run", "state": state}]
                    self._set_status(name, {"phase": phase, "containerStatuses": statuses})

    def close(self) -> None:
        """End what runs."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_READY = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]


class Kubernetes:
    """The server, the node, and Dask's operator as a process, on a thread of their own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.objects = Objects()
        self.server = Server(self.objects)
        self.node = Node(self.objects, folder, environment)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = ""

    def _serve(self) -> None:
        async def main() -> None:
            runner = web.AppRunner(self.server.application, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = "http://{}:{}".format(*runner.addresses[0])
            self._started.set()
            await self.node.watch()

        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(main())

    def start(self) -> None:
        """Serve, and wait until that has begun."""
        self._thread.start()
        assert self._started.wait(30)

    def close(self) -> None:
        """End all."""
        self._loop.call_soon_threadsafe(
            lambda: [task.cancel() for task in asyncio.all_tasks(self._loop)]
        )
        self._thread.join(10)
        self.node.close()

    def call(self, function: Any, *given: Any) -> Any:
        """Return what a function of objects returns, called where they are."""

        async def called() -> Any:
            return function(*given)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    def access(self, token: str) -> Path:
        """Return a file by which commands reach the server, as whom a token names."""
        path = self.folder / f"{token}.yaml"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": token,
            "contexts": [
                {"name": token, "context": {"cluster": "it", "user": token, "namespace": NAMESPACE}}
            ],
            "clusters": [{"name": "it", "cluster": {"server": self.url}}],
            "users": [{"name": token, "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def names(self, plural: str) -> list[str]:
        """Return the names of all objects of a kind."""
        return [one["metadata"]["name"] for one in self.call(self.objects.all, plural)]

    def apply(self, manifests: Sequence[JSON]) -> None:
        """Create objects."""
        plurals = {kind: plural for plural, (_, kind, _) in RESOURCES.items()}
        for content in manifests:
            self.call(self.objects.create, plurals[content["kind"]], content)

    def start_pod(self, name: str, template: JSON) -> subprocess.Popen[bytes]:
        """Start a pod; return its process."""
        pod = template | {"metadata": template.get("metadata", {}) | {"name": name}}
        self.call(self.objects.create, "pods", pod)
        return self.node.processes[name]

    def code_of(self, pod: str, seconds: float) -> int:
        """Return the exit code of a pod, which may be there soon."""
        deadline = time.monotonic() + seconds
        while pod not in self.node.codes:
            assert time.monotonic() < deadline, (self.folder / f"{pod}.log").read_text()
            time.sleep(0.1)
        return self.node.codes[pod]


@contextmanager
def kubernetes(folder: Path, environment: Mapping[str, str]) -> Iterator[Kubernetes]:
    """Give a cluster with Dask's own operator."""
    folder.mkdir()
    cluster = Kubernetes(folder, environment)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def dask_operator(cluster: Kubernetes) -> Iterator[None]:
    """Run Dask's own operator."""
    program = shutil.which("kopf", path=cluster.node.cluster_environment["PATH"])
    assert program is not None
    with (cluster.folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                "run",
                "-m",
                "dask_kubernetes.operator.controller",
                "--namespace",
                NAMESPACE,
                "--standalone",
            ],
            env=cluster.node.cluster_environment | {"KUBECONFIG": str(cluster.access("operator"))},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


# ---- what a Job does with the exit codes of its pods


def verdict(policy: JSON, code: int, *, drained: bool = False) -> str:
    """Return what a `podFailurePolicy` makes of a pod that failed: its first rule that fits."""
    for rule in policy["rules"]:
        codes = rule.get("onExitCodes")
        if codes is not None:
            fits = (code in codes["values"]) == (codes["operator"] == "In")
        else:
            fits = drained and any(
                condition["type"] == "DisruptionTarget"
                and condition.get("status", "True") == "True"
                for condition in rule["onPodConditions"]
            )
        if fits:
            return str(rule["action"])
    return "Count"
