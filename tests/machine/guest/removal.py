"""Removal while containers of the runtime are left: what an engine has recorded works until its last container is gone.

docker, podman, containerd by ctr and containerd by its CRI, each with a container that runs and one that was stopped.
The same for each package manager: what it is called, and whether it can purge, is the manager's.
"""

import os
import shutil
import time
from pathlib import Path

import cri
import engines
import grpc
import package
from report import Part, check, must, run

WRAPPER = "/usr/bin/onload-container-runtime"
DOCKER_FILE = Path("/etc/docker/daemon.json")
CONTAINERD_FILE = Path("/etc/containerd/config.toml")
PODMAN_FILE = Path("/etc/containers/containers.conf.d/99-onload-ctk.conf")
ASK = {"onload.dev/nic": "all"}
SLEEP = ["localhost/debian13:1", "sleep", "100000"]
PROBE = ["probe", "node=/dev/onload"]
OPEN = "node=/dev/onload open"
CONFIGURED = ("docker", "containerd", "podman")


def podman(*words, **options):
    return run("podman", *words, timeout=120, **options)


def configure(engine, *words):
    return run("onload-ctk", "runtime", "configure", "--runtime", engine, *words, timeout=180)


class Left:
    """One container that runs and one that was stopped, for each engine."""

    def __init__(self):
        self.cri = cri.Cri()
        os.makedirs(engines.LOGS, exist_ok=True)
        ask = ["--network=host", "--annotation=onload.dev/nic=all"]
        for name in ("docker-runs", "docker-stopped"):
            must("docker", "run", "-d", "--name", name, "--runtime=onload", *ask, *SLEEP, timeout=120)
        must("docker", "stop", "-t", "0", "docker-stopped", timeout=60)
        for name in ("podman-runs", "podman-stopped"):
            must("podman", "--runtime=onload", "run", "-d", "--name", name, *ask, *SLEEP, timeout=120)
        must("podman", "stop", "-t", "0", "podman-stopped", timeout=60)
        self.ctr = engines.Ctr()
        self.ctr.run("ctr-stopped", "debian13", ["sleep", "100000"], engines.Request("wrapper", ["nic=all"]))
        must("ctr", "tasks", "kill", "-s", "SIGKILL", "ctr-stopped")
        package.wait_until(lambda: run("ctr", "tasks", "rm", "ctr-stopped").status == 0, 20)
        self.pod, _ = self.cri.run("cri-runs", SLEEP[0], SLEEP[1:], ASK, [], "onload", engines.LOGS)

    def asked(self, verb, *request):
        """A call to the CRI; what went wrong, or nothing."""
        try:
            verb(*request)
        except grpc.RpcError as error:
            return error.details() or str(error)
        return ""

    def further(self, name):
        """One more container of the pod that runs, as after a crash of its first one."""
        sandbox = self.cri.sandbox("cri-runs", ASK, engines.LOGS)
        return self.asked(self.cri.add, self.pod, sandbox, name, SLEEP[0], SLEEP[1:])


def without_the_entry(left):
    """What the engines do when somebody takes the entry away by hand: why it has to stay."""
    text = PODMAN_FILE.read_text()
    PODMAN_FILE.unlink()
    done = podman("stop", "-t", "0", "podman-runs")
    check("without the entry podman cannot stop a container", done.status != 0, done)
    done = podman("rm", "-f", "podman-runs")
    still = run("pgrep", "-f", "conmon.*podman-runs")
    check("nor remove it so that it ends", done.status != 0 or still.status == 0, f"{done}\n{still}")
    PODMAN_FILE.write_text(text)
    if podman("container", "exists", "podman-runs").status:
        run("pkill", "-KILL", "-f", "conmon.*podman-runs")
        must("podman", "--runtime=onload", "run", "-d", "--name", "podman-runs", "--network=host", *SLEEP, timeout=120)


def configured_away(left):
    """onload-ctk runtime configure --remove with containers left, while the package stays."""
    names = {"docker": ["docker-runs", "docker-stopped"], "podman": ["podman-runs", "podman-stopped"], "containerd": ["cri-runs"]}
    files = {"docker": DOCKER_FILE, "podman": PODMAN_FILE, "containerd": CONTAINERD_FILE}
    for engine in CONFIGURED:
        done = configure(engine, "--remove")
        named = all(name in done.out for name in names[engine])
        check(f"--remove for {engine} names the containers that are left and ends with 1", done.status == 1 and named, done)
        check(f"and keeps the runtime of {engine}", WRAPPER in files[engine].read_text(), files[engine].read_text())
    check("and no more than that", "cdi" not in DOCKER_FILE.read_text() and "hooks_dir" not in PODMAN_FILE.read_text(),
          DOCKER_FILE.read_text() + PODMAN_FILE.read_text())
    stopped = podman("stop", "-t", "0", "podman-runs")
    started = podman("start", "podman-runs")
    opened = podman("exec", "podman-runs", *PROBE)
    check("podman stops and starts its container, with its devices", OPEN in opened.out, f"{stopped}\n{started}\n{opened}")
    for engine in CONFIGURED:
        must("onload-ctk", "runtime", "configure", "--runtime", engine, "--allow", "nic,rdma", timeout=120)


def removed_during_a_run(manager):
    """The package goes while the service runs."""
    package.drop_in("ExecStart=/bin/sleep 100")
    must("systemctl", "start", "--no-block", package.SERVICE)
    package.wait_until(lambda: run("systemctl", "show", "--value", "-p", "ActiveState", package.SERVICE).out.strip() == "activating", 20)
    time.sleep(3)
    during = run("systemctl", "show", "--value", "-p", "ActiveState", package.SERVICE).out.strip()
    done = manager.remove()
    failed = run("systemctl", "list-units", "--failed", "--plain", "--no-legend").out
    check(f"{manager.removes} during a run of the service leaves no failed unit", during == "activating" and "onload" not in failed, f"{during}\n{failed}\n{done}")
    shutil.rmtree(package.DROP_IN)
    must("systemctl", "daemon-reload", timeout=120)
    return done


def removed(left, manager):
    """The package goes, the containers stay."""
    done = removed_during_a_run(manager)
    check(f"{manager.removes} with containers left", done.status == 0, done)
    said = done.out + done.err
    names = ["docker-runs", "docker-stopped", "podman-runs", "podman-stopped", "cri-runs", f"{WRAPPER} is now a link to /usr/bin/runc", str(DOCKER_FILE)]
    missing = [name for name in names if name not in said]
    check("it says which containers are left, and what it left for them", not missing, f"missing: {missing}\n{done}")
    check("the link leads to the runtime that made them", os.path.realpath(WRAPPER).endswith("bin/runc"), os.path.realpath(WRAPPER))
    check("the engines keep the name and nothing else", "cdi" not in DOCKER_FILE.read_text() and "enable_cdi" not in CONTAINERD_FILE.read_text(),
          DOCKER_FILE.read_text() + CONTAINERD_FILE.read_text())
    check("no specification is left", not package.specs(), package.specs().keys())


def engines_go_on(left):
    """After the engines have read their files anew."""
    must("systemctl", "restart", "containerd", "docker", timeout=180)
    check("containerd starts a further container of the pod", not (said := left.further("cri-second")), said)
    check("containerd stops and removes the pod", not (said := left.asked(left.cri.remove, left.pod)), said)
    for name in ("docker-runs", "docker-stopped"):
        started = package.docker("start", name)
        probed = package.docker("exec", name, *PROBE)
        check(f"{name}: docker starts it, without the device", started.status == 0 and "node=/dev/onload absent" in probed.out, f"{started}\n{probed}")
    stopped = podman("stop", "-t", "0", "podman-runs")
    check("podman stops the container that ran", stopped.status == 0, stopped)
    for name in ("podman-runs", "podman-stopped"):
        started = podman("start", name)
        probed = podman("exec", name, *PROBE)
        check(f"{name}: podman starts it, without the device", started.status == 0 and "node=/dev/onload absent" in probed.out, f"{started}\n{probed}")
    started = run("ctr", "tasks", "start", "-d", "ctr-stopped")
    check("ctr starts the container that was stopped", started.status == 0, started)


def last_containers(left):
    """All but one of docker's and one of ctr's, both stopped, are removed."""
    run("ctr", "tasks", "kill", "-s", "SIGKILL", "ctr-stopped")
    package.wait_until(lambda: run("ctr", "tasks", "rm", "ctr-stopped").status == 0, 20)
    for name in ("podman-runs", "podman-stopped"):
        done = podman("rm", "-f", "-t", "0", name)
        check(f"podman removes {name}", done.status == 0, done)
    must("docker", "rm", "-f", "docker-runs", timeout=60)
    must("docker", "stop", "-t", "0", "docker-stopped", timeout=60)


def purged(manager):
    """Purge takes no more than it may."""
    done = manager.purge()
    check(f"{manager.purges} with a stopped container left keeps the link", done.status == 0 and os.path.islink(WRAPPER), done)
    started = package.docker("start", "docker-stopped")
    check("and docker still starts it", started.status == 0, started)


def back_again(left, manager):
    """Installed again, the entry leads to the program again, and what is left can go."""
    done = manager.install()
    check(f"{manager.installs} puts the program in the link's place", done.status == 0 and not os.path.islink(WRAPPER), done)
    done = configure("docker", "--allow", "nic")
    must("docker", "restart", "-t", "0", "docker-stopped", timeout=60)
    probed = package.docker("exec", "docker-stopped", *PROBE)
    check("the container that was left has its device again", OPEN in probed.out, f"{done}\n{probed}")
    must("docker", "rm", "-f", "docker-stopped", package.NAME, timeout=60)
    done = manager.remove()
    check("a removal with a stopped container of ctr keeps the link", os.path.islink(WRAPPER) and "is now a link" in done.out + done.err, done)
    started = run("ctr", "tasks", "start", "-d", "ctr-stopped")
    check("and ctr starts it", started.status == 0, started)
    check("ctr removes it", left.ctr.remove("ctr-stopped").status == 0)


def with_containers_left(manager):
    """The package is installed when this begins, and removed and not purged when it ends, with no container left."""
    with Part("removal: containers"):
        left = Left()
        without_the_entry(left)
    with Part("removal: runtime configure --remove"):
        configured_away(left)
    with Part("removal: the package"):
        removed(left, manager)
        engines_go_on(left)
    with Part("removal: purge and back"):
        last_containers(left)
        if manager.purges:
            purged(manager)
        back_again(left, manager)
