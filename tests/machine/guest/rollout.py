"""Two versions of the hook on a node of Kubernetes, and who of the daemon and the package writes its specifications."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import kubernetes
from cri import message
from parts import generate, spec_names
from report import check, must, run

HOOKS = Path("/opt/onload-ctk")
RECORD = HOOKS / ".onload-kubernetes.json"
OLD = HOOKS / "0.0.9" / "onload-hook"
SPEC = Path("/var/run/cdi/onload.dev-vfio.json")
UNITS = ["onload-cdi.service", "onload-cdi.path", "onload-cdi.timer"]


def wait(wanted, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if wanted():
            return True
        time.sleep(0.3)
    return wanted()


def names_hook(hook):
    """The specification is written anew as another file, so it is there and whole at each moment."""
    return f'"{hook}"' in SPEC.read_text(encoding="utf-8")


def current():
    return HOOKS / must("onload-hook", "--version").out.split()[1] / "onload-hook"


def install():
    return run("onload-kubernetes", "install", "--from", "/usr/bin/onload-hook", timeout=60)


def older_version():
    """What an installation of an older version left: its hook, and the record of it."""
    OLD.parent.mkdir(parents=True)
    HOOKS.chmod(0o755)
    shutil.copy("/usr/bin/onload-hook", OLD)
    digest = hashlib.sha256(OLD.read_bytes()).hexdigest()
    RECORD.write_text(json.dumps({"version": 1, "current": "0.0.9", "hooks": {"0.0.9": {"sha256": [digest], "since": int(time.time()) - 86400}}}))
    RECORD.chmod(0o644)
    kubernetes.configure(f'\n[cdi]\nhook-path = "{OLD}"\n')


def an_hour_later():
    """The record says that the present version came an hour ago: an old one goes after ten minutes."""
    record = json.loads(RECORD.read_text())
    for hook in record["hooks"].values():
        hook["since"] -= 3600
    RECORD.write_text(json.dumps(record))


def update(kubelet):
    """As the DaemonSet does: the init container installs, and another daemon takes the place of the one that ends."""
    kubernetes.configure()
    done = install()
    check("the new version's hook is installed beside the old one", done.status == 0 and current().exists() and OLD.exists(), done)
    again = kubernetes.daemon_starts_again(kubelet, "TERM")
    check("the specifications name the new hook", wait(lambda: names_hook(current())), SPEC.read_text())
    return again


def two_versions(bench, client, kubelet):
    older_version()
    check("a changed configuration is taken: the specifications name the old hook", wait(lambda: names_hook(OLD)), kubernetes.journal())
    vfio = kubelet.resources[f"{kubernetes.DOMAIN}/vfio"]
    allocated = vfio.allocate([bench.vfio])
    with kubernetes.Pod(client, "rolling") as pod:
        first = pod.add("first", allocated)
        check("a container starts with the old hook", kubernetes.memlock(client, first) == kubernetes.UNLIMITED, kubernetes.memlock(client, first))
        update(kubelet)
        facts, text = kubernetes.asked(client, first, f"node=/dev/vfio/{bench.group}")
        check("its container runs on through the update", f"node=/dev/vfio/{bench.group}" in facts, text)
        an_hour_later()
        done = install()
        check("the old hook stays while a container names it", OLD.exists() and "names it" in done.out + done.err, done)
        client.stop(first)
        second = pod.add("second", allocated)
        limits = kubernetes.memlock(client, second)
        check("the container that kubelet starts in its place has the new hook's memory lock", limits == kubernetes.UNLIMITED, limits)
        listing = run("onload-ctk", "lease", "list", "--format", "json").out
        check("and the lease is its own: the old hook gave the first one's back", second in listing and first not in listing, listing)
        client.call("RemoveContainer", message((1, first)))
        done = install()
        check("the old hook goes when nothing names it", not OLD.exists(), done)


def beside_the_package(kubelet):
    """While the package's service runs each minute the daemon reads; when runs are missing, it writes again."""
    for unit in UNITS:
        shutil.copy(f"/run/machine/packaging/systemd/{unit}", f"/etc/systemd/system/{unit}")
    must("systemctl", "daemon-reload", timeout=120)
    must("systemctl", "enable", "--now", *UNITS, timeout=120)
    check("with the package's units the specifications name the package's hook", wait(lambda: names_hook("/usr/bin/onload-hook")), SPEC.read_text())
    kubernetes.daemon_starts_again(kubelet, "TERM")
    said = wait(lambda: "the package writes the specifications" in kubernetes.journal())
    check("the daemon says that the package writes them", said, kubernetes.journal())
    check("and leaves them as they are", names_hook("/usr/bin/onload-hook"), SPEC.read_text())
    must("systemctl", "disable", "--now", *UNITS, timeout=120)
    for unit in UNITS:
        Path(f"/etc/systemd/system/{unit}").unlink()
    must("systemctl", "daemon-reload", timeout=120)
    minutes_ago = time.time() - 5 * 60
    os.utime("/run/onload-cdi/last-run", (minutes_ago, minutes_ago))
    kubernetes.daemon_starts_again(kubelet, "TERM")
    check("without them the daemon writes again", wait(lambda: names_hook(current())), kubernetes.journal())


def uninstalled():
    refused = run("onload-kubernetes", "uninstall", timeout=60)
    check("while the daemon runs, uninstall removes nothing", refused.status != 0 and current().exists(), refused)
    must("systemctl", "stop", f"{kubernetes.UNIT}.service", timeout=60)
    done = run("onload-kubernetes", "uninstall", timeout=60)
    check("uninstall removes hooks and specifications", done.status == 0 and not HOOKS.exists() and not spec_names(), f"{done}\n{spec_names()}")
    generate()


def parts(bench, client, kubelet):
    two_versions(bench, client, kubelet)
    beside_the_package(kubelet)
    uninstalled()
