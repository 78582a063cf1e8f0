"""Images of four suites that have all, some or none of RDMA's libraries: what they get of the host's, and whether their ibv_devinfo finds soft-RoCE."""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

import engines
import session
from parts import Kept, generate, gid_index
from report import Part, check, emit, must, run

CONFIG = Path("/etc/onload-ctk/config.toml")
IMAGES = Path("/run/machine/images")
WAYS = [(engines.Docker(), "cdi"), (engines.Podman("crun"), "cdi"), (engines.Docker(), "wrapper"), (engines.Podman("crun"), "precreate")]
OWN, PROVIDER, SET, NONE = "own", "host's provider", "host's set", "none"
# What each image uses on a host with Debian 13, and what stands in the reason where that is of no use to its programs.
EXPECTED = {
    "debian11-own": (OWN, ""),
    "debian11-no-provider": (NONE, "GLIBC_2.34"),
    "debian11-no-libibverbs": (NONE, "GLIBC_2.38"),
    "debian12-own": (OWN, ""),
    "debian12-no-provider": (PROVIDER, ""),
    "debian12-no-libibverbs": (NONE, "GLIBC_2.38"),
    "debian13-own": (OWN, ""),
    "debian13-no-provider": (PROVIDER, ""),
    "debian13-no-libibverbs": (SET, ""),
    "sid-own": (OWN, ""),
    "sid-no-provider": (NONE, "IBVERBS_PRIVATE_34"),
    # The container's program is a shell here, which does not tell what it starts: its loader says it.
    "sid-no-libibverbs": (SET, "IBVERBS_PRIVATE_65"),
    "musl": (NONE, "libc.so.6"),
}
HOST = "Debian 13"
# The same for hosts that have the libraries of other suites, and what may use no library of theirs.
OTHER_HOSTS = {
    "Debian 12": ("debian12-own", {
        "debian11-no-provider": (NONE, "GLIBC_2.34"),
        "debian11-no-libibverbs": (NONE, "GLIBC_2.34"),
        "debian12-no-provider": (PROVIDER, ""),
        "debian12-no-libibverbs": (SET, ""),
        "debian13-no-provider": (PROVIDER, ""),
        "debian13-no-libibverbs": (SET, ""),
        "sid-no-provider": (NONE, "IBVERBS_PRIVATE_34"),
    }),
    "sid": ("sid-own", {
        "debian11-no-provider": (NONE, "GLIBC_2.34"),
        "debian12-no-provider": (NONE, "IBVERBS_PRIVATE_65"),
        "debian13-no-provider": (NONE, "IBVERBS_PRIVATE_65"),
        "debian13-no-libibverbs": (SET, "IBVERBS_PRIVATE_34"),
        "sid-no-provider": (PROVIDER, ""),
        "sid-no-libibverbs": (SET, ""),
    }),
}
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
# Of those that an image has, what is RDMA's.
OF_RDMA = ["libibverbs*", "librdmacm*", "libnl-*", "libefa*", "libhns*", "libionic*", "libmana*", "libmlx*"]
# Images that use libraries of the host, and with each the one of another suite that it talks to.
PEERS = {"debian13-no-libibverbs": "debian11-own", "debian13-no-provider": "sid-own", "debian12-no-provider": "debian13-own"}


def load():
    for archive in sorted(IMAGES.glob("*.tar")):
        for engine in ("docker", "podman"):
            must(engine, "load", "-i", archive, timeout=180)
        archive.unlink()


def container(bench, engine, door, image, program="", name="libraries"):
    program = program or f"ibv_devinfo -d {bench.found['rdma']} 2>&1; cat /proc/self/mountinfo"
    program = ["sh", "-c", f"{program}; echo END-OF-REPORT; exec sleep 1000"]
    return Kept(engine, name, image, program, engines.Request(door, [f"rdma={bench.found['rdma']}"]))


def finds(bench, text):
    words = text.split()
    return "hca_id:" in words and bench.found["rdma"] in words


def used(image, text):
    """Which libraries the container has, by its mounts."""
    if re.search(r"/libibverbs\.so\.1\S* ro,", text):
        return SET
    if re.search(r"/librxe-rdmav\d+\.so ro,", text):
        return PROVIDER
    return OWN if image.endswith("-own") else NONE


def cell(bench, engine, door, image, word):
    """What the matrix shows, and the text that explains it."""
    with container(bench, engine, door, image) as kept:
        if kept.started.status:
            said = engines.said_by_hook(kept.started)
            return ("refused" if word in said else "refused for another reason"), f"{kept.started}\n{said}"
        text = kept.report()
        said = text + engines.said_by_hook(kept.started)
    libraries = used(image, text)
    if finds(bench, text):
        return f"finds it, {libraries}", said
    reason = "" if word in said else ", no reason"
    return f"finds nothing, {libraries}{reason}", said


def wanted_cell(libraries, word, door):
    if libraries == NONE and door != "cdi":
        return "refused"
    return f"finds {'nothing' if word else 'it'}, {libraries}"


def judged(bench, host, expected, ways):
    for image, (libraries, word) in expected.items():
        for engine, door in ways:
            session.configure(engine.low)
            value, text = cell(bench, engine, door, image, word)
            emit("rdma-cell", host=host, image=image, way=f"{engine.name} {door}", value=value, reason=word)
            want = wanted_cell(libraries, word, door)
            where = "" if host == HOST else f" on a host with the libraries of {host}"
            check(f"rdma libraries: {engine.name} {door}: {image}{where}: {want}", value == want, f"{value}\n{text}")


@contextlib.contextmanager
def libraries_of(image):
    """The host has an image's libraries of RDMA instead of its own: they lie over them, and the others below."""
    work = Path("/run/rdma-host")
    over = work / "libraries"
    over.mkdir(parents=True)
    container = must("docker", "create", f"localhost/{image}:1", "true").out.strip()
    must("sh", "-c", f"docker export {container} | tar -x -C {work} usr/lib/x86_64-linux-gnu")
    must("docker", "rm", container)
    for pattern in OF_RDMA:
        for path in (work / "usr/lib/x86_64-linux-gnu").glob(pattern):
            path.rename(over / path.name)
    # Those of the host's own directory of providers are not seen through it.
    os.setxattr(over / "libibverbs", "trusted.overlay.opaque", b"y")
    must("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={over}:{LIBRARIES}", LIBRARIES)
    try:
        must("ldconfig")
        yield
    finally:
        must("umount", "-l", LIBRARIES)
        must("ldconfig")
        shutil.rmtree(work)


def judged_on_other_hosts(bench):
    for host, (image, expected) in OTHER_HOSTS.items():
        with libraries_of(image):
            done = generate()
            check(f"rdma libraries: specifications are written with the libraries of {host}", done.status == 0, done)
            judged(bench, host, expected, [WAYS[0], WAYS[3]])
    generate()


def judged_by_its_program(bench):
    """What a shell starts nobody sees before; a program that the container itself starts is looked at."""
    argv = ["ibv_devinfo", "-d", bench.found["rdma"]]
    for engine, door in WAYS:
        session.configure(engine.low)
        name = f"rdma libraries: {engine.name} {door}: sid-no-libibverbs"
        with Kept(engine, "program", "sid-no-libibverbs", argv, engines.Request(door, [f"rdma={bench.found['rdma']}"])) as kept:
            said = engines.said_by_hook(kept.started)
            check(f"{name}: the program's own needs are the reason", "ibv_devinfo" in said and "IBVERBS_PRIVATE_65" in said, f"{kept.started}\n{said}")
            if door != "cdi":
                check(f"{name}: it does not start", kept.started.status != 0, kept.started)


def status_tells(bench):
    """docker tells its user nothing of a hook that succeeds, so that status has to."""
    session.configure("/usr/bin/runc")
    with container(bench, engines.Docker(), "cdi", "debian12-no-libibverbs") as kept:
        kept.report()
        told = run("onload-ctk", "status", "libraries")
        check("rdma libraries: status tells why the host's were not mounted", "GLIBC_2.38" in told.out and "when it started" in told.out, told)


def talks(bench, engine, door, image, peer):
    """Both programs between two containers, the client with the host's libraries."""
    address = "192.0.2.1"  # of the first interface, see devices.bring_up
    pings = f"ibv_rc_pingpong -d {bench.found['rdma']} -g {gid_index(bench.found['rdma'])} -n 20"
    server = f"rping -s -a {address} -C 5 & {pings}; wait"
    client = f"{pings} 127.0.0.1; rping -c -v -a {address} -C 5"
    with container(bench, engine, door, peer, server, "server") as served:
        time.sleep(3)
        with container(bench, engine, door, image, client, "client") as kept:
            text = kept.report()
            detail = f"client: {kept.text()}\nserver: {served.text()}"
            name = f"rdma libraries: {engine.name} {door}: {image} and {peer}"
            check(f"{name}: ibv_rc_pingpong", "20 iters in" in text, detail)
            # This host has no librdmacm to give.
            if image.endswith("-no-provider"):
                check(f"{name}: rping", text.count("ping data: ") == 5, detail)


def not_mounted(bench):
    """Without the libraries nothing is found: it is they that helped before."""
    for setting in ("image", "off"):
        session.configure("/usr/bin/runc")
        CONFIG.write_text(CONFIG.read_text(encoding="ascii") + f'\n[cdi]\nrdma-libraries = "{setting}"\n', encoding="ascii")
        done = generate()
        check(f"rdma libraries: specifications are written for {setting}", done.status == 0, done)
        for image in ("debian13-no-provider", "debian13-no-libibverbs"):
            with container(bench, engines.Docker(), "cdi", image) as kept:
                text = kept.report()
                check(f"rdma libraries: with {setting} {image} finds nothing", kept.started.status == 0 and not finds(bench, text), kept.text())


def parts(bench, wanted):
    name = "rdma-libraries"
    if wanted and not any(word in name for word in wanted):
        return
    with Part(f"{name}: images"):
        load()
    with Part(f"{name}: matrix"):
        judged(bench, HOST, EXPECTED, WAYS)
        judged_by_its_program(bench)
        status_tells(bench)
    with Part(f"{name}: hosts with other libraries"):
        judged_on_other_hosts(bench)
    with Part(f"{name}: between two containers"):
        for engine, door in WAYS:
            session.configure(engine.low)
            for image, peer in PEERS.items():
                talks(bench, engine, door, image, peer)
    with Part(f"{name}: image and off"):
        try:
            not_mounted(bench)
        finally:
            session.configure("/usr/bin/runc")
            must("onload-ctk", "cdi", "generate")
