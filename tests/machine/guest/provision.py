"""The first boot: fills every engine's store, so that no later run has to."""

import os
import shutil

from report import Part, must, run, check

IMAGES = "/var/lib/machine-images"


def has(program):
    """Whether this guest's release brings the engine."""
    return shutil.which(program) is not None


def provision():
    names = sorted(name[:-4] for name in os.listdir(IMAGES))
    with Part("podman images"):
        for name in names:
            if name != "pause":
                must("podman", "load", "-i", f"{IMAGES}/{name}.tar", timeout=180)
    if has("docker"):
        with Part("docker images"):
            must("systemctl", "start", "docker", timeout=120)
            for name in names:
                if name != "pause":
                    must("docker", "load", "-i", f"{IMAGES}/{name}.tar", timeout=180)
    if has("ctr"):
        with Part("containerd images"):
            for space in ["default", "k8s.io"]:
                for name in names:
                    must("ctr", "-n", space, "images", "import", f"{IMAGES}/{name}.tar", timeout=180)
    with Part("rootless podman images"):
        os.chmod(IMAGES, 0o755)
        must("systemctl", "start", "user@1000", timeout=60)
        for name in names:
            if name != "pause":
                must(*as_tester("podman", "load", "-i", f"{IMAGES}/{name}.tar"), timeout=180)
    must("rm", "-r", IMAGES)
    with Part("shutdown of the engines"):
        run("systemctl", "stop", "docker.socket", "docker", "containerd", timeout=120)
    check("every engine has its images", True)


def as_tester(*command):
    """A command of the plain user, in their own systemd session as after a login."""
    return ["setpriv", "--reuid=1000", "--regid=1000", "--init-groups", "--reset-env", "env",
            "XDG_RUNTIME_DIR=/run/user/1000", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus", "HOME=/home/tester",
            "PATH=/usr/bin:/usr/sbin:/bin:/sbin", *command]
