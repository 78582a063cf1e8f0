"""What `onload-ctk status` says of containers that real engines made, in the situations that it has verdicts for.

Engines, containers, namespaces, leases and device nodes are real. Onload's driver and library are stand-ins here: nothing is accelerated,
and a program that opens /dev/onload by itself is what one with a socket of Onload looks like.
"""

import contextlib
import json

import engines
import session
from report import Part, check, must, run

IMAGE = "localhost/debian13:1"
STAYS = ["sleep", "1000"]
# Opens a node of Onload as its library does for a socket, and stays.
OPENS = ["sh", "-c", "exec 9</dev/onload; exec sleep 1000"]
NIC = ["--device=onload.dev/nic=all"]
TESTER = 1000


class Told:
    """What status says of one container."""

    def __init__(self, name, whole):
        self.whole = whole
        mine = [each for each in whole["containers"] if name in (each["name"], each["id"]) or str(each["name"]).startswith(f"{name}/")]
        self.found = mine[0] if len(mine) == 1 else None

    def states(self):
        return [verdict["state"] for verdict in self.found["verdicts"]] if self.found else []

    def reason(self, state):
        reasons = [f"{each['reason']}; {each.get('remedy', '')}" for each in self.found["verdicts"] if each["state"] == state] if self.found else []
        return reasons[0] if reasons else ""

    def __str__(self):
        return json.dumps(self.found or self.whole, indent=1)


def status():
    return run("onload-ctk", "status", "--format", "json")


def told(name):
    done = status()
    return Told(name, json.loads(done.out) if done.status == 0 else {"containers": [], "error": str(done)})


def verdict(what, name, state, words="", engine=None):
    """The worst verdict of a container, with words of its reason or remedy."""
    seen = told(name)
    good = seen.states()[:1] == [state] and words in seen.reason(state) and (engine is None or seen.found["engine"] == engine)
    check(f"status: {what}: {state}", good, f"wanted {state!r} with {words!r}\n{seen}")
    return seen


@contextlib.contextmanager
def container(engine, name, options, argv, network="host"):
    """A container of docker or podman; `engine` is the beginning of its command line."""
    started = run(*engine, "run", "-d", "--name", name, f"--network={network}", *options, IMAGE, *argv, timeout=90)
    check(f"status: the container {name} starts", started.status == 0, started)
    try:
        yield started
    finally:
        run(*engine, "rm", "-f", *(["-t", "0"] if "podman" in engine else []), name, timeout=90)


DOCKER = ["docker"]
PODMAN = ["podman"]


def accelerated():
    """The same in every engine, each found without asking it."""
    rootless = engines.Rootless().binary
    for name, command, engine in [("docker", DOCKER, "docker"), ("podman", PODMAN, "podman"), ("rootless podman", rootless, "podman")]:
        with container(command, "seen", NIC, OPENS):
            seen = verdict(f"{name}: a program with the library and a descriptor of Onload", "seen", "accelerated", engine=engine)
            user = seen.found and seen.found.get("user")
            check(f"status: {name}: whose engine it is", user == (TESTER if "rootless" in name else None), seen)
        with container(command, "seen", NIC, STAYS):
            verdict(f"{name}: a program with the library and no socket", "seen", "ready", "none has opened a socket yet", engine)


def parts(wanted):
    """Each situation, where it is asked for."""
    tries = [("seeing-accelerated", accelerated)]
    tries = [(name, situation) for name, situation in tries if not wanted or any(word in name for word in wanted)]
    if tries:
        session.configure("/usr/bin/crun")
        must("onload-ctk", "cdi", "generate")
    for name, situation in tries:
        with Part(name):
            situation()
