"""A reboot: the specs are in /var/run, so they must be written again before the first container starts."""

import os
import shutil
import time
from pathlib import Path

import engines
import matrix
import report
from report import check, must, run

PHASE = Path("/var/lib/machine/phase")
COPY = Path("/var/lib/machine/devices")
UNITS = Path("/etc/systemd/system")
PACKAGED = Path("/run/machine/packaging")
GENERATE = "onload-cdi.service"
PACKAGED_UNITS = [GENERATE, "onload-cdi.path", "onload-cdi.timer"]
NAME = "survivor"

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
    """Leaves a docker container that restarts always and a podman unit, and goes down. Does not return."""
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
    must("docker", "run", "-d", "--name", NAME, "--restart=always", "--network=host", "--device=onload.dev/nic=all",
         "localhost/debian13:1", "sh", "-c", "probe node=/dev/onload; exec sleep 100000", timeout=120)
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
    answers = {}
    for _ in range(60):
        executed = engine.execute(NAME, ["probe", "node=/dev/onload"])
        answers = matrix.facts(executed.out)
        if answers:
            break
        time.sleep(1)
    want = f"open {matrix.number('/dev/onload')}"
    check("after a reboot docker's own container has its nodes", answers.get("node=/dev/onload") == want, f"{executed}\n{done}")
