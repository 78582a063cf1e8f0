"""Images that lack the provider libraries of RDMA, or libibverbs too: the host's make their ibv_devinfo find soft-RoCE."""

from pathlib import Path

import engines
import session
from parts import Kept, generate
from report import Part, check, must, run

CONFIG = Path("/etc/onload-ctk/config.toml")
WAYS = [(engines.Docker(), "cdi"), (engines.Podman("crun"), "cdi"), (engines.Docker(), "wrapper"), (engines.Podman("crun"), "precreate")]
# Each image is debian13, with its ibv_devinfo, without these files.
IMAGES = {
    "no-provider": "rm -r /usr/lib/*/libibverbs /etc/libibverbs.d",
    "no-libibverbs": "rm -r /usr/lib/*/libibverbs /etc/libibverbs.d /usr/lib/*/libibverbs.so.1* /usr/lib/*/librdmacm.so.1*",
}


def make(engine, image):
    """An image of the engine's own, from the one that it has."""
    run(*engine.binary, "rm", "-f", "make")
    must(*engine.binary, "run", "--name=make", "--network=none", "localhost/debian13:1", "sh", "-ec", IMAGES[image], timeout=90)
    must(*engine.binary, "commit", "make", f"localhost/{image}:1", timeout=90)
    must(*engine.binary, "rm", "-f", "make")


def container(bench, engine, door, image):
    program = ["sh", "-c", f"ibv_devinfo -d {bench.found['rdma']} 2>&1; echo END-OF-REPORT; exec sleep 1000"]
    return Kept(engine, "libraries", image, program, engines.Request(door, [f"rdma={bench.found['rdma']}"]))


def finds(bench, text):
    words = text.split()
    return "hca_id:" in words and bench.found["rdma"] in words


def mounted(bench):
    for engine, door in WAYS:
        session.configure(engine.low)
        for image in IMAGES:
            with container(bench, engine, door, image) as kept:
                text = kept.report()
                check(f"rdma libraries: {engine.name} {door}: {image} finds the device by the host's libraries", finds(bench, text), kept.text())
        with container(bench, engine, door, "debian13") as kept:
            text = kept.report()
            mounts = engine.execute("libraries", ["cat", "/proc/self/mountinfo"]).out
            check(f"rdma libraries: {engine.name} {door}: an image that has them keeps its own", finds(bench, text) and "libibverbs" not in mounts, f"{text}\n{mounts}")


def not_mounted(bench):
    """Without the libraries nothing is found: it is they that helped before."""
    for setting in ("image", "off"):
        session.configure("/usr/bin/runc")
        CONFIG.write_text(CONFIG.read_text(encoding="ascii") + f'\n[cdi]\nrdma-libraries = "{setting}"\n', encoding="ascii")
        done = generate()
        check(f"rdma libraries: specifications are written for {setting}", done.status == 0, done)
        for image in IMAGES:
            with container(bench, engines.Docker(), "cdi", image) as kept:
                text = kept.report()
                check(f"rdma libraries: with {setting} {image} finds nothing", kept.started.status == 0 and not finds(bench, text), kept.text())


def parts(bench, wanted):
    name = "rdma-libraries"
    if wanted and not any(word in name for word in wanted):
        return
    with Part(name):
        for engine in (engines.Docker(), engines.Podman("crun")):
            for image in IMAGES:
                make(engine, image)
        mounted(bench)
        try:
            not_mounted(bench)
        finally:
            session.configure("/usr/bin/runc")
            must("onload-ctk", "cdi", "generate")
