"""Runs the containers of packaging/kubernetes/examples as kubelet does: resources are allocated, the rest goes to the CRI as it stands.

What differs from a cluster is said where it is made: images are the guest's own, and nothing makes a pod's network but the host's.
"""

import contextlib
import os
import time
from pathlib import Path

import yaml

import engines
from cri import message
from report import check, run

DIRECTORY = Path("/run/machine/packaging/kubernetes/examples")


def pod_of(name):
    """The first pod of an example."""
    documents = yaml.safe_load_all((DIRECTORY / name).read_text(encoding="utf-8"))
    return next(document["spec"] for document in documents if document["kind"] == "Pod")


def allocate(container, resources):
    """What the plugins give for the limits of a container."""
    cdi, environment = [], {}
    for name, amount in container["resources"]["limits"].items():
        if name in resources:
            given = resources[name].allocate(resources[name].healthy()[:int(amount)])
            cdi += given.cdi
            environment |= given.environment
    return cdi, environment


def configuration(container, image, resources):
    """runtime.v1.ContainerConfig."""
    cdi, environment = allocate(container, resources)
    environment |= {one["name"]: one["value"] for one in container.get("env", [])}
    context = container["securityContext"]
    user = [(5, message((1, context["runAsUser"])))] if "runAsUser" in context else []
    dropped = message((2, context["capabilities"]["drop"]))
    security = message((1, dropped), (3, message((1, 2), (2, 1))), *user, (11, int(not context["allowPrivilegeEscalation"])))
    words = container.get("command", []) + container.get("args", [])
    return message(
        (1, message((1, "example"))), (2, message((1, f"localhost/{image}:1"))), (3, words), (6, environment),
        (11, "example.log"), (15, message((2, security))), (17, [message((1, device)) for device in cdi]))


@contextlib.contextmanager
def runs(client, name, image, resources):
    """The container of an example; its id."""
    log = Path(engines.LOGS) / "example.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    sandbox = client.sandbox("example", {}, engines.LOGS)
    pod = client.call("RunPodSandbox", message((1, sandbox), (2, "runc")))[1].decode()
    try:
        config = configuration(pod_of(name)["containers"][0], image, resources)
        container = client.call("CreateContainer", message((1, pod), (2, config), (3, sandbox)))[1].decode()
        client.call("StartContainer", message((1, container)))
        yield container
    finally:
        client.remove(pod)


def output():
    """A CRI log has a time, a stream and a tag before each line."""
    log = Path(engines.LOGS) / "example.log"
    return "\n".join(line.split(" ", 3)[-1] for line in log.read_text(errors="replace").splitlines())


def says(words, seconds):
    """Whether a container's output has all of these words in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(word in output() for word in words):
        time.sleep(0.5)
    return all(word in output() for word in words)


def check_pod(client, resources):
    with runs(client, "check.yaml", "debian13", resources):
        wanted = ["== variables", "LD_PRELOAD=", "== nodes\n/dev/onload\n", "libonload", "== memory lock\n8192", "== interfaces\n", "== RDMA devices"]
        check("check.yaml prints nodes, preload, memory lock and interfaces", says(wanted, 60), output())


def redis(client, resources):
    with runs(client, "redis.yaml", "redis", resources) as container:
        check("redis.yaml: the server comes up", says(["Ready to accept connections"], 90), output())
        _, out, err = client.execute(container, ["redis-cli", "ping"])
        check("redis.yaml: it answers", "PONG" in out, out + err)
        pid = run("pgrep", "-o", "-x", "redis-server").out.strip()
        maps = run("cat", f"/proc/{pid}/maps").out
        check("redis.yaml: the server has libonload.so mapped", "libonload.so" in maps, maps)
        status = run("cat", f"/proc/{pid}/status").out
        check("redis.yaml: it is a plain user without capabilities", "\nUid:\t999\t" in status and "\nCapEff:\t0000000000000000" in status, status)


def parts(client, resources):
    check_pod(client, resources)
    redis(client, resources)
