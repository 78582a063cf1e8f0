"""The installer of a release that the guest serves on loopback, and with what it installs the quadlets and drop-ins of packaging/."""

import functools
import hashlib
import http.server
import os
import re
import shutil
import threading
from pathlib import Path

import devices
import engines
import managers
import package
import parts
import provision
from report import Part, check, must, run

PACKAGING = Path("/run/machine/packaging")
RELEASE = Path("/run/release")
QUADLETS = Path("/etc/containers/systemd")
CONTAINERD2_CONFIG = Path("/run/containerd2-drop-in.toml")
# The guest has no curl.
CURL = """#!/usr/bin/python3
import sys
import urllib.request
urllib.request.urlretrieve(sys.argv[-1], sys.argv[sys.argv.index("--output") + 1])
"""


def serve_release():
    """Serves the packages with their checksums; returns the URL."""
    shutil.copytree(managers.DIST, RELEASE)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(RELEASE.iterdir())]
    (RELEASE / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    curl = Path("/usr/local/bin/curl")
    curl.write_text(CURL, encoding="ascii")
    curl.chmod(0o755)
    must("ip", "link", "set", "lo", "up")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Standard output is for events."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=RELEASE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def is_installed():
    return "installed" in run("dpkg-query", "-W", "-f", "${db:Status-Status}", managers.NAME).out.split()


def install(command):
    deb = RELEASE / managers.Dpkg().package().name
    content = deb.read_bytes()
    deb.write_bytes(content + b"\n")
    done = run(*command, timeout=120)
    check("installer: rejects a package whose checksum differs", done.status and "does not match" in done.err and not is_installed(), done)
    deb.write_bytes(content)
    done = run(*command, timeout=300)
    check("installer: installs the package", done.status == 0 and is_installed(), done)
    check("installer: says that the provenance was not verified", "was not verified" in done.err, done)
    last = done.out.rstrip().rpartition("\n")[2]
    check("installer: prints the next command", last == 'Next: run "onload-ctk" to see what this host offers.', done)
    done = run("onload-ctk")
    check("installer: the next command works", done.status == 0 and "nic" in done.out, done)


def write_quadlets(found):
    """The quadlets, with the guest's images and what these have in the place of perftest and testpmd."""
    pingpong = f"ibv_rc_pingpong -d %i -g {parts.gid_index(found['rdma'])} -n 20"
    changes = {r"docker\.io/library/redis:7": "localhost/redis:1", r"localhost/(perftest|dpdk)": "localhost/debian13:1",
               "ib_write_lat --ib-dev %i": pingpong, "dpdk-testpmd .*": "ls /dev/vfio", "0000:81:10.0": found["vfio"][0][0]}
    QUADLETS.mkdir(parents=True, exist_ok=True)
    for path in sorted((PACKAGING / "quadlets").iterdir()):
        text = path.read_text(encoding="utf-8")
        for old, new in changes.items():
            text = re.sub(old, new, text)
        (QUADLETS / path.name).write_text(text, encoding="utf-8")
    must("systemctl", "daemon-reload", timeout=120)


def journal_has(unit, words):
    return package.wait_until(lambda: words in run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", unit).out)


def quadlets(found):
    write_quadlets(found)
    done = run("systemctl", "start", "onload-redis", timeout=180)
    answers = package.wait_until(lambda: "PONG" in run("podman", "exec", "redis", "redis-cli", "ping").out)
    check("quadlets: onload-redis starts and answers", done.status == 0 and answers, done)
    done = run("podman", "exec", "redis", "redis-cli", "config", "get", "protected-mode", "save")
    check("quadlets: redis has both settings of its command", done.out.split() in (["protected-mode", "no", "save"], ["save", "protected-mode", "no"]), done)
    done = run("podman", "exec", "redis", "grep", "-m1", "libonload", "/proc/1/maps")
    check("quadlets: the library is loaded", done.status == 0, done)
    rdma, function = found["rdma"], found["vfio"][0][0]
    done = run("systemctl", "start", f"rdma-server@{rdma}", f"rdma-client@{rdma}", timeout=180)
    check("quadlets: the RDMA client measures against its server", journal_has(f"rdma-client@{rdma}", "20 iters in"),
          f"{done}\n{run('journalctl', '-b', '--no-pager', '-u', 'rdma-*').out}")
    group = os.path.basename(os.path.realpath(f"/sys/bus/pci/devices/{function}/iommu_group"))
    done = run("systemctl", "start", "testpmd", timeout=180)
    check("quadlets: testpmd's container has the group of the function", journal_has("testpmd", group), done)
    run("systemctl", "stop", "onload-redis", "rdma-*", "testpmd", timeout=180)


def drop_ins():
    CONTAINERD2_CONFIG.write_text(f"version = 3\nimports = ['{PACKAGING}/containerd/*.toml']\n", encoding="ascii")
    done = run(f"{provision.NEWEST}/containerd", "--config", CONTAINERD2_CONFIG, "config", "dump")
    check("drop-ins: containerd 2 reads its drop-in", done.status == 0 and "runtimes.onload]" in done.out and "onload-container-runtime" in done.out, done)


def installer():
    with Part("devices"):
        found = devices.bring_up()
    with Part("engines"):
        engines.prepare()
    url = serve_release()
    before = package.files()
    version = managers.Dpkg().package().name.split("_")[1].rpartition("-")[0]
    command = ["sh", PACKAGING / "install.sh", "--version", version, "--url", url]
    with Part("installer"):
        install(command)
    with Part("drop-ins"):
        drop_ins()
    with Part("quadlets"):
        quadlets(found)
    with Part("uninstall"):
        shutil.rmtree(QUADLETS)
        done = run(*command, "--uninstall", timeout=180)
        check("installer: --uninstall removes the package", done.status == 0 and not is_installed(), done)
        must("dpkg", "-P", managers.NAME, timeout=180)
        left = sorted(line for line in package.files() - before if not any(word in line for word in ("machine", "/containers/")))
        check("installer: nothing is left after dpkg -P", not left, f"{left}\n{done}")
