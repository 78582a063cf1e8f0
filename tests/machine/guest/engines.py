"""The engines, all driven the same way: start a container that stays, run something in it, read what it printed, remove it."""

import os
import subprocess
import time

from provision import as_tester, has
from report import Done, run

WRAPPER = "/usr/bin/onload-container-runtime"
HOOKS_DIR = "/usr/share/onload-ctk/hooks.d/podman"
LIVE_HOOKS_DIR = "/usr/share/onload-ctk/hooks.d/oci"
LIVE_HOOK = "machine.test/live=hook"  # the same hooks for an engine without a hooks.d, see live.write_hook_spec
LOGS = "/run/machine/logs"


class Request:
    """What a container asks for: CDI devices (class=name pairs) or annotations, never both."""

    def __init__(self, door, asks, extra=()):
        self.door = door
        self.devices = [f"onload.dev/{ask}" for ask in asks] if door == "cdi" else []
        self.annotations = {}
        if door not in ("cdi", "plain"):
            for ask in asks:
                kind, name = ask.split("=", 1)
                key = f"onload.dev/{kind}"
                self.annotations[key] = f"{self.annotations[key]},{name}" if key in self.annotations else name
            self.annotations.update(dict(extra))


class CommandLine:
    """podman and docker: the same command line but for its beginning."""

    binary = []
    low = ""  # the OCI runtime below, as onload-ctk's [runtime] path
    bridge = ""  # a network of the container's own, see netdev.Lab
    daemon = ""  # the unit of its daemon, where it has one

    def command(self, request):
        raise NotImplementedError

    def run(self, name, image, argv, request, read_only=False, more=(), network="host"):
        options = ["--device=" + device for device in request.devices]
        options += [f"--annotation={key}={value}" for key, value in request.annotations.items()]
        if read_only:
            options.append("--read-only")
        return run(*self.command(request), "run", "-d", "--name", name, f"--network={network}", *options, *self.runtime_option(request), *more,
                   f"localhost/{image}:1", *argv, timeout=90)

    def runtime_option(self, request):
        return []

    def execute(self, name, argv):
        return run(*self.binary, "exec", name, *argv)

    def output(self, name):
        done = run(*self.binary, "logs", name)
        return done.out + done.err

    def exists(self, name):
        return run(*self.binary, "inspect", name).status == 0

    def remove(self, name):
        return run(*self.binary, "rm", "-f", *self.stop_option(), name)

    def stop_option(self):
        return []

    def stop(self, name):
        return run(*self.binary, "stop", "-t", "0", name)

    def again(self, name):
        """Starts a container that has ended once more."""
        return run(*self.binary, "start", name)

    def restart(self, name, door=""):
        return run(*self.command(Request(door, [])), "restart", "-t", "0", name)

    def update(self, name):
        return run(*self.binary, "update", "--pids-limit", "500", name)


class Docker(CommandLine):
    """docker with runc, through the system's containerd."""

    name = "docker-runc"
    binary = ["docker"]
    low = "/usr/bin/runc"
    bridge = "netdev"
    daemon = "docker.service"
    doors = ["cdi", "wrapper", "live"]

    def command(self, request):
        return self.binary

    def wait_until_ready(self):
        """The unit counts as started when the daemon answers."""

    def runtime_option(self, request):
        if request.door == "live":  # docker's own limit on descriptors is too high for the preload
            return [f"--device={LIVE_HOOK}", "--ulimit=nofile=1048576:1048576"]
        return ["--runtime=onload"] if request.door == "wrapper" else []


class Podman(CommandLine):
    """podman with one of the two runtimes."""

    doors = ["cdi", "wrapper", "precreate", "live"]
    bridge = "bridge"

    def __init__(self, runtime):
        self.name = f"podman-{runtime}"
        self.low = f"/usr/bin/{runtime}"
        self.binary = ["podman", f"--runtime={self.low}"]

    def stop_option(self):
        return ["-t", "0"]

    def update(self, name):
        """podman 4 has no --pids-limit here; any limit makes the runtime write its cgroup anew."""
        old = " 4." in run("podman", "--version").out
        return run(*self.binary, "update", *(["--cpu-shares", "500"] if old else ["--pids-limit", "500"]), name)

    def command(self, request):
        if request.door == "wrapper":
            return self.binary[:-1] + [f"--runtime={WRAPPER}"]
        if request.door == "precreate":
            return self.binary + [f"--hooks-dir={HOOKS_DIR}"]
        if request.door == "live":
            return self.binary + [f"--hooks-dir={LIVE_HOOKS_DIR}"]
        return self.binary


class Rootless(Podman):
    """podman of a plain user, in that user's own systemd session."""

    name = "podman-rootless"

    def __init__(self):
        super().__init__("crun")
        self.name = "podman-rootless"
        self.binary = [*as_tester("podman"), f"--runtime={self.low}"]


class Ctr:
    """containerd with ctr, its own client."""

    name = "ctr"
    low = "/usr/bin/runc"
    doors = ["cdi", "wrapper"]

    def run(self, name, image, argv, request, read_only=False, more=()):
        os.makedirs(LOGS, exist_ok=True)
        options = ["--device=" + device for device in request.devices]
        options += [f"--annotation={key}={value}" for key, value in request.annotations.items()]
        if request.door == "wrapper":
            options.append(f"--runc-binary={WRAPPER}")
        if read_only:
            options.append("--read-only")
        return run("ctr", "run", "-d", "--net-host", f"--log-uri=file://{LOGS}/{name}.log", *options, *more, f"localhost/{image}:1", name, *argv, timeout=90)

    def execute(self, name, argv):
        return run("ctr", "tasks", "exec", "--exec-id", f"exec-{time.monotonic_ns()}", name, *argv)

    def output(self, name):
        return read(f"{LOGS}/{name}.log")

    def exists(self, name):
        return run("ctr", "containers", "info", name).status == 0

    def remove(self, name):
        run("ctr", "tasks", "kill", "-s", "SIGKILL", name)
        for _ in range(50):
            done = run("ctr", "tasks", "rm", "-f", name)
            if done.status == 0 or "not found" in done.err:
                break
            time.sleep(0.2)
        # The next container of that name, of whichever client, begins a log of its own.
        if os.path.exists(f"{LOGS}/{name}.log"):
            os.unlink(f"{LOGS}/{name}.log")
        return run("ctr", "containers", "rm", name)


class CriClient:
    """containerd as a kubelet drives it."""

    name = "cri"
    low = "/usr/bin/runc"
    bridge = "bridge"
    daemon = "containerd.service"
    doors = ["cdi", "wrapper"]

    def __init__(self):
        self.client = None
        self.live = {}

    def connected(self):
        if self.client is None:
            import cri
            self.client = cri.Cri()
        return self.client

    def run(self, name, image, argv, request, read_only=False, more=(), network="host"):
        """The pod's network is the host's, or any other one is what the CNI plugin makes."""
        import cri
        import grpc
        os.makedirs(LOGS, exist_ok=True)
        start = time.monotonic()
        handler = "onload" if request.door == "wrapper" else "runc"
        namespaces = cri.NAMESPACES if network == "host" else cri.OWN_NETWORK
        try:
            ids = self.connected().run(name, f"localhost/{image}:1", list(argv), request.annotations, request.devices, handler, LOGS, read_only,
                                       "privileged" in more, namespaces)
        except grpc.RpcError as error:
            return Done(1, "", error.details() or str(error), time.monotonic() - start)
        self.live[name] = ids
        return Done(0, ids[1], "", time.monotonic() - start)

    def execute(self, name, argv):
        import grpc
        try:
            status, out, err = self.connected().execute(self.live[name][1], list(argv))
        except grpc.RpcError as error:
            return Done(1, "", error.details() or str(error), 0.0)
        return Done(status, out, err, 0.0)

    def stop(self, name):
        import grpc
        try:
            self.connected().stop(self.live[name][1])
        except grpc.RpcError as error:
            return Done(1, "", error.details() or str(error), 0.0)
        return Done(0, "", "", 0.0)

    def wait_until_ready(self):
        """containerd tells systemd that it is up before its CRI answers."""
        import grpc
        deadline = time.monotonic() + 90
        while True:
            try:
                return self.connected().call("Version", b"")
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def output(self, name):
        """A CRI log has a time, a stream and a tag before each line."""
        return "\n".join(line.split(" ", 3)[-1] for line in read(f"{LOGS}/{name}.log").splitlines())

    def exists(self, name):
        return name in self.live

    def remove(self, name):
        import grpc
        if name in self.live:
            try:
                self.connected().remove(self.live.pop(name)[0])
            except grpc.RpcError as error:
                return Done(1, "", error.details() or str(error), 0.0)
        if os.path.exists(f"{LOGS}/{name}.log"):
            os.unlink(f"{LOGS}/{name}.log")
        return Done(0, "", "", 0.0)


def said_by_hook(started):
    """What a hook had to say: runc hands it on to the engine, crun drops it and the hook writes it into the journal."""
    return started.err + run("journalctl", "-b", "--no-pager", "-o", "cat", "-t", "onload-hook", "--since", f"-{started.seconds + 5:.0f}s").out


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def all_engines():
    """Those that this guest has. With cgroup v1 crun has nothing to say: it refuses the hierarchy that systemd mounts there."""
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    engines = [Docker()] if has("docker") else []
    engines += [Podman("crun")] if unified else []
    engines += [Podman("runc")]
    engines += [Rootless()] if unified else []
    return engines + ([Ctr(), CriClient()] if has("ctr") else [])


def prepare():
    """Starts the daemons and the plain user's session."""
    daemons = ["containerd", "docker"] if has("docker") else []
    subprocess.run(["systemctl", "start", *daemons, "user@1000"], check=True, timeout=120)
