"""What --full tries beyond the cells: other images, a read-only root, two containers at once, restarts, reloads, updates, faults."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import devices
import engines
import matrix
from report import Part, check, log, must, run

SPECS = "/var/run/cdi"


class Kept:
    """A container that is removed at the end, whatever happens."""

    def __init__(self, engine, name, image, argv, request, **options):
        self.engine, self.name = engine, name
        self.started = engine.run(name, image, argv, request, **options)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.engine.exists(self.name):
            self.engine.remove(self.name)

    def report(self):
        return matrix.wait_for_report(self.engine, self.name)

    def text(self):
        return f"{self.started}\n{self.engine.output(self.name) if self.engine.exists(self.name) else ''}"


def stays(bench):
    return ["sh", "-c", bench.script()]


def nodes_now(bench, engine, name):
    """Whether an exec'd process opens the nodes now: asked after something happened to a running container."""
    done = engine.execute(name, ["probe", *(f"node={path}" for path in bench.nodes())])
    return matrix.nodes_value(bench, matrix.facts(done.out)), done


def read_only_root(bench, engine, door):
    """Nodes, libraries and preload arrive in a container that can write nothing."""
    rootless = engine.name == "podman-rootless"
    with Kept(engine, "read-only", "debian13", stays(bench), engines.Request(door, bench.asks(rootless, door)), read_only=True) as kept:
        text = kept.report()
        root = matrix.facts(text.partition("USER")[0])
        values = (matrix.nodes_value(bench, root), root.get("preload_init"), root.get("root"))
        check(f"{engine.name} {door}: a read-only root has nodes and preload", values == ("yes", "yes", "ro"), f"{values}\n{kept.text()}")


def other_classes(engine, door):
    """The classes that the cells do not ask for: TCPDirect, a profile, a clock that is only read, 1 GiB pages."""
    asks = ["zf=all", "profile=latency", "ptp=ptp0", "hugepages=1Gi"]
    script = ("probe node=/dev/sfc_char mount=/usr/lib64/libonload_zf.so env=EF_POLL_USEC env=LD_PRELOAD huge=/dev/hugepages-1Gi; "
              "(: </dev/ptp0) && echo clock read; (: 1<>/dev/ptp0) || echo clock not written; echo END-OF-REPORT; exec sleep 100")
    with Kept(engine, "others", "debian13", ["sh", "-c", script], engines.Request(door, asks)) as kept:
        text = kept.report()
    lines = ["node=/dev/sfc_char open " + matrix.number("/dev/sfc_char"), "mount=/usr/lib64/libonload_zf.so ", "env EF_POLL_USEC=100000",
             "huge=/dev/hugepages-1Gi yes 1073741824", "clock read", "clock not written"]
    missing = [line for line in lines if line not in text]
    check(f"{engine.name} {door}: zf, profile, ptp and 1 GiB pages", not missing and "LD_PRELOAD" not in text, f"missing: {missing}\n{kept.started}\n{text}")


def one_container_of_a_pod(engine):
    """An annotation that names a container is for it alone."""
    for named, value in [("app", "open " + matrix.number("/dev/onload")), ("other", "absent")]:
        request = engines.Request("wrapper", [], {f"onload.dev/nic-nodes.{named}": "all"})
        with Kept(engine, "app", "debian13", ["sh", "-c", "probe node=/dev/onload; echo END-OF-REPORT; exec sleep 100"], request) as kept:
            answer = matrix.facts(kept.report()).get("node=/dev/onload")
            check(f"{engine.name} wrapper: an annotation for {named} and a container app: {value.split()[0]}", answer == value, f"{answer}\n{kept.text()}")


def foreign_images(guest):
    """Images whose libc cannot load this guest's library. The one of Debian 12 is built with Debian 12's own glibc."""
    if guest == "debian12":
        log("not tried: an image with a glibc older than the library needs (this guest's library needs no newer one)")
        return ["musl"]
    return ["debian12", "musl"]


def foreign_libc(engine, door, images):
    """An image whose libc cannot load the library.

    The doors of ours look first and refuse with the reason. A CDI device is only data: glibc's loader has to say it, and musl's,
    which searches neither of our directories, passes over a preload that it does not find.
    """
    words = {"debian12": "GLIBC_2.38", "musl": "ipc_lock"}
    programs = {"debian12": ["sh", "-c", "exit 0"], "musl": ["/usr/bin/probe-musl", "limits"]}
    for image, program in [(image, programs[image]) for image in images]:
        with Kept(engine, f"libc-{image}", image, program, engines.Request(door, ["nic=all"])) as kept:
            if door == "cdi":
                deadline = time.monotonic() + 10
                while words[image] not in kept.text() and time.monotonic() < deadline:
                    time.sleep(0.5)
                check(f"{engine.name} {door}: {image}'s loader says {words[image]}", words[image] in kept.text(), kept.text())
            else:
                reason = {"debian12": "glibc", "musl": "musl"}[image]
                said = engines.said_by_hook(kept.started).lower()
                check(f"{engine.name} {door}: {image} is refused with the reason", kept.started.status != 0 and reason in said, f"{kept.text()}\n{said}")


def skipped_libc(engine, door, images):
    """With on-incompatible = "skip" the same images start, without the preload."""
    config = Path("/etc/onload-ctk/config.toml")
    before = config.read_text(encoding="ascii")
    config.write_text(before.replace("[annotations]\n", '[annotations]\non-incompatible = "skip"\n'), encoding="ascii")
    try:
        programs = {"debian12": ["sh", "-c", "probe preload env=LD_PRELOAD; exec sleep 60"], "musl": ["/usr/bin/probe-musl", "limits", "env=LD_PRELOAD"]}
        for image, argv in [(image, programs[image]) for image in images]:
            with Kept(engine, f"skip-{image}", image, argv, engines.Request(door, ["nic=all"])) as kept:
                time.sleep(2)
                check(f"{engine.name} {door}: {image} starts without the preload when told to skip",
                      kept.started.status == 0 and "LD_PRELOAD=" not in kept.text(), kept.text())
    finally:
        config.write_text(before, encoding="ascii")


def pingpong(bench, engine, door):
    """Two containers at once, and an RDMA connection between them."""
    rdma = bench.found["rdma"]
    gid = gid_index(rdma)
    tool = f"ibv_rc_pingpong -d {rdma} -g {gid} -n 20"
    request = engines.Request(door, [f"rdma={rdma}"])
    with Kept(engine, "ping", "debian13", ["sh", "-c", f"{tool}; echo END-OF-REPORT; exec sleep 100"], request) as server:
        time.sleep(2)
        with Kept(engine, "pong", "debian13", ["sh", "-c", f"{tool} 127.0.0.1; echo END-OF-REPORT; exec sleep 100"], request) as client:
            text = client.report()
            check(f"{engine.name} {door}: ibv_rc_pingpong between two containers", re.search(r"20 iters in", text) is not None,
                  f"client: {client.text()}\nserver: {server.text()}")


def rootless_refusals(engine, door):
    """hugetlbfs is not for a plain user: the container that asks for it does not start, one that does not is left alone."""
    started = starts(engine, door, ["hugepages=2Mi"])
    said = engines.said_by_hook(started)
    named = door == "cdi" or "hugepages" in said
    check(f"{engine.name} {door}: hugepages=2Mi is refused", started.status != 0 and named, f"{started}\n{said}")


def gid_index(rdma):
    """The first GID that is an IPv4 address of the host, as RoCE v2 wants."""
    ports = Path(f"/sys/class/infiniband/{rdma}/ports/1/gids")
    for index in sorted(int(path.name) for path in ports.iterdir()):
        if ":ffff:" in devices.read(ports / str(index)):
            return index
    return 0


def running_through_changes(bench, engine, door, after_update):
    """systemd reloads, the engine updates and restarts a container that runs: the nodes stay."""
    rootless = engine.name == "podman-rootless"
    name = "changing"
    with Kept(engine, name, "debian13", stays(bench), engines.Request(door, bench.asks(rootless, door))) as kept:
        kept.report()
        must("systemctl", "daemon-reload", timeout=120)
        value, done = nodes_now(bench, engine, name)
        check(f"{engine.name} {door}: nodes after daemon-reload", value == "yes", f"{value}\n{done}\n{kept.text()}")
        if not hasattr(engine, "update"):
            return
        updated = engine.update(name)
        value, done = nodes_now(bench, engine, name)
        check(f"{engine.name} {door}: nodes after update: {after_update}", updated.status == 0 and value == after_update, f"{updated}\n{value}\n{done}")
        restarted = engine.restart(name, door)  # podman looks for hooks at each start
        value, done = nodes_now(bench, engine, name)
        check(f"{engine.name} {door}: nodes after restart", restarted.status == 0 and value == "yes", f"{restarted}\n{value}\n{done}")


def update_of_plain_device(engine):
    """The control for after-update: a device given by path is in the engine's stored configuration, and an update keeps it."""
    with Kept(engine, "control", "debian13", ["sleep", "1000"], engines.Request("plain", []), more=["--device=/dev/onload"]):
        updated = engine.update("control")
        done = engine.execute("control", ["probe", "node=/dev/onload"])
        check(f"{engine.name}: a device given by path opens after update", "node=/dev/onload open" in done.out, f"{updated}\n{done}")


# Faults. They change the host: each puts back what it changed.

def generate():
    return run("onload-ctk", "cdi", "generate")


def spec_names():
    return sorted(path.name for path in Path(SPECS).glob("onload.dev-*"))


def offered(kind):
    """The devices of a class that engines can give, by their own names."""
    spec = Path(SPECS) / f"onload.dev-{kind}.json"
    return [device["name"] for device in json.loads(spec.read_text(encoding="utf-8"))["devices"]] if spec.exists() else []


def starts(engine, door, asks, name="fault"):
    with Kept(engine, name, "debian13", ["sh", "-c", "exit 0"], engines.Request(door, asks)) as kept:
        return kept.started


def modules_gone_and_back(bench, engine, door):
    """Without the modules the kind is gone and asking for it is an error; with other majors the specs still work."""
    devices.unload_stand_ins()
    try:
        stale = starts(engine, door, ["nic=all"])
        check("without its modules a stale nic spec starts nothing", stale.status != 0, stale)
        done = generate()
        check("without its modules generate drops the nic specs", done.status == 0 and "onload.dev-nic.json" not in spec_names(), f"{done}\n{spec_names()}")
        refused = starts(engine, door, ["nic=all"])
        check("without its modules a container that asks is refused by name", refused.status != 0 and "nic" in refused.err, refused)
    finally:
        devices.load_stand_ins(spare_majors=2)
        devices.accelerate(bench.found["interfaces"])
    done = generate()
    check("with other majors generate offers nic again", done.status == 0 and "onload.dev-nic.json" in spec_names(), f"{done}\n{spec_names()}")
    values, text = matrix.cell(bench, engine, door)
    check("with other majors the nodes have the new numbers", values.get("nodes") == "yes", f"{values}\n{text}")


def rebound_vf(bench, engine, door):
    """A VF that went back to the kernel's driver while its spec stands: the group's node is another device's, or nobody's."""
    address, group = bench.found["vfio"][0]
    device = Path(f"/sys/bus/pci/devices/{address}")
    devices.write("/sys/bus/pci/drivers/vfio-pci/unbind", address)
    devices.write(device / "driver_override", "igbvf")
    devices.write("/sys/bus/pci/drivers_probe", address)
    made = f"/dev/vfio/{group}"
    stand_in = not os.path.exists(made)
    try:
        if stand_in:  # a node of the same name, as a group that was numbered anew would have
            os.mknod(made, 0o600 | 0o020000, os.stat(f"/dev/vfio/{bench.other_group}").st_rdev)
        refused = starts(engine, door, [f"vfio={address}"])
        said = engines.said_by_hook(refused)
        check(f"a VF that was rebound is refused by its address: {door}", refused.status != 0 and address in said, f"{refused}\n{said}")
    finally:
        if stand_in:
            os.unlink(made)
        devices.to_vfio(address)
        devices.wait_for(made)


def full_disk(bench):
    """No room in the spec directory: generate says so and what stood there stays whole."""
    before = {name: Path(SPECS, name).read_bytes() for name in spec_names()}
    must("mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", SPECS)
    try:
        for name, data in before.items():
            Path(SPECS, name).write_bytes(data)
        with open(f"{SPECS}/filler", "wb") as filler:
            try:
                while True:
                    filler.write(b"x" * 4096)
                    filler.flush()
            except OSError:
                pass
        changed = bench.found["interfaces"][1]
        devices.write("/sys/module/sfc_resource/afxdp/unregister", changed)
        try:
            done = generate()
        finally:
            devices.accelerate(bench.found["interfaces"])
        check("generate on a full disk ends with 2 and names the directory", done.status == 2 and SPECS.removeprefix("/var") in done.err, done)
        whole = all(Path(SPECS, name).read_bytes() == data for name, data in before.items())
        extra = [name for name in os.listdir(SPECS) if name not in before and name not in ("filler", ".onload-ctk-lock", ".onload-ctk-manifest")]
        check("generate on a full disk leaves every spec whole and nothing else", whole and not extra, f"whole: {whole}, extra: {extra}")
    finally:
        must("umount", SPECS)
    check("generate works again with room", generate().status == 0)


def killed_generate(times=100):
    """kill -9 at moments spread over a whole run: what stands there is always valid, and complete in the end.

    One time in four the directory is empty at first; else what an earlier run left is replaced by specs that say something else.
    """
    start = time.monotonic()
    check("generate before it is killed", generate().status == 0)
    length = time.monotonic() - start
    other = Path("/run/machine/other.toml")
    other.write_text("[cdi]\nfdtable-size = 65536\n", encoding="ascii")
    broken = []
    for number in range(times):
        if number % 4 == 0:
            shutil.rmtree(SPECS, ignore_errors=True)
            os.makedirs(SPECS)
        options = [f"--config={other}"] if number % 2 else []
        child = subprocess.Popen(["onload-ctk", *options, "cdi", "generate"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(length * number / times)
        child.send_signal(signal.SIGKILL)
        child.wait()
        names = [f"{SPECS}/{name}" for name in spec_names()]
        if names:
            valid = run("onload-ctk", "cdi", "validate", *names)
            if valid.status:
                broken.append(f"after {length * number / times:.3f} s: {valid}")
    check(f"{times} kills of generate leave only whole specs", not broken, "\n".join(broken))
    done = generate()
    check("generate after the kills", done.status == 0, done)
    left = sorted(name for name in os.listdir(SPECS) if name not in spec_names())
    check("generate after the kills leaves no temporary file", left == [".onload-ctk-lock", ".onload-ctk-manifest"], left)


def killed_containers(bench, engine, door, times=8):
    """The engine's client killed while a container is made: nothing of ours stays once others have started.

    podman removes such a container without its runtime, so what the wrapper remembers of it goes with a later start: about every
    second one looks at a few that are older than a minute (hooks/src/record/runtime_record.rs, SWEEP_AFTER). A container that the runtime still has keeps its
    record, so those that podman forgot are deleted first, as their administrator would. They hold what only one container may have, so none
    asks for that: leases.clients_killed does.
    """
    asks = [ask for ask in bench.asks(False) if not ask.startswith("vfio=")]
    # The first container makes the directories that stay.
    engine.run("first", "debian13", ["true"], engines.Request(door, asks))
    engine.remove("first")
    before = matrix.leftovers()
    for number in range(times):
        request = engines.Request(door, asks)
        options = ["--device=" + device for device in request.devices]
        options += [f"--annotation={key}={value}" for key, value in request.annotations.items()]
        child = subprocess.Popen([*engine.command(request), "run", "-d", "--name", f"killed-{number}", "--network=host", *options,
                                  *engine.runtime_option(request), "localhost/debian13:1", "sh", "-c", "exit 0"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.4 * number)
        child.send_signal(signal.SIGKILL)
        child.wait()
        time.sleep(2)
        engine.remove(f"killed-{number}")
    known = forgotten_by_the_engine(engine)
    log(f"{engine.name} {door}: the runtime still has {len(known)} of {times} containers that the engine has forgotten")
    time.sleep(61)
    for number in range(8 * times):
        if not records():
            break
        engine.run(f"later-{number}", "debian13", ["true"], engines.Request(door, []))
        engine.remove(f"later-{number}")
    after = matrix.leftovers()
    check(f"{engine.name} {door}: containers killed while made leave no state once others have started", not records(), about_records(engine))
    for key in ("specs", "huge"):
        check(f"{engine.name} {door}: containers killed while made leave no {key} once others have started", after[key] == before[key], f"before: {before[key]}\nafter: {after[key]}")


def records():
    """What the wrapper remembers of containers. What is not of one container has a name with @ before it, and stays."""
    paths = [*Path("/run/onload-ctk").glob("*"), *Path("/run/onload-ctk/@runtimes").glob("*")]
    return [path for path in paths if not path.name.startswith("@")]


def about_records(engine):
    """Each record with what it says, its age, and who still has the container."""
    lines = [str(run(*engine.binary, "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.State}} {{.Status}}"))]
    for path in records():
        name = path.name.partition("@")[0]
        says = path.read_text() if path.is_file() else "a directory"
        state = [str(found) for found in states(name)]
        lines.append(f"{path}: {says}, {time.time() - path.lstat().st_mtime:.0f} s old, state {state}")
    return "\n".join(lines)


def forgotten_by_the_engine(engine):
    """Deletes the containers that a low-level runtime has and the engine has not; their directories of state."""
    engines_own = set(run(*engine.binary, "ps", "--all", "--quiet", "--no-trunc").out.split())
    left = [path for path in states("*") if path.name not in engines_own]
    for path in left:
        must(path.parent.name, "delete", "--force", path.name)
    return left


def states(name):
    """Where runc and crun keep containers of this name."""
    return [path for runtime in ("runc", "crun") for path in Path("/run", runtime).glob(name)]


def all_parts(bench, table, wanted, doors, product, guest):
    """Every part for every engine and door that has it and starts containers by it."""
    import session

    def on(name):
        return not wanted or any(word in name for word in wanted)

    images = foreign_images(guest)
    for engine in engines.all_engines():
        if guest != "debian13":
            engine.name = f"{guest}-{engine.name}"
        for door in [door for door in doors if door in engine.doors]:
            if not on(f"{engine.name}-{door}") or session.expected(table, engine.name, door)["start"] != "yes":
                continue
            if product:
                session.configure(engine.low)
            with Part(f"{engine.name} {door}: read-only root"):
                read_only_root(bench, engine, door)
            with Part(f"{engine.name} {door}: images with another libc"):
                foreign_libc(engine, door, images)
                if door != "cdi":
                    skipped_libc(engine, door, images)
            if "rootless" in engine.name:
                rootless_refusals(engine, door)
            elif guest == "debian13" and door != "live":
                with Part(f"{engine.name} {door}: other classes"):
                    other_classes(engine, door)
                    if (engine.name, door) == ("cri", "wrapper"):
                        one_container_of_a_pod(engine)
            with Part(f"{engine.name} {door}: two containers and RDMA between them"):
                pingpong(bench, engine, door)
            if door == "cdi" and hasattr(engine, "update") and "rootless" not in engine.name:
                update_of_plain_device(engine)
            with Part(f"{engine.name} {door}: reload, update, restart"):
                running_through_changes(bench, engine, door, table.get("after-update", {}).get(engine.name, {}).get(door, "yes"))
    if not product or guest != "debian13":
        return
    podman = engines.Podman("crun")
    faults = [("modules", lambda: modules_gone_and_back(bench, podman, "cdi")), ("rebound", lambda: rebound_vf(bench, podman, "cdi")),
              ("rebound-wrapper", lambda: rebound_vf(bench, podman, "wrapper")), ("full-disk", lambda: full_disk(bench)),
              ("killed-generate", killed_generate), ("killed-containers", lambda: killed_containers(bench, podman, "wrapper"))]
    for name, fault in faults:
        if on(f"fault-{name}"):
            with Part(f"fault: {name}"):
                fault()
