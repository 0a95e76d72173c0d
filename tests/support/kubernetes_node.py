"""A Kubernetes of one process, on which deploy/kubernetes is tried where there is no cluster.

Of the node that would run pods the first container of each is started as a process of this machine,
with an address of its own on loopback, its ConfigMaps and Secrets as folders, and services have
names. There are no images, limits, probes or network policies. Dask's own operator is a process,
too.
"""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.support.kubernetes import JSON, NAMESPACE, RESOURCES, Objects, Server
from tests.support.names import named_hosts


class Node:
    """Starts and ends the processes of pods; those of deployments are not started again."""

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
            owner = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": name,
                "uid": content["metadata"]["uid"],
                "controller": True,
            }
            for number in range(content["spec"].get("replicas", 1)):
                template = copy.deepcopy(content["spec"]["template"])
                template["metadata"] |= {"name": f"{name}-{number}", "ownerReferences": [owner]}
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
            given = {key: one.replace(f"{mount}/", f"{folder}/") for key, one in given.items()}
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
        volumes = {one["name"]: one for one in pod["spec"].get("volumes", [])}
        folders, files = {}, []
        for mount in container.get("volumeMounts", []):
            if found := self._files(volumes[mount["name"]]):
                folder = folders[mount["mountPath"]] = self.folder / found[0]
                folder.mkdir(exist_ok=True)
                files += [(folder / name, text) for name, text in found[1].items()]
        for path, text in files:
            for place, folder in folders.items():
                text = text.replace(f" {place}/", f" {folder}/")
            if not path.exists() or path.read_text() != text:  # another pod may be reading it
                path.write_text(text)
        return folders

    def _files(self, volume: JSON) -> tuple[str, dict[str, str]] | None:
        """Return the name of a ConfigMap or a Secret that a volume is, and what is in it."""
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            return name, self.objects.get("configmaps", name)["data"]
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            return name, self.objects.get("secrets", name)["stringData"]
        return None

    def _set_status(self, name: str, status: JSON) -> None:
        pod = copy.deepcopy(self.objects.get("pods", name))
        self.objects.change("pods", name, pod | {"status": pod.get("status", {}) | status})

    async def watch(self) -> None:
        """Tell of processes that have ended."""
        while True:
            await asyncio.sleep(0.1)
            for name, process in self.processes.items():
                if name in self.codes or (code := _ended(process)) is None:
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
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process that has ended, and end what it started with it.

    Its group is looked for while nobody has waited for it: later the number may be another's.
    """
    if process.returncode is None:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


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
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.url = "http://{}:{}".format(*runner.addresses[0])
                self._started.set()
                await self.node.watch()
            finally:
                await runner.cleanup()

        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(main())
        self._loop.close()

    def start(self) -> None:
        """Serve, and wait until that has begun."""
        self._thread.start()
        assert self._started.wait(30)

    def close(self) -> None:
        """End all."""
        main = next(
            task for task in asyncio.all_tasks(self._loop) if "main" in repr(task.get_coro())
        )
        self._loop.call_soon_threadsafe(main.cancel)
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

    def code_of(self, pod: str, seconds: int) -> int:
        """Return the exit code of a pod, which may be there soon."""
        for _ in range(10 * seconds):
            if pod in self.node.codes:
                return self.node.codes[pod]
            time.sleep(0.1)
        raise AssertionError((self.folder / f"{pod}.log").read_text())


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
