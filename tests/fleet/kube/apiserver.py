"""kmock's Kubernetes API, with what the real one does and the autoscaler relies on.

That is: RBAC, resource versions and uids, the scale subresource, label selectors, replacing by PUT,
generated names, and the ReplicaSet controller, which deletes pods when fewer are asked for.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from aiohttp.web import Response, StreamResponse, json_response
from kmock import KubernetesEmulator, KubernetesError, Request, ResourceInfo, Server

from tests.fleet.kube.rbac import documented_rules

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

READ_WRITE = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch"}

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class ApiServer(KubernetesEmulator):
    """Set up its objects, let a client call it, look at its objects and requests."""

    def __init__(self) -> None:
        super().__init__()
        self.resources.load_bundled()
        self.address = ""
        self.resources["keda.sh/v1alpha1/scaledobjects"] = ResourceInfo(kind="ScaledObject")
        self.rules = documented_rules()
        """What RBAC allows; all that is documented, until a test says otherwise."""
        self.interfere: Callable[[Request], None] = lambda request: None
        """Called before each request is looked at; may change objects, or raise."""
        self.slow: Callable[[Request], float] = lambda request: 0.0
        """Seconds to wait before a request is looked at."""
        self.answers: dict[str, str] = {}
        """What a proxy answers in its place, by a part of the path."""
        self.deletes_pods = True
        """Whether the ReplicaSet controller is at work."""
        self._versions = count(1)

    # -- for tests --

    def workload(self, name: str = "chat", replicas: int = 3, kind: str = "Deployment") -> None:
        plural = f"{kind.lower()}s"
        self._store(
            f"apps/v1/{plural}",
            {
                "metadata": {"name": name, "namespace": "llm", "uid": f"uid-of-{name}"},
                "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}},
            },
        )

    def pod(
        self,
        name: str,
        *,
        app: str = "chat",
        ready_after: float | None = 60.0,
        args: tuple[str, ...] = ("--shutdown-timeout", "60"),
        grace: int = 120,
        **metadata: Any,
    ) -> None:
        """A pod of the workload; ready so many seconds after its creation, or not."""
        ready = ready_after is not None
        since = NOW + timedelta(seconds=ready_after or 0)
        self._store(
            "v1/pods",
            {
                "metadata": {
                    "name": name,
                    "namespace": "llm",
                    "labels": {"app": app},
                    "creationTimestamp": NOW.isoformat(),
                    **metadata,
                },
                "spec": {
                    "terminationGracePeriodSeconds": grace,
                    "containers": [
                        {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": list(args)}
                    ],
                },
                "status": {
                    "phase": "Running" if ready else "Pending",
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": str(ready),
                            "lastTransitionTime": since.isoformat(),
                        }
                    ],
                },
            },
        )

    def add(self, resource: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> None:
        """Any other object of the namespace."""
        head = {"name": name, "namespace": "llm", **metadata}
        self._store(resource, {"metadata": head, "spec": dict(spec)})

    def change(self, resource: str, name: str, changes: Mapping[str, Any]) -> None:
        """As another client would: with a new version."""
        key = (resource, "llm", name)
        self.objects[key].patch({**changes})
        self.objects[key].patch({"metadata": {"resourceVersion": str(next(self._versions))}})

    def stored(self, resource: str, name: str) -> dict[str, Any]:
        return copy.deepcopy(self.objects[resource, "llm", name].raw)

    def all(self, resource: str) -> list[dict[str, Any]]:
        group, _, rest = resource.rpartition("/")
        return [
            copy.deepcopy(stored.raw)
            for (kind, _, _), stored in self.objects.items()
            if f"{kind.group or ''}/{kind.version}/{kind.plural}".lstrip("/") == f"{group}/{rest}"
        ]

    def replicas(self, name: str = "chat", resource: str = "apps/v1/deployments") -> int:
        return int(self.stored(resource, name)["spec"]["replicas"])

    def calls(self, method: str, part: str) -> list[Request]:
        """The requests with this method whose path has this part."""
        return [r for r in self._requests if r.method.value == method and part in r.url.path]

    # -- what the real one does --

    async def _handle(self, request: Request) -> StreamResponse:
        if request.resource is None or request.resource.plural is None:
            return await super()._handle(request)
        if seconds := self.slow(request):
            await asyncio.sleep(seconds)
        for part, answer in self.answers.items():
            if part in request.url.path:
                return Response(text=answer, content_type="application/json")
        self.interfere(request)
        self._authorize(request)
        async with self._lock:
            status = 201 if request.method.value == "POST" else 200
            return json_response(self._answer(request), status=status)

    def _answer(self, request: Request) -> dict[str, Any]:
        if request.subresource == "scale":
            return self._scale(request)
        match request.method.value, request.name:
            case "GET", None:
                return self._list(request)
            case "GET", _:
                return self._found(request)
            case "POST", None:
                return self._create(request)
            case _:
                return self._write(request)

    def _authorize(self, request: Request) -> None:
        resource = request.resource
        assert resource is not None
        plural = "/".join(filter(None, (resource.plural, request.subresource)))
        verb = READ_WRITE[request.method.value]
        if verb == "get" and request.name is None:
            verb = "list"
        for rule in self.rules:
            wanted = ((resource.group, "apiGroups"), (plural, "resources"), (verb, "verbs"))
            if all(value in rule[key] for value, key in wanted) and (
                "resourceNames" not in rule or request.name in rule["resourceNames"]
            ):
                return
        raise KubernetesError(
            status=403,
            reason="Forbidden",
            message=f'{plural} is forbidden: User "system:serviceaccount:llm:autoscaler" cannot '
            f'{verb} resource "{plural}" in API group "{resource.group}" in the namespace "llm"',
        )

    def _scale(self, request: Request) -> dict[str, Any]:
        workload = self._found(request)
        if request.method.value == "PATCH":
            before = workload["spec"].get("replicas", 0)
            spec = {"replicas": request.data["spec"]["replicas"]}
            workload = self._patched(request, {**request.data, "spec": spec})
            if self.deletes_pods:
                self._delete_pods(workload, before - spec["replicas"])
        metadata, replicas = workload["metadata"], workload["spec"].get("replicas", 0)
        kept = ("name", "namespace", "uid", "resourceVersion")
        labels = workload["spec"]["selector"]["matchLabels"]
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {key: metadata[key] for key in kept},
            # The real one leaves out a 0, too.
            "spec": {"replicas": replicas} if replicas else {},
            "status": {
                "replicas": replicas,
                "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
            },
        }

    def _delete_pods(self, workload: Mapping[str, Any], number: int) -> None:
        """As the ReplicaSet controller: first what is not ready, then the lowest cost."""

        def rank(pod: dict[str, Any]) -> tuple[bool, int]:
            ready = pod["status"]["conditions"][0]["status"] == "True"
            return ready, int(pod["metadata"].get("annotations", {}).get(DELETION_COST, "0"))

        labels = workload["spec"]["selector"]["matchLabels"].items()
        pods = [
            pod
            for pod in self.all("v1/pods")
            if labels <= pod["metadata"]["labels"].items()
            and "deletionTimestamp" not in pod["metadata"]
        ]
        for pod in sorted(pods, key=rank)[: max(0, number)]:
            gone = {"metadata": {"deletionTimestamp": NOW.isoformat()}}
            self.change("v1/pods", pod["metadata"]["name"], gone)

    def _list(self, request: Request) -> dict[str, Any]:
        resource = request.resource
        if resource not in self.resources:
            raise KubernetesError(
                status=404,
                reason="NotFound",
                message="the server could not find the requested resource",
            )
        wanted = dict(
            part.split("=") for part in request.params.get("labelSelector", "").split(",") if part
        )
        found = [
            stored.raw
            for (kind, namespace, _), stored in self.objects.items()
            if kind == resource
            and namespace == request.namespace
            and wanted.items() <= stored.raw["metadata"].get("labels", {}).items()
        ]
        # In pages, as the real one, so that a client which takes the first for all is found out.
        begin = int(request.params.get("continue", 0))
        size = min(int(request.params.get("limit", 1000)), 2)
        end = begin + size
        more = {"continue": str(end)} if "limit" in request.params and end < len(found) else {}
        items = found[begin:end] if "limit" in request.params else found
        return {"metadata": more, "items": items}

    def _create(self, request: Request) -> dict[str, Any]:
        created = copy.deepcopy(request.data)
        metadata = created["metadata"]
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{next(self._versions):05}"
        metadata["namespace"] = request.namespace
        resource = request.resource
        assert resource is not None
        key = (resource, request.namespace, metadata["name"])
        if key in self.objects:
            raise _conflict(f"{resource.plural} {metadata['name']!r} already exists")
        self.objects[key] = self._stamped(created)
        return self.objects[key].raw

    def _found(self, request: Request) -> dict[str, Any]:
        resource = request.resource
        assert resource is not None and request.name is not None
        key = (resource, request.namespace, request.name)
        if key not in self.objects:
            raise KubernetesError(
                status=404,
                reason="NotFound",
                message=f'{resource.plural} "{request.name}" not found',
            )
        return copy.deepcopy(self.objects[key].raw)

    def _write(self, request: Request) -> dict[str, Any]:
        if request.method.value == "PATCH":
            return self._patched(request, request.data)
        before = self._found(request)
        self._check_preconditions(before, request.data)
        metadata = {**before["metadata"], **request.data["metadata"]}
        after = {**request.data, "metadata": {**metadata, "resourceVersion": None}}
        resource = request.resource
        assert resource is not None and request.name is not None
        self.objects[resource, request.namespace, request.name] = self._stamped(after)
        return self._found(request)

    def _patched(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        before = self._found(request)
        self._check_preconditions(before, body)
        resource = request.resource
        assert resource is not None and request.name is not None
        stored = self.objects[resource, request.namespace, request.name]
        stored.patch(body)
        stored.patch({"metadata": {"resourceVersion": str(next(self._versions))}})
        return self._found(request)

    def _check_preconditions(self, before: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        for key in ("resourceVersion", "uid"):
            if body.get("metadata", {}).get(key) not in (None, before["metadata"][key]):
                raise _conflict(
                    "Operation cannot be fulfilled: the object has been modified; please apply "
                    "your changes to the latest version and try again"
                )

    def _store(self, resource: str, stored: dict[str, Any]) -> None:
        metadata = stored["metadata"]
        self.objects[resource, metadata["namespace"], metadata["name"]] = self._stamped(stored)

    def _stamped(self, stored: dict[str, Any]) -> dict[str, Any]:
        version = str(next(self._versions))
        metadata = {"uid": f"uid-{version}", **stored["metadata"], "resourceVersion": version}
        return {**stored, "metadata": metadata}


def _conflict(message: str) -> KubernetesError:
    return KubernetesError(status=409, reason="Conflict", message=message)


@contextmanager
def served(server: ApiServer) -> Iterator[ApiServer]:
    """The server at work, in a thread of its own."""
    started, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with server, Server(server) as http:
            server.address = str(http.url).rstrip("/")
            started.set()
            await ended.wait()

    thread = threading.Thread(target=partial(loop.run_until_complete, serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


def kubeconfig(folder: Path, url: str) -> Path:
    """A kubeconfig that names the server."""
    file = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "secret"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    file.write_text(yaml.safe_dump(content))
    return file
