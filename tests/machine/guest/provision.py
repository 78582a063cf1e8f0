"""The first boot: fills every engine's store, so that no later run has to."""

import os
import shutil

from report import Part, must, run, check

IMAGES = "/var/lib/machine-images"
# Images that not every store needs.
ONLY_IN = {"pause": ["containerd default", "containerd k8s.io", "containerd2"], "redis": ["podman", "docker", "containerd k8s.io"], "dpdk": ["containerd k8s.io"]}
NEWEST = "/opt/containerd2/bin"


def has(program):
    """Whether this guest's release brings the engine."""
    return shutil.which(program) is not None


def load(store, *command):
    """Every image of a store, by the command that takes its file as last argument."""
    with Part(f"{store} images"):
        for name in sorted(file.removesuffix(".tar") for file in os.listdir(IMAGES)):
            if store in ONLY_IN.get(name, [store]):
                must(*command, f"{IMAGES}/{name}.tar", timeout=180)


def provision():
    load("podman", "podman", "load", "-i")
    if has("docker"):
        must("systemctl", "start", "docker", timeout=120)
        load("docker", "docker", "load", "-i")
    if has("ctr"):
        for space in ["default", "k8s.io"]:
            load(f"containerd {space}", "ctr", "-n", space, "images", "import")
    if os.path.exists(NEWEST):
        must("systemctl", "start", "containerd2", timeout=120)
        load("containerd2", f"{NEWEST}/ctr", "-a", "/run/containerd2/containerd.sock", "-n", "k8s.io", "images", "import")
    os.chmod(IMAGES, 0o755)
    must("systemctl", "start", "user@1000", timeout=60)
    load("rootless podman", *as_tester("podman", "load", "-i"))
    must("rm", "-r", IMAGES)
    with Part("shutdown of the engines"):
        run("systemctl", "stop", "docker.socket", "docker", "containerd", "containerd2", timeout=120)
    check("every engine has its images", True)


def as_tester(*command):
    """A command of the plain user, in their own systemd session as after a login."""
    return ["setpriv", "--reuid=1000", "--regid=1000", "--init-groups", "--reset-env", "env",
            "XDG_RUNTIME_DIR=/run/user/1000", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus", "HOME=/home/tester",
            "PATH=/usr/bin:/usr/sbin:/bin:/sbin", *command]
