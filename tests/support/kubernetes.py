"""An API server of Kubernetes that keeps and checks objects, in this process.

Objects are created, patched, watched and deleted as the API says (finalizers, owners, subresources
of status); what a role does not allow is refused; what the schemas of a release of Kubernetes do
not know is, too. What runs pods is in kubernetes_node.py.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import jsonpatch
from aiohttp import web

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
    "secrets": ("v1", "Secret", False),
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
            new = self.objects.happened[number:]
            number += len(new)  # more may happen while these are sent
            for kind, what, content in new:
                if kind == plural:
                    yield what, content
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
