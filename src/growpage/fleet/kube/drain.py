"""Scaling in without cutting answers short: which pods leave, and whether they may finish.

Kubernetes ends the pods that leave by itself. What can be done from outside is to make it take
those that work least, and not to scale in at all where vLLM would abort what it is working on.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import structlog
from kubernetes import client

from growpage.fleet.kube.api import (
    FIELD_MANAGER,
    MERGE_PATCH,
    MissingPermissionError,
    Permission,
    explained,
)
from growpage.fleet.kube.pods import Container, Pod, list_pods
from growpage.fleet.targets import ScaleError, Target

PATCH_PODS = Permission("", "pods", "patch")

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Of two ready pods of a ReplicaSet, the one with the lower cost is deleted first. Default 0."""

PREVIOUS_COST = "autoscaler.growpage/previous-deletion-cost"
"""Marks a pod whose cost is ours; holds the cost that it had before, or nothing."""

TEARDOWN_SECONDS = 10
"""Kept for what follows vLLM's shutdown timeout: freeing the device, ending its processes."""

SETTLE_SECONDS = 15.0
"""How long to wait for the pods that were marked to be deleted."""

_POLL_SECONDS = 0.5

_LEAST_COST = -(2**31)

log = structlog.get_logger(__name__)


# -- which pods leave --------------------------------------------------------------------------


def pods_to_mark(pods: Sequence[Pod], leaving: int, running: Mapping[str, float]) -> list[Pod]:
    """The pods of a Deployment that should leave, where Kubernetes has to be told.

    Pods that are not ready leave first anyway. Of the ready ones those with the fewest running
    requests should. A pod of which they are unknown is not taken for idle: it is not marked.

    Args:
        pods: all pods of the target.
        leaving: how many replicas fewer it will have.
        running: running requests by the name of the pod.
    """
    ready = [pod for pod in pods if pod.ready]
    unready = sum(pod.live and not pod.ready for pod in pods)
    known = sorted((running[pod.name], pod.name) for pod in ready if pod.name in running)
    chosen = {name for _, name in known[: max(0, leaving - unready)]}
    return [pod for pod in ready if pod.name in chosen]


def cost_below(pods: Iterable[Pod]) -> int:
    """A deletion cost below that of all these pods, and below the default."""
    costs = [_cost(pod.annotations.get(DELETION_COST, "0")) for pod in pods]
    return max(_LEAST_COST, min([0, *costs]) - 1)


def _cost(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        return 0


@contextmanager
def marked(
    api: client.ApiClient,
    target: Target,
    selector: str,
    pods: Sequence[Pod],
    chosen: Sequence[Pod],
    settle_seconds: float = SETTLE_SECONDS,
) -> Iterator[None]:
    """Inside, the chosen pods are the first to be deleted; afterwards no mark is left.

    At the end it waits until they are being deleted, and takes the marks off those that were not;
    at the beginning, off those that an autoscaler left which was killed inside. Without the
    permission to mark pods it logs so, and Kubernetes chooses: marking makes a scale-in shorter,
    but is not what lets requests finish.

    Raises:
        ScaleError: they cannot be marked for another reason.
    """
    cost = cost_below(pods)
    done: list[Pod] = []
    try:
        try:
            for pod in chosen:
                marks = {DELETION_COST: str(cost), PREVIOUS_COST: _own_cost(pod)}
                _annotate(api, target, pod, marks)
                done.append(pod)
        except MissingPermissionError as error:
            log.warning("pods not marked", target=str(target), error=str(error))
        left_over = (pod for pod in pods if pod.live and PREVIOUS_COST in pod.annotations)
        _unmark_quietly(api, target, [pod for pod in left_over if pod not in chosen])
        yield
    except BaseException:
        _unmark_quietly(api, target, done)
        raise
    _unmark_survivors(api, target, selector, done, settle_seconds)


def _unmark_survivors(
    api: client.ApiClient,
    target: Target,
    selector: str,
    chosen: Sequence[Pod],
    settle_seconds: float,
) -> None:
    deadline = time.monotonic() + settle_seconds
    left = list(chosen)
    while left:
        try:
            live = {pod.uid for pod in list_pods(api, target, selector) if pod.live}
        except ScaleError as error:
            log.warning("pods unknown after scaling in", target=str(target), error=str(error))
        else:
            left = [pod for pod in left if pod.uid in live]
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    if left:
        # As in a rolling update, where the cost counts among the pods of one revision only.
        names = [pod.name for pod in left]
        log.warning("marked pods not deleted", target=str(target), pods=names)
        _unmark_quietly(api, target, left)


def _unmark_quietly(api: client.ApiClient, target: Target, pods: Iterable[Pod]) -> None:
    """The next scale-in finds the marks that stay."""
    for pod in pods:
        try:
            own = {DELETION_COST: _own_cost(pod) or None, PREVIOUS_COST: None}
            _annotate(api, target, pod, own)
        except ScaleError as error:
            log.warning("mark left on pod", target=str(target), pod=pod.name, error=str(error))


def _own_cost(pod: Pod) -> str:
    """The cost that it has without any mark of ours; empty for none."""
    return pod.annotations.get(PREVIOUS_COST, pod.annotations.get(DELETION_COST, ""))


def _annotate(
    api: client.ApiClient, target: Target, pod: Pod, annotations: Mapping[str, str | None]
) -> None:
    # With its uid in it, the patch does not reach another pod of the same name.
    body = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
    core = client.CoreV1Api(api)
    with explained(f"mark pod {pod.name} for deletion", PATCH_PODS, target.namespace):
        core.patch_namespaced_pod(
            pod.name,
            target.namespace,
            body,
            field_manager=FIELD_MANAGER,
            _content_type=MERGE_PATCH,
        )


# -- whether they may finish -------------------------------------------------------------------


def obstacles(pods: Iterable[Pod]) -> list[str]:
    """Why pods that leave would abort requests: one sentence, with the figures, for each reason.

    A pod in which no vLLM can be seen, or not what it was given, is no obstacle but cannot be
    checked either.
    """
    found: dict[str, None] = {}
    for pod in pods:
        for container in filter(_serves, pod.containers):
            timeout = shutdown_timeout(container)
            if timeout is None:
                continue
            needed = container.pre_stop_sleep + timeout + TEARDOWN_SECONDS
            if timeout == 0:
                found[
                    "vLLM's --shutdown-timeout is 0, its default, which aborts running requests: "
                    "set it to the seconds that your longest answer takes, and "
                    f"terminationGracePeriodSeconds (now {pod.grace_seconds}) "
                    f"{TEARDOWN_SECONDS + container.pre_stop_sleep} above it"
                ] = None
            elif pod.grace_seconds < needed:
                found[
                    f"terminationGracePeriodSeconds is {pod.grace_seconds}, but must be at least "
                    f"{needed}: {container.pre_stop_sleep} of preStop, {timeout} of vLLM's "
                    f"--shutdown-timeout and {TEARDOWN_SECONDS} to end"
                ] = None
    return list(found)


def shutdown_timeout(container: Container) -> int | None:
    """vLLM's ``--shutdown-timeout`` in seconds, 0 if not given; None if that cannot be seen."""
    words = list(_words(container))
    value: str | None = None
    for number, word in enumerate(words):
        flag, equals, inline = word.partition("=")
        match flag.replace("_", "-"):
            case "--config":  # it may be in that file
                return None
            case "--shutdown-timeout":
                value = inline if equals else "".join(words[number + 1 : number + 2])
    if value is None:
        return 0
    return int(value) if value.isdecimal() else None  # $(NAME) comes from the environment


def _serves(container: Container) -> bool:
    """Whether a vLLM server can be seen in it."""
    words = list(_words(container))
    if any(word.startswith("vllm.entrypoints.") for word in words):
        return True
    for program, command in pairwise(words):
        if program.rsplit("/")[-1] in ("vllm", "growpage") and command == "serve":
            return True
    image = container.image.rsplit("@")[0]
    return not container.has_command and ("vllm" in image or "growpage" in image)


def _words(container: Container) -> Iterator[str]:
    """The words of the command, also of one that is given to a shell as one string."""
    for word in container.words:
        try:
            yield from shlex.split(word)
        except ValueError:
            yield from word.split()
