"""The package in the guest: installed, followed through events and a reboot, upgraded, removed, and what the pages say on the way.

The devices are up before it comes, as on a host that has had them for long; the engines know nothing of it.
"""

import json
import os
import re
import shutil
import time
from pathlib import Path

import devices
import engines
import managers
import removal
import report
from parts import offered
from report import Part, check, must, run

PHASE = Path("/var/lib/machine/package")
LEASES = Path("/run/onload-ctk/@leases")
LEASES_BEFORE = Path("/var/lib/machine/leases")
COPY = Path("/var/lib/machine/devices")
SPECS = Path("/var/run/cdi")
NAME = "survivor"
SERVICE = "onload-cdi.service"
RUNS = Path("/run/package-runs")
DROP_IN = Path("/run/systemd/system/onload-cdi.service.d")

DOCKER = '{\n  "bridge": "none",\n  "iptables": false,\n  "ip6tables": false\n}\n'
CONTAINERD = """version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]
    BinaryName = "/usr/bin/crun"
"""
DEVICES_UNIT = f"""[Unit]
Description=The guest's devices
Before=docker.service containerd.service {SERVICE}
After=systemd-udevd.service dev-hugepages.mount sys-kernel-debug.mount

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -c "import sys; sys.path.insert(0, '{COPY}'); import devices; devices.bring_up()"

[Install]
WantedBy=multi-user.target
"""
PODMAN_UNIT = f"""[Unit]
Description=A container that podman starts at boot
After={SERVICE}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/podman run --rm --network=host --device=onload.dev/nic=all localhost/debian13:1 probe node=/dev/onload

[Install]
WantedBy=multi-user.target
"""


def files():
    """Every file and link that a package could leave, but for what keeping books about packages writes."""
    done = must("find", "/etc", "/usr", "/opt", "/var/lib/systemd", "-xdev", "-not", "-type", "d", "-printf", "%p %y %l\n")
    # Of these some may not be there.
    done.out += run("find", "/run/onload-cdi", "/run/onload-ctk", "/run/cdi", "-printf", "%p\n").out
    skip = ("/etc/ld.so.cache", "/usr/share/mime", "/var/lib/systemd/timers", "/var/lib/systemd/random-seed", "__pycache__")
    return {line for line in done.out.splitlines() if not any(word in line for word in skip)}


def specs():
    """Each specification with its bytes and the time of its last change."""
    found = {}
    for path in sorted(SPECS.glob("onload.dev-*.json")) if SPECS.exists() else []:
        try:
            found[path.name] = (path.read_bytes(), path.stat().st_mtime_ns)
        except FileNotFoundError:
            pass
    return found


def wait_until(condition, seconds=45):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.3)
    return condition()


def quiet(seconds=60):
    """Waits until no run is under way and none is owed."""
    def idle():
        state = run("systemctl", "show", "--value", "-p", "ActiveState", SERVICE).out.strip()
        return state in ("inactive", "failed") and not os.path.exists("/run/onload-cdi/stale")
    return wait_until(lambda: idle() and (time.sleep(1) or idle()), seconds)


def runs():
    return len(RUNS.read_text().splitlines()) if RUNS.exists() else 0


def drop_in(text):
    DROP_IN.mkdir(parents=True, exist_ok=True)
    (DROP_IN / "test.conf").write_text(f"[Service]\n{text}\n", encoding="ascii")
    must("systemctl", "daemon-reload", timeout=120)


def docker(*words, **options):
    return run("docker", *words, timeout=120, **options)


def plain_engines(when):
    """Containers that ask for nothing, and builds."""
    for engine in (engines.Docker(), engines.Podman("crun"), engines.Podman("runc"), engines.Ctr()):
        started = engine.run("plain", "debian13", ["sleep", "1000"], engines.Request("plain", []))
        engine.remove("plain")
        check(f"{when}: {engine.name} starts a plain container", started.status == 0, started)
    context = Path("/var/lib/machine/context")
    context.mkdir(parents=True, exist_ok=True)
    (context / "Containerfile").write_text("FROM localhost/debian13:1\nRUN true\n", encoding="ascii")
    built = run("podman", "build", "--network=host", "--no-cache", "-t", "built", str(context), timeout=180)
    check(f"{when}: podman build runs a step", built.status == 0, built)
    working = run("buildah", "from", "localhost/debian13:1").out.strip()
    built = run("buildah", "run", "--network=host", working, "--", "true", timeout=90)
    check(f"{when}: buildah run runs a step", built.status == 0, built)
    run("buildah", "rm", working)


def installed(before, manager):
    done = manager.install()
    check(f"{manager.installs} installs the package", done.status == 0, done)
    new = {line.split()[0] for line in files() - before}
    engine_dirs = ("/etc/cdi", "/etc/docker", "/etc/containerd", "/etc/containers", "/etc/crio", "/usr/share/containers", "/etc/nomad.d")
    check("nothing goes into a directory that an engine reads", not [path for path in new if path.startswith(engine_dirs)], new)
    for unit in ("onload-cdi.path", "onload-cdi.timer"):
        state = run("systemctl", "is-active", unit)
        check(f"{unit} is active after the installation", state.out.strip() == "active", state)
    enabled = run("systemctl", "is-enabled", SERVICE, "onload-cdi.path", "onload-cdi.timer")
    check("the units are enabled", enabled.out.split() == ["enabled"] * 3, enabled)
    state = run("systemctl", "is-enabled", "onload-host.service")
    check("the unit that changes the host is not", state.out.strip() == "disabled", state)
    state = run("systemctl", "is-enabled", "onload-nri.service")
    check("nor is the one that answers pods", state.out.strip() == "disabled", state)
    check("the installation writes the specifications", {"onload.dev-nic.json", "onload.dev-rdma.json", "onload.dev-vfio.json"} <= set(specs()),
          f"{specs().keys()}\n{run('journalctl', '-b', '-u', SERVICE, '--no-pager').out}")
    verified = run("systemd-analyze", "verify", "/usr/lib/systemd/system/onload-cdi.service", "/usr/lib/systemd/system/onload-cdi.path",
                   "/usr/lib/systemd/system/onload-cdi.timer", timeout=120)
    complaints = [line for line in verified.err.splitlines() if "onload" in line and "man " not in line]
    check("systemd-analyze verify has nothing to say", not complaints, verified)
    rules = run("udevadm", "verify", "/usr/lib/udev/rules.d/90-onload-ctk.rules")
    check("udevadm verify has nothing to say", rules.status == 0, rules)


def configured():
    """The engines are told, checked with their own readers, told again, and give what is asked for."""
    for engine in ("docker", "containerd", "podman"):
        done = run("onload-ctk", "runtime", "configure", "--runtime", engine, "--allow", "nic,rdma", "--restart", timeout=180)
        check(f"runtime configure --runtime {engine} --restart", done.status == 0, done)
        again = run("onload-ctk", "runtime", "configure", "--runtime", engine, "--allow", "nic,rdma", "--restart")
        check(f"a second run for {engine} changes and restarts nothing", again.status == 0 and "nothing to change" in again.err and "restarted" not in again.err, again)
    done = run("dockerd", "--validate", "--config-file", "/etc/docker/daemon.json")
    check("dockerd --validate takes its file", done.status == 0, done)
    done = run("containerd", "config", "dump")
    check("containerd config dump has both runtimes", "runtimes.onload" in done.out and "runtimes.other" in done.out, done)
    done = run("podman", "info", "--format", "{{.Host.OCIRuntime.Name}}")
    check("podman info takes its files", done.status == 0, done)
    asks = {
        "docker by --device": ("docker", "run", "--rm", "--network=host", "--device=onload.dev/nic=all"),
        "podman by --device": ("podman", "run", "--rm", "--network=host", "--device=onload.dev/nic=all"),
        "docker by annotation": ("docker", "run", "--rm", "--network=host", "--runtime=onload", "--annotation=onload.dev/nic=all"),
        "podman by annotation": ("podman", "run", "--rm", "--network=host", "--annotation=onload.dev/nic=all"),
        "podman by runtime": ("podman", "--runtime=onload", "run", "--rm", "--network=host", "--annotation=onload.dev/nic=all"),
    }
    for name, command in asks.items():
        done = run(*command, "localhost/debian13:1", "probe", "node=/dev/onload", timeout=90)
        check(f"after configure, {name}: the node opens", "node=/dev/onload open" in done.out, done)
    for engine, words in {"docker": "CDI device injection failed: unresolvable CDI devices onload.dev/nic=none",
                          "podman": "setting up CDI devices: unresolvable CDI devices onload.dev/nic=none"}.items():
        done = run(engine, "run", "--rm", "--network=host", "--device=onload.dev/nic=none", "localhost/debian13:1", "true", timeout=90)
        check(f"{engine} says of a device that is not there what the page on troubleshooting says", words in done.err, done)
    refused = docker("run", "--rm", "--network=host", "--runtime=onload", "--annotation=onload.dev/vfio=x", "localhost/debian13:1", "true")
    check("a class that --allow does not name is refused", refused.status != 0 and "vfio" in refused.err, refused)
    plain_engines("configured")


def virtual_functions(function, count):
    path = f"/sys/bus/pci/devices/{function}/sriov_numvfs"
    devices.write(path, 0)
    if count:
        devices.write(path, count)


def events(found):
    """Without the timer: what comes and goes is in the specifications by udev's word alone."""
    must("systemctl", "stop", "onload-cdi.timer")
    drop_in(f"ExecStartPost=/bin/sh -c 'echo run >>{RUNS}'")
    quiet()
    old = specs()
    count = runs()
    must("systemctl", "start", SERVICE, timeout=60)
    check("a run that changes nothing writes nothing", runs() == count + 1 and specs() == old, run("journalctl", "-b", "-u", SERVICE, "--no-pager").out)

    function, _ = found["vfio"][1]
    parent = found["functions"][1]
    virtual_functions(parent, 0)
    check("a virtual function that goes is gone from the specifications", wait_until(lambda: function not in offered("vfio")), offered("vfio"))
    virtual_functions(parent, devices.VFS)
    devices.to_vfio(function)
    check("one that is bound to vfio is in them", wait_until(lambda: function in offered("vfio")), offered("vfio"))

    must("rdma", "link", "delete", found["rdma"])
    check("an RDMA device that goes is gone", wait_until(lambda: found["rdma"] not in offered("rdma")), offered("rdma"))
    must("rdma", "link", "add", found["rdma"], "type", "rxe", "netdev", found["interfaces"][0])
    check("one that comes is there", wait_until(lambda: found["rdma"] in offered("rdma")), offered("rdma"))

    devices.unload_stand_ins()
    check("Onload's modules go, and with them its specifications", wait_until(lambda: "onload.dev-nic.json" not in specs()), specs().keys())
    devices.load_stand_ins()
    devices.accelerate(found["interfaces"])
    check("they come back", wait_until(lambda: "onload.dev-nic.json" in specs()), specs().keys())

    quiet()
    count = runs()
    start = time.monotonic()
    # As many events of PCI functions as a thousand new virtual functions make.
    functions = sorted(Path("/sys/bus/pci/devices").iterdir())
    for number in range(1000):
        devices.write(functions[number % len(functions)] / "uevent", "add")
    sent = time.monotonic() - start
    quiet(300)
    report.log(f"a storm of 1000 events: sent in {sent:.1f} s, over after {time.monotonic() - start:.1f} s, {runs() - count} runs")
    check("a storm of 1000 events is served by at most four runs", 0 < runs() - count <= 4, f"{runs() - count} runs")
    state = run("systemctl", "show", "--value", "-p", "Result", SERVICE)
    check("and the service has not failed", state.out.strip() == "success", state)


def during_a_run(found):
    """An event after a run has looked at the host and before it ends."""
    drop_in(f"ExecStartPost=/bin/sh -c 'echo run >>{RUNS}'\nExecStart=/bin/sleep 8")
    quiet()
    count = runs()
    must("systemctl", "start", "--no-block", SERVICE)
    wait_until(lambda: run("systemctl", "show", "--value", "-p", "ActiveState", SERVICE).out.strip() == "activating", 10)
    time.sleep(4)
    must("rdma", "link", "delete", found["rdma"])
    early = run("systemctl", "show", "--value", "-p", "ActiveState", SERVICE).out.strip()
    check("the event comes during a run", early == "activating" and runs() == count, early)
    quiet(90)
    check("it is followed by one more run", runs() == count + 2 and found["rdma"] not in offered("rdma"), f"{runs() - count} runs, {offered('rdma')}")
    drop_in(f"ExecStartPost=/bin/sh -c 'echo run >>{RUNS}'")
    must("rdma", "link", "add", found["rdma"], "type", "rxe", "netdev", found["interfaces"][0])
    check("and the device that comes back is there again", wait_until(lambda: found["rdma"] in offered("rdma")), offered("rdma"))


def failing():
    """A run that fails leaves what is there and says why; the path unit sees the file mended."""
    quiet()
    config = Path("/etc/onload-ctk/config.toml")
    text, old = config.read_text(), specs()
    config.write_text(text + "\n[no-such-section]\n")
    quiet()
    run("systemctl", "start", SERVICE)
    state = run("systemctl", "show", "--value", "-p", "Result", SERVICE)
    said = run("journalctl", "-b", "-u", SERVICE, "--no-pager", "-n", "20").out
    check("a run with a broken configuration fails", state.out.strip() != "success", state)
    check("it says why in the journal", "config.toml" in said and "no-such-section" in said, said)
    check("it leaves the specifications as they are", specs() == old, specs().keys())
    config.write_text(text)
    check("the configuration mended, it runs by itself", wait_until(lambda: run("systemctl", "show", "--value", "-p", "Result", SERVICE).out.strip() == "success"), said)
    shutil.rmtree(DROP_IN)
    must("systemctl", "daemon-reload", timeout=120)
    must("systemctl", "start", "onload-cdi.timer")


def blocks():
    """The commands of the pages that want a real host, and the files that they want, page by page."""
    pages = [Path("/run/machine/README.md"), *sorted(Path("/run/machine/docs").glob("*.md"))]
    for page in pages:
        for place, text in re.findall(r"^```(sh guest|sh guest-user|(?:ini|yaml) /\S+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            # These install and remove the package, which has its own part.
            if not text.lstrip().startswith("dpkg "):
                yield page.name, place, text


def pages(found):
    names_here = {"docker.io/library/debian:13": "localhost/debian13:1", "debian:13": "localhost/debian13:1",
                  "docker.io/library/redis:7": "localhost/redis:1", "redis:7": "localhost/redis:1", "mlx5_0": found["rdma"],
                  "0000:81:10.0": found["vfio"][0][0], "0000:81:00.0": found["functions"][0], "ens1f0": found["interfaces"][0],
                  "echo 512 >": "echo 48 >"}
    written = []
    for page, place, text in blocks():
        makes_functions = "sriov_numvfs" in text
        if makes_functions:
            # From the beginning, as the page has it.
            virtual_functions(found["functions"][0], 0)
            quiet()
        for name, here in names_here.items():
            text = text.replace(name, here)
        if not place.startswith("sh "):
            path = Path(place.split(" ", 1)[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
            continue
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = run(*(engines.as_tester(*command) if place == "sh guest-user" else command), timeout=240, cwd="/")
        check(f"{page}: {text.splitlines()[0][:70]}", done.status == 0, f"{text}\n{done}")
        if makes_functions:
            function = found["vfio"][0][0]
            driver = os.path.basename(os.path.realpath(f"/sys/bus/pci/devices/{function}/driver"))
            check(f"{page}: the function is vfio's and is offered", driver == "vfio-pci" and wait_until(lambda: function in offered("vfio")), f"{driver}\n{offered('vfio')}")
    for path in written:
        path.unlink()


def leased_before(function):
    """A container that has a function for itself when the host goes down, and a copy of its lease."""
    started = docker("run", "-d", "--name", "leased", "--network=host", f"--device=onload.dev/vfio={function}", "localhost/debian13:1", "sleep", "100000")
    leases = sorted(LEASES.glob(f"vfio={function}#*"))
    check("before the reboot a container holds a lease", started.status == 0 and len(leases) == 1, f"{started}\n{leases}")
    LEASES_BEFORE.mkdir(parents=True)
    for lease in leases:
        shutil.copy(lease, LEASES_BEFORE)


def leased_after():
    """/run is empty after a reboot. Put back there, the lease still names a process number, which by now may be anybody's."""
    docker("rm", "-f", "leased")
    LEASES.mkdir(mode=0o700, parents=True, exist_ok=True)
    for lease in sorted(LEASES_BEFORE.iterdir()):
        shutil.copy(lease, LEASES)
        function = lease.name.removeprefix("vfio=").partition("#")[0]
        told = run("onload-ctk", "lease", "list", "--format", "json")
        states = [each["state"] for each in json.loads(told.out)["leases"]]
        started = docker("run", "--rm", "--network=host", f"--device=onload.dev/vfio={function}", "localhost/debian13:1", "true")
        check("after a reboot a lease of the boot before does not hold", states == ["ended"] and started.status == 0, f"{told}\n{started}")


def first_boot():
    with Part("devices"):
        found = devices.bring_up()
    Path("/etc/docker/daemon.json").write_text(DOCKER)
    Path("/etc/containerd/config.toml").write_text(CONTAINERD)
    with Part("engines"):
        engines.prepare()
    before = files()
    with Part("installation"):
        installed(before, managers.Dpkg())
    with Part("engines as before"):
        plain_engines("installed")
    with Part("runtime configure"):
        configured()
    with Part("events"):
        events(found)
    with Part("an event during a run"):
        during_a_run(found)
    with Part("a failing run"):
        failing()
    with Part("the pages"):
        pages(found)
    leased_before(found["vfio"][0][0])
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ("devices.py", "report.py"):
        shutil.copy(f"/run/machine/guest/{name}", COPY)
    Path("/etc/systemd/system/machine-devices.service").write_text(DEVICES_UNIT, encoding="ascii")
    must("systemctl", "daemon-reload", timeout=120)
    must("systemctl", "enable", "machine-devices.service", "docker.service", "containerd.service", timeout=120)
    must("docker", "run", "-d", "--name", NAME, "--restart=always", "--network=host", "--runtime=onload", "--annotation=onload.dev/nic=all",
         "localhost/debian13:1", "sleep", "100000", timeout=120)
    must("docker", "run", "-d", "--name", "by-cdi", "--restart=always", "--network=host", "--device=onload.dev/nic=all",
         "localhost/debian13:1", "sleep", "100000", timeout=120)
    Path("/etc/systemd/system/machine-first.service").write_text(PODMAN_UNIT, encoding="ascii")
    must("systemctl", "daemon-reload", timeout=120)
    must("systemctl", "enable", "machine-first.service")
    PHASE.parent.mkdir(parents=True, exist_ok=True)
    PHASE.write_text("\n".join(sorted(before)))
    report.log("going down for a reboot")
    os.sync()
    run("systemctl", "reboot")
    time.sleep(600)


def docker_starts_no_cdi(name, status):
    """docker before moby's pull request 49990 (May 2025) restores its containers before it knows of CDI; started by hand they come."""
    state = docker("inspect", "--format", "{{.State.Running}} {{.State.Error}}", name)
    check("after a reboot docker 26 starts no CDI container by itself", state.out.startswith("false") and "cdi" in state.out, f"{state}\n{status}")
    started = docker("start", name)
    check("after a reboot docker starts a CDI container when asked", started.status == 0, started)


def second_boot():
    with Part("after the reboot"):
        for _ in range(120):
            if run("systemctl", "is-active", "docker.service").out.strip() == "active":
                break
            time.sleep(1)
        status = run("systemctl", "status", "--no-pager", SERVICE, "machine-devices.service", "docker.service")
        opened = wait_until(lambda: "node=/dev/onload open" in docker("exec", NAME, "probe", "node=/dev/onload").out, 60)
        check("after a reboot docker's own container has its nodes, with nothing done by hand", opened, status)
        for name, command in {
                "docker run --device": ("docker", "run", "--rm", "--network=host", "--device=onload.dev/nic=all", "localhost/debian13:1", "probe", "node=/dev/onload"),
                "docker run by annotation": ("docker", "run", "--rm", "--network=host", "--runtime=onload", "--annotation=onload.dev/nic=all",
                                             "localhost/debian13:1", "probe", "node=/dev/onload")}.items():
            done = run(*command, timeout=90)
            check(f"after a reboot, {name}: the node opens", "node=/dev/onload open" in done.out, done)
        docker_starts_no_cdi("by-cdi", status)
        wait_until(lambda: run("systemctl", "is-active", "machine-first.service").out.strip() not in ("activating", "inactive"), 90)
        first = run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "machine-first.service").out
        check("after a reboot the first podman container has its nodes", "node=/dev/onload open" in first, first)
        order = run("systemctl", "show", "-p", "After", "--value", "docker.service").out
        check("docker starts after the specifications are written", SERVICE in order.split(), order)
        leased_after()
    with Part("upgrade"):
        pid = docker("inspect", "-f", "{{.State.Pid}}", NAME).out.strip()
        docker("run", "-d", "--name", "kept", "--network=host", "--runtime=onload", "--annotation=onload.dev/nic=all",
               "localhost/debian13:1", "sleep", "100000")
        done = managers.Dpkg().install()
        check("dpkg -i over itself", done.status == 0, done)
        check("an upgrade leaves a container running", docker("inspect", "-f", "{{.State.Pid}}", NAME).out.strip() == pid)
        done = docker("exec", NAME, "probe", "node=/dev/onload")
        check("and its nodes open", "node=/dev/onload open" in done.out, done)
        policy = Path("/etc/onload-ctk/config.toml").read_text()
        check("and the operator's policy as it was", re.search(r'^allow = \[.*"nic"', policy, re.M), policy)
    docker("rm", "-f", "kept", "by-cdi")
    removal.with_containers_left(managers.Dpkg())
    with Part("after the last container"):
        check("the engines know nothing of us", Path("/etc/docker/daemon.json").read_text() == DOCKER and Path("/etc/containerd/config.toml").read_text() == CONTAINERD,
              Path("/etc/docker/daemon.json").read_text() + Path("/etc/containerd/config.toml").read_text())
        done = managers.Dpkg().purge()
        check("dpkg -P", done.status == 0, done)
        before = set(PHASE.read_text().splitlines())
        mine = {line for line in files() - before if "machine" not in line and "docker" not in line.split()[0].rsplit("/", 1)[-1] and "containerd.service" not in line}
        check("purge leaves nothing behind", not mine, sorted(mine))
        must("systemctl", "restart", "containerd", "docker", timeout=180)
        plain_engines("removed")


def package():
    if PHASE.exists():
        second_boot()
    else:
        first_boot()
