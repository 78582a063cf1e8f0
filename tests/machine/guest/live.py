"""Injection into a container that its runtime has already created: what the cells do not show."""

import ctypes
import json
import os
import struct
import subprocess
import time
from pathlib import Path

import devices
import engines
import hostile
import matrix
from parts import Kept, nodes_now, stays
from report import Part, check, must, run

SPEC = Path("/etc/cdi/machine-live.json")
STATE = Path("/run/onload-ctk")
CGROUP = Path("/sys/fs/cgroup")
HARDEN = Path("/proc/sys/net/core/bpf_jit_harden")
KPTR = Path("/proc/sys/kernel/kptr_restrict")


def write_hook_spec():
    """The hooks for docker, which has no hooks.d: a CDI device that is nothing but hooks."""
    hooks = [{"hookName": stage, "path": "/usr/bin/onload-hook", "args": ["onload-hook", stage], "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 20}
             for stage in ["createRuntime", "poststop"]]
    spec = {"cdiVersion": "0.5.0", "kind": engines.LIVE_HOOK.partition("=")[0], "devices": [{"name": "hook", "containerEdits": {"hooks": hooks}}]}
    SPEC.parent.mkdir(parents=True, exist_ok=True)
    SPEC.write_text(json.dumps(spec), encoding="ascii")


def identify(engine, name):
    """The container's full id and the host's number of its init."""
    done = run(*engine.binary, "inspect", "--format", "{{.Id}} {{.State.Pid}}", name)
    container, _, pid = done.out.strip().partition(" ")
    return container, int(pid)


def cgroup_of(pid):
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines()
    return next(line[3:] for line in lines if line.startswith("0::"))


def scope_of(pid):
    return next(part for part in cgroup_of(pid).split("/") if part.endswith(".scope"))


def programs(path):
    """How many device programs a cgroup has: bpf(2), BPF_PROG_QUERY of BPF_CGROUP_DEVICE."""
    ids = (ctypes.c_uint32 * 64)()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        attributes = ctypes.create_string_buffer(struct.pack("=IIIIQII", fd, 6, 0, 0, ctypes.addressof(ids), 64, 0))
        if ctypes.CDLL(None, use_errno=True).syscall(devices.BPF, 16, attributes, 32):
            raise OSError(ctypes.get_errno(), f"asking for the programs of {path}")
        return struct.unpack_from("=I", attributes, 24)[0]
    finally:
        os.close(fd)


def all_programs(pid):
    """The programs of the container's cgroup and of the scope around it."""
    path = CGROUP / cgroup_of(pid).lstrip("/")
    return programs(path) + (programs(path.parent) if path.name == "container" else 0)


def device_property(scope, name):
    return run("systemctl", "show", "-P", name, scope).out.strip()


def request(bench, extra=()):
    return engines.Request("live", bench.asks(False, "live"), extra)


def user_namespace(bench, engine):
    """A user namespace of the container's own: the host's nodes are mounted, none is made. A vfio group of mode 0600 is root's, so it is not asked for."""
    asks = ["nic=all", f"rdma={bench.found['rdma']}"]
    with Kept(engine, "userns", "debian13", stays(bench), engines.Request("live", asks), more=["--uidmap=0:100000:65536"]) as kept:
        root = matrix.facts(kept.report().partition("USER")[0])
        values = (matrix.nodes_value(bench, root), root.get("preload_init"))
        check(f"{engine.name} live: a user namespace of its own has nodes and preload", values == ("yes", "yes"), f"{values}\n{kept.text()}")


def read_only_everywhere(bench, engine):
    """podman without its tmpfs over /run, /tmp and the like: /dev is read-only too."""
    more = ["--read-only", "--read-only-tmpfs=false"]
    with Kept(engine, "all-read-only", "debian13", stays(bench), request(bench), more=more) as kept:
        root = matrix.facts(kept.report().partition("USER")[0])
        values = (matrix.nodes_value(bench, root), root.get("preload_init"), root.get("root"))
        check(f"{engine.name} live: a read-only root and /dev have nodes and preload", values == ("yes", "yes", "ro"), f"{values}\n{kept.text()}")


def called_as_prestart(bench, engine):
    """The older stage, which runtimes still know: the same."""
    directory = Path("/run/machine/prestart")
    directory.mkdir(exist_ok=True)
    hook = json.loads(Path(f"{engines.LIVE_HOOKS_DIR}/onload.json").read_text(encoding="ascii"))
    hook["stages"] = ["prestart" if stage == "createRuntime" else stage for stage in hook["stages"]]
    hook["hook"]["args"] = ["onload-hook", "prestart"]
    (directory / "onload.json").write_text(json.dumps(hook), encoding="ascii")
    other = engines.Podman(engine.low.rpartition("/")[2])
    other.binary = [*other.binary, f"--hooks-dir={directory}"]
    with Kept(other, "prestart", "debian13", stays(bench), engines.Request("prestart", bench.asks(False, "live"))) as kept:
        root = matrix.facts(kept.report().partition("USER")[0])
        values = (matrix.nodes_value(bench, root), root.get("preload_init"))
        check(f"{engine.name} live: called as prestart it gives the same", values == ("yes", "yes"), f"{values}\n{kept.text()}")


def through_changes(bench, engine, guest):
    """Programs never pile up, systemd knows the devices, and what an update loses reapply puts back."""
    with Kept(engine, "live", "debian13", stays(bench), request(bench)) as kept:
        kept.report()
        container, pid = identify(engine, "live")
        unified = guest == "debian13"
        if unified:
            scope = scope_of(pid)
            listed = device_property(scope, "DeviceAllow")
            st = os.stat("/dev/onload")
            known = f"/dev/char/{os.major(st.st_rdev)}:{os.minor(st.st_rdev)}" in listed
            check(f"{engine.name} live: the scope's DeviceAllow has the node", known, listed)
            before = all_programs(pid)
        for _ in range(3):
            engine.update("live")
            done = run("onload-hook", "reapply", container)
            value, asked = nodes_now(bench, engine, "live")
            check(f"{engine.name} live: nodes after update and reapply", done.status == 0 and value == "yes", f"{done}\n{value}\n{asked}")
        if unified:
            after = all_programs(pid)
            check(f"{engine.name} live: programs do not pile up", after <= before + 1, f"{before}, then {after}")
        state = STATE / container / "record.json"
        record = json.loads(state.read_text(encoding="ascii"))
        record["live"]["startTime"] += 1
        whole = state.read_bytes()
        state.write_text(json.dumps(record), encoding="ascii")
        done = run("onload-hook", "reapply", container)
        state.write_bytes(whole)
        check(f"{engine.name} live: reapply refuses another process", done.status == 1 and "another process" in done.err, done)


def privileged(bench, engine):
    """A privileged container may use every device, before and after: its scope gets no list."""
    with Kept(engine, "privileged", "debian13", stays(bench), request(bench), more=["--privileged"]) as kept:
        text = kept.report()
        _, pid = identify(engine, "privileged")
        scope = scope_of(pid)
        policy = (device_property(scope, "DevicePolicy"), device_property(scope, "DeviceAllow"))
        check(f"{engine.name} live: a privileged scope stays open", policy == ("auto", ""), f"{policy}\n{kept.text()}")
        made = engine.execute("privileged", ["sh", "-c", "mknod /tmp/mem c 1 1 && mknod /tmp/loop b 7 99 && echo made"])
        value = matrix.nodes_value(bench, matrix.facts(text.partition("USER")[0]))
        check(f"{engine.name} live: a privileged container makes any node and has ours", "made" in made.out and value == "yes", f"{made}\n{value}")


def hardened(bench, engine):
    """The kernel blinds the constants of programs, and with the other setting shows none at all."""
    before = (devices.read(HARDEN), devices.read(KPTR))
    try:
        for harden, kptr in [("2", "0"), ("2", "2"), ("0", "2")]:
            devices.write(HARDEN, harden)
            devices.write(KPTR, kptr)
            with Kept(engine, "hardened", "debian13", stays(bench), request(bench)) as kept:
                root = matrix.facts(kept.report().partition("USER")[0])
                values = (matrix.nodes_value(bench, root), matrix.closed_value(bench, root))
                check(f"{engine.name} live: nodes with bpf_jit_harden={harden}, kptr_restrict={kptr}", values == ("yes", "yes"), f"{values}\n{kept.text()}")
    finally:
        devices.write(HARDEN, before[0])
        devices.write(KPTR, before[1])


def without_systemd(bench):
    """podman that makes the cgroups by itself: no scope, so nobody but the runtime writes rules."""
    for runtime in ["crun", "runc"]:
        engine = engines.Podman(runtime)
        engine.binary = [*engine.binary, "--cgroup-manager=cgroupfs"]
        with Kept(engine, "cgroupfs", "debian13", stays(bench), request(bench)) as kept:
            kept.report()
            value, asked = nodes_now(bench, engine, "cgroupfs")
            check(f"{engine.name} live: nodes with cgroupfs", value == "yes", f"{value}\n{asked}\n{kept.text()}")
            must("systemctl", "daemon-reload", timeout=120)
            value, asked = nodes_now(bench, engine, "cgroupfs")
            check(f"{engine.name} live: nodes with cgroupfs after daemon-reload", value == "yes", f"{value}\n{asked}")
            updated = engine.update("cgroupfs")
            kept_by_update = {"crun": "no", "runc": "yes"}[runtime]  # crun makes a new program, as under systemd
            value, asked = nodes_now(bench, engine, "cgroupfs")
            check(f"{engine.name} live: nodes with cgroupfs after update: {kept_by_update}", value == kept_by_update, f"{updated}\n{value}\n{asked}")
            container, _ = identify(engine, "cgroupfs")
            done = run("onload-hook", "reapply", container)
            value, asked = nodes_now(bench, engine, "cgroupfs")
            check(f"{engine.name} live: nodes with cgroupfs after reapply", done.status == 0 and value == "yes", f"{done}\n{value}\n{asked}")


def mounts_and_files(base):
    """The host's mounts but for the engines' own, and the files of a directory with their sizes."""
    files = sorted(f"{path} {path.stat().st_size}" for path in Path(base).rglob("*"))
    mounts = run("findmnt", "-rno", "TARGET,OPTIONS,PROPAGATION").out.splitlines()
    return sorted(line for line in mounts if not line.startswith("/var/lib/containers/")), files


def volumes(bench, engine):
    """A volume over a place where something would be mounted: refused, and it stays as it was."""
    volume = Path("/srv/volume")
    volume.mkdir(parents=True, exist_ok=True)
    for at, options in [("/usr/lib64", "rw"), ("/usr/lib64", "ro"), ("/dev", "rw"), ("/usr/lib64", "rshared")]:
        more = [f"--volume={volume}:{at}:{options}"]
        # Places for the runtime's own mounts, as /dev/shm, it makes whoever asks for what.
        with Kept(engine, "volume", "debian13", ["sh", "-c", "exit 0"], engines.Request("plain", []), more=more):
            pass
        before = mounts_and_files(volume)
        with Kept(engine, "volume", "debian13", ["sh", "-c", "exit 0"], request(bench), more=more) as kept:
            refused = kept.started.status != 0
        after = mounts_and_files(volume)
        check(f"{engine.name} live: a volume at {at} ({options}) is refused and stays as it was", refused and after == before,
              f"{kept.started}\nbefore: {before}\nafter: {after}")


def no_leaks(bench, engine):
    """A mount on a source does not come into the container, nor one in the container onto the host."""
    with Kept(engine, "leaks", "debian13", stays(bench), request(bench)) as kept:
        kept.report()
        _, pid = identify(engine, "leaks")
        for path in [*bench.nodes(), *matrix.LIBS, "/etc/ld.so.preload"]:
            lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
            own = [line for line in lines if line.split()[4] == path]
            check(f"{engine.name} live: {path} is mounted once and has no peers", len(own) == 1 and "shared:" not in own[0] and "master:" not in own[0], "\n".join(own))


def one_line(bench, engine):
    """What the hook says about a refusal reaches whoever started the container, where the runtime hands it on; the journal otherwise."""
    asks = engines.Request("live", ["hugepages=2Mi"])
    with Kept(engine, "refused", "debian13", ["sh", "-c", "exit 0"], asks) as kept:
        said = engines.said_by_hook(kept.started)
        named = "onload.dev/hugepages" in said and "--device onload.dev/hugepages=2Mi" in said
        check(f"{engine.name} live: hugepages=2Mi is refused with the entry point that gives it", kept.started.status != 0 and named, f"{kept.text()}\n{said}")


def set_user_id(bench, engine):
    """A program that runs with its owner's rights is preloaded too: the loader believes the file where it ignores the environment."""
    script = "cp /usr/bin/sleep /usr/bin/slumber && chmod 4755 /usr/bin/slumber && exec sleep 1000"
    with Kept(engine, "setuid", "debian13", ["sh", "-c", script], request(bench)) as kept:
        started = run(*engine.binary, "exec", "-d", "--user", "1000", "setuid", "slumber", "1000")
        found = []
        deadline = time.monotonic() + 20
        while not found and time.monotonic() < deadline:
            time.sleep(0.5)
            found = [path.parent for path in Path("/proc").glob("[0-9]*/comm") if is_named(path, "slumber")]
        maps = [(process / "maps").read_text() for process in found]
        owners = [line for process in found for line in (process / "status").read_text().splitlines() if line.startswith("Uid:")]
        raised = bool(owners) and owners[0].split()[1:3] == ["1000", "0"]
        check(f"{engine.name} live: a set-user-ID program is preloaded", raised and all("libonload.so" in text for text in maps), f"{started}\n{owners}\n{maps}\n{kept.text()}")


def is_named(path, name):
    """Processes come and go while they are looked at."""
    try:
        return path.read_text().strip() == name
    except OSError:
        return False


def reloads_meanwhile(bench, engine):
    """systemd attaches its programs anew all the while: the containers start all the same, with their nodes."""
    reloading = subprocess.Popen(["sh", "-c", "while systemctl daemon-reload; do :; done"])
    try:
        for _ in range(5):
            with Kept(engine, "reloads", "debian13", stays(bench), request(bench)) as kept:
                root = matrix.facts(kept.report().partition("USER")[0])
                value = matrix.nodes_value(bench, root)
                check(f"{engine.name} live: nodes while systemd reloads again and again", value == "yes", f"{value}\n{kept.text()}")
    finally:
        reloading.kill()
        reloading.wait()


def in_a_row(bench, engine):
    """Nothing of ten containers stays on the host, whether they end well or are refused."""
    before = matrix.leftovers()
    for number in range(10):
        asks = bench.asks(False, "live") if number % 2 == 0 else ["hugepages=2Mi"]
        started = engine.run(f"row-{number}", "debian13", ["sh", "-c", "exit 0"], engines.Request("live", asks))
        engine.remove(f"row-{number}")
        check(f"{engine.name} live: ten containers in a row start and are refused in turn", (started.status == 0) == (number % 2 == 0), started)
    time.sleep(1)
    after = matrix.leftovers()
    for key, value in before.items():
        check(f"{engine.name} live: ten containers leave no {key}", after[key] == value, f"before: {value}\nafter: {after[key]}")


def parts(bench, table, wanted, full, guest):
    """Rows that the cells do not have: user namespaces always, all else with --full."""
    import session
    from parts import read_only_root, running_through_changes

    def on(name):
        return not wanted or any(word in name for word in wanted)

    for engine in [engine for engine in engines.all_engines() if "live" in getattr(engine, "doors", []) and "rootless" not in engine.name]:
        own = engine.name
        if guest != "debian13":
            engine.name = f"{guest}-{engine.name}"
        if not on(f"{engine.name}-live"):
            continue
        session.configure(engine.low)
        with Part(f"{engine.name} live: read-only root, user namespace"):
            if not full:
                read_only_root(bench, engine, "live")
            if own.startswith("podman"):
                user_namespace(bench, engine)
            if own.startswith("podman") and full:
                read_only_everywhere(bench, engine)
                called_as_prestart(bench, engine)
        if not full:
            continue
        with Part(f"{engine.name} live: updates and reapply"):
            if wanted:
                running_through_changes(bench, engine, "live", table.get("after-update", {}).get(engine.name, {}).get("live", "yes"))
            through_changes(bench, engine, guest)
            if guest == "debian13":
                reloads_meanwhile(bench, engine)
        with Part(f"{engine.name} live: mounts, volumes, refusals"):
            no_leaks(bench, engine)
            volumes(bench, engine)
            one_line(bench, engine)
            if guest == "debian13":
                set_user_id(bench, engine)
            in_a_row(bench, engine)
        if guest == "debian13":
            with Part(f"{engine.name} live: privileged, hardened"):
                privileged(bench, engine)
                hardened(bench, engine)
    if full and guest == "debian13" and any(on(name) for name in hostile.NAMES):
        hostile.parts(on)
    if full and guest == "debian13" and on("cgroupfs-live"):
        with Part("live without systemd's scopes"):
            without_systemd(bench)
