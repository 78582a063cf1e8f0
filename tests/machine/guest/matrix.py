"""One cell of the matrix: an engine and a door. What the container has is asked from inside by the probe; what is right stands in expected.toml."""

import json
import os
import time
from pathlib import Path

import devices
import engines
from report import emit, must, run

MIB = 64
HUGE = "/dev/hugepages-2Mi"
LIBS = [f"{devices.MULTIARCH}/libonload.so", "/usr/lib64/libonload.so"]
END = "END-OF-REPORT"


class Bench:
    """What the cells need to know of this machine."""

    def __init__(self, found):
        self.found = found
        self.vfio, self.group = found["vfio"][0]
        self.other_group = found["vfio"][1][1]

    def asks(self, rootless, door=""):
        asks = ["nic=all", f"rdma={self.found['rdma']}", f"vfio={self.vfio}"]
        return asks if rootless or door == "live" else [*asks, "hugepages=2Mi"]

    def nodes(self):
        return ["/dev/onload", "/dev/onload_epoll", "/dev/infiniband/rdma_cm", *(f"/dev/infiniband/{name}" for name in self.found["uverbs"])]

    def questions(self):
        """What both the container's first process and an exec'd one are asked."""
        return ["limits", *(f"node={path}" for path in self.nodes()), "node=/dev/sfc_char", f"node=/dev/vfio/{self.other_group}",
                f"vfio=/dev/vfio/{self.group}", *(f"mount={path}" for path in LIBS), "preload", "env=ONLOAD_CTK_", "env=LD_PRELOAD"]

    def script(self, questions=None):
        """The container's program: reports as root, then as uid 1000, and stays."""
        asked = " ".join(f"'{word}'" for word in (questions or self.questions()))
        return (f"probe {asked} readnode=/dev/onload mlock={MIB} huge={HUGE} root; ibv_devices 2>&1; echo USER; "
                f"probe -u 1000 limits mlock={MIB} huge={HUGE}; echo {END}; exec sleep 1000")


def facts(text):
    """The probe's lines as a dict; the first answer stands."""
    answers = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        answers.setdefault(key, value)
    return answers


def number(path):
    """MAJOR:MINOR of a node of the host."""
    st = os.stat(path)
    return f"{os.major(st.st_rdev)}:{os.minor(st.st_rdev)}"


def nodes_value(bench, answers):
    right = [answers.get(f"node={path}") == f"open {number(path)}" for path in bench.nodes()]
    return "yes" if all(right) else "some" if any(right) else "no"


def closed_value(bench, answers):
    """Nodes that nobody asked for: absent or not to be opened."""
    opened = [path for path in ["/dev/sfc_char", f"/dev/vfio/{bench.other_group}"] if answers.get(f"node={path}", "").startswith("open")]
    return "no" if opened else "yes"


def libs_value(answers):
    states = [answers.get(f"mount={path}", "none") for path in LIBS]
    return "yes" if all(state != "none" and state.endswith(" ro") for state in states) else "no"


def memlock_value(answers):
    soft = answers.get("memlock", "").split(":")[0]
    return "unlimited" if soft == "unlimited" else "limited" if soft.isdigit() else "unknown"


def report_values(bench, root, user):
    """The values of the cell that one report of the first process gives."""
    huge = f"huge={HUGE}"
    return {
        "nodes": nodes_value(bench, root),
        "closed": closed_value(bench, root),
        "libraries": libs_value(root),
        "preload": root.get("preload_init", "unknown"),
        "memlock": memlock_value(root),
        "ipc-lock": root.get("ipc_lock", "unknown"),
        "mlock-root": root.get("mlock", "unknown"),
        "mlock-user": user.get("mlock", "unknown"),
        "vfio": root.get(f"vfio=/dev/vfio/{bench.group}", "unknown"),
        "huge-root": root.get(huge, "unknown").split(" ")[0],
        "huge-user": user.get(huge, "unknown").split(" ")[0],
    }


def wait_for_report(engine, name, seconds=60):
    deadline = time.monotonic() + seconds
    text = engine.output(name)
    while END not in text and time.monotonic() < deadline:
        time.sleep(0.3)
        text = engine.output(name)
    return text


def free_huge():
    return sum(int(devices.read(path)) for path in Path("/sys/devices/system/node").glob("node*/hugepages/hugepages-2048kB/free_hugepages"))


def cell(bench, engine, door, extra=()):
    """Every value of a cell and the text that explains them."""
    rootless = engine.name == "podman-rootless"
    request = engines.Request(door, [] if door == "plain" else bench.asks(rootless, door), extra)
    name = f"cell-{engine.name}-{door}"
    free = free_huge()
    try:
        started = engine.run(name, "debian13", ["sh", "-c", bench.script()], request)
        if started.status:
            return {"start": "refused"}, str(started)
        text = wait_for_report(engine, name)
        if END not in text:
            return {"start": "died"}, f"{started}\n{text}"
        root_text, _, user_text = text.partition("USER")
        values = {"start": "yes", **report_values(bench, facts(root_text), facts(user_text))}
        values["rdma"] = "yes" if bench.found["rdma"] in root_text.partition("node GUID")[2] else "no"
        executed = engine.execute(name, ["sh", "-c", "probe " + " ".join(bench.questions()) + "; true"])
        answers = facts(executed.out)
        values["exec-nodes"] = nodes_value(bench, answers)
        values["exec-preload"] = answers.get("preload_parent", "unknown")
        values["exec-memlock"] = memlock_value(answers)
        explained = f"{text}\n--- exec'd\n{executed}"
    finally:
        if engine.exists(name):
            removed = engine.remove(name)
            if removed.status:
                emit("log", text=f"{name} could not be removed: {removed}")
    values["huge-returned"] = "yes" if free_huge() == free else "no"
    return values, explained


def mounts(columns):
    """The host's mounts, the target first. podman mounts its store onto itself when it needs it, and unmounts it some time after the last container."""
    lines = must("findmnt", "-rno", columns).out.splitlines()
    return [line for line in lines if line.split(" ")[0] != "/var/lib/containers/storage/overlay"]


def is_over(path):
    """Whether a file is a lease of a process that is gone: the next container that wants the device writes over it."""
    if path.parent.name != "@leases" or "#" not in path.name:
        return False
    try:
        process = json.loads(path.read_text(encoding="utf-8"))["holder"]["init"]["process"]
        fields = Path(f"/proc/{process['pid']}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except KeyError:  # a reservation
        return False
    return int(fields[19]) != process["startTime"]


def leftovers():
    """What must be the same before and after: mounts, device programs, our files, engines' processes."""
    return {
        "mounts": sorted(mounts("TARGET")),
        "scopes": sorted(run("systemctl", "list-units", "--plain", "--no-legend", "--all", "*.scope").out.split("\n")),
        "state": sorted(str(path) for path in Path("/run").glob("onload-ctk/**/*") if not is_over(path)),
        "specs": sorted(str(path) for base in ("/etc/cdi", "/var/run/cdi") for path in Path(base).glob("*")),
        "temporary": sorted(str(path) for path in Path("/tmp").glob("*") if "systemd-private" not in str(path)),
        "huge": free_huge(),
    }
