"""A reboot: the specs are in /var/run, so they must be written again before the first container starts."""

import os
import shutil
import time
from pathlib import Path

import engines
import matrix
import report
import session
from report import check, must, run

PHASE = Path("/var/lib/machine/phase")
COPY = Path("/var/lib/machine/devices")
UNITS = Path("/etc/systemd/system")
PACKAGED = Path("/run/machine/packaging")
GENERATE = "onload-cdi.service"
PACKAGED_UNITS = [GENERATE, "onload-cdi.path", "onload-cdi.timer"]
NAME = "survivor"
CDI_NAME = "survivor-cdi"

DEVICES_UNIT = f"""[Unit]
Description=The guest's devices
Before=docker.service containerd.service {GENERATE}
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
After={GENERATE}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/podman run --rm --network=host --device=onload.dev/nic=all localhost/debian13:1 probe node=/dev/onload

[Install]
WantedBy=multi-user.target
"""


def before(bench):
    """Leaves docker containers that restart always and a podman unit, and goes down. Does not return."""
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ("devices.py", "report.py"):
        shutil.copy(f"/run/machine/guest/{name}", COPY)
    for unit in PACKAGED_UNITS:
        shutil.copy(PACKAGED / "systemd" / unit, UNITS)
    for rules in (PACKAGED / "udev").glob("*.rules"):
        shutil.copy(rules, "/usr/lib/udev/rules.d")
    (UNITS / "machine-devices.service").write_text(DEVICES_UNIT, encoding="ascii")
    (UNITS / "machine-first.service").write_text(PODMAN_UNIT, encoding="ascii")
    must("systemctl", "daemon-reload", timeout=120)
    must("systemctl", "enable", "machine-devices.service", *PACKAGED_UNITS, "machine-first.service", "docker.service", "containerd.service", timeout=120)
    docker = engines.Docker()
    session.configure(docker.low)
    for name, door in [(NAME, "wrapper"), (CDI_NAME, "cdi")]:
        started = docker.run(name, "debian13", ["sh", "-c", "probe node=/dev/onload; exec sleep 100000"],
                             engines.Request(door, ["nic=all"]), more=["--restart=always"])
        check(f"before a reboot: docker {door} starts", started.status == 0, started)
    PHASE.write_text("rebooted", encoding="ascii")
    report.log("going down for a reboot")
    os.sync()
    run("systemctl", "reboot", timeout=60)
    time.sleep(600)


def rebooted():
    """Whether this boot is the second one."""
    return PHASE.exists()


def after():
    engine = engines.Docker()
    for unit in ("machine-devices.service", "machine-first.service"):
        for _ in range(120):
            if run("systemctl", "is-active", unit).out.strip() not in ("activating", "inactive"):
                break
            time.sleep(1)
    done = run("systemctl", "status", "--no-pager", "machine-devices.service", GENERATE, "machine-first.service", "docker.service")
    first = run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "machine-first.service").out
    check("after a reboot the first podman container has its nodes", "node=/dev/onload open" in first, f"{first}\n{done}")
    for name in (NAME, CDI_NAME):
        if name == CDI_NAME:
            docker_starts_no_cdi(name, done)
        value, executed = node_value(engine, name)
        check(f"after a reboot {name} has its nodes", value == f"open {matrix.number('/dev/onload')}", f"{executed}\n{done}")


def docker_starts_no_cdi(name, done):
    """docker before moby's pull request 49990 (May 2025) restores its containers before it knows of CDI; started by hand they come."""
    state = run("docker", "inspect", "--format", "{{.State.Running}} {{.State.Error}}", name)
    check("after a reboot docker 26 starts no CDI container by itself", state.out.startswith("false") and "cdi" in state.out, f"{state}\n{done}")
    started = run("docker", "start", name, timeout=120)
    check("after a reboot docker starts a CDI container when asked", started.status == 0, started)


def node_value(engine, name):
    """What the probe says of the node once the container runs."""
    for _ in range(60):
        executed = engine.execute(name, ["probe", "node=/dev/onload"])
        answers = matrix.facts(executed.out)
        if answers:
            break
        time.sleep(1)
    return answers.get("node=/dev/onload"), executed
