"""Images whose roots lead elsewhere, on every engine: whatever a door answers, not one file or mount of the host changes."""

import io
import tarfile
from pathlib import Path

import engines
import matrix
from parts import Kept
from report import Part, check, must, run

# What an engine writes by itself, whoever asks for what; caches of this test's own interpreter.
ENGINES_OWN = ["/var/lib/docker", "/var/lib/containers", "/var/lib/containerd", "/var/log", "/var/lib/systemd", "/var/tmp", "/tmp",
               "/run/containers", "/run/containerd", "/run/crun", "/run/docker", "/run/libpod", "/run/runc", "/run/systemd", "/run/udev",
               "/run/log", "/run/user", "/run/lock", "/run/machine", "/run/dbus", "/dev/pts", "/dev/shm", "/dev/mqueue"]
PROBE = "/run/machine/probe"
NAMES = [f"{engine}-{door}-hostile" for engine in ("docker-runc", "podman-crun", "podman-runc") for door in ("live", "wrapper")]
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBC = "usr/lib/x86_64-linux-gnu/libc.so.6"

# A place of the image, what it is there, and whether the container is refused. The host's root is a writable volume at /host.
# A link that stays inside the root is followed there: the image may be laid out as it likes.
LINKS = [
    ("usr/lib64", "/proc/self/root/etc", True),
    ("usr/lib64", "/host/usr/lib64", True),
    ("usr/lib64", "../../../../../../usr/lib/other", False),
    ("etc", "/proc/self/root/etc", True),
    ("etc", "/host/etc", True),
    ("etc", "etc", True),
    ("dev", "/host/dev", True),
    ("dev", "/proc/self/root/dev", True),
    ("etc/ld.so.preload", "/host/etc/made-by-a-container", True),
    ("etc/ld.so.preload", "/proc/self/root/etc/made-by-a-container", True),
    ("etc/ld.so.preload", "ld.so.preload", True),
    ("etc/ld.so.preload", "fifo", True),
    ("etc/ld.so.preload", "directory", True),
]
# Docker makes these in a layer of its own before it looks at the image: there the link is gone.
DOCKERS_OWN = ["etc", "dev"]


def regular(tar, path, data, mode=0o755):
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def special(tar, path, kind, target=""):
    info = tarfile.TarInfo(path)
    info.type, info.linkname, info.mode = kind, target, 0o755
    tar.addfile(info)


def image(link, target):
    """A root of a few files, with one place that is a trap."""
    directories = ["usr", "usr/bin", "usr/lib", "usr/lib64", "usr/lib/other", "usr/lib/x86_64-linux-gnu", "etc", "dev", "proc", "sys", "run", "tmp", "host"]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in directories:
            if path != link:
                special(tar, path, tarfile.DIRTYPE)
        for name in ("bin", "lib", "lib64"):
            special(tar, name, tarfile.SYMTYPE, f"usr/{name}")
        for name, source in {"usr/bin/sh": "/usr/bin/dash", "usr/bin/probe": PROBE, LIBC: f"/{LIBC}", LOADER: f"/{LOADER}"}.items():
            if not name.startswith(f"{link}/"):
                regular(tar, name, Path(source).read_bytes())
        if target == "fifo":
            special(tar, link, tarfile.FIFOTYPE)
        elif target == "directory":
            special(tar, link, tarfile.DIRTYPE)
        else:
            special(tar, link, tarfile.SYMTYPE, target)
    return out.getvalue()


def bring(number, link, target):
    """The image into both stores."""
    archive = Path("/run/machine/hostile.tar")
    archive.write_bytes(image(link, target))
    for engine in ("podman", "docker"):
        must(engine, "import", str(archive), f"localhost/hostile-{number}:1", timeout=120)
    archive.unlink()


def host():
    """Every file of the host with type, mode, owner, size, time of the last change and link, and every mount."""
    prune = " -o ".join(f"-path {path}" for path in ENGINES_OWN)
    lines = []
    for root in ("/", "/run", "/dev"):
        # A directory's time changes with its content, which is compared itself.
        find = f"find {root} -xdev \\( {prune} \\) -prune -o -type d -printf '%p %y %m %U:%G\\n' -o -printf '%p %y %m %U:%G %s %T@ %l\\n'"
        lines += must("sh", "-c", find, timeout=300).out.splitlines()
    mounts = matrix.mounts("TARGET,SOURCE,FSTYPE,VFS-OPTIONS,PROPAGATION")
    # The directory of our notes stays when the notes have gone, with its lock, that of the containers' runtimes and that of the leases.
    ours = ("/run/onload-ctk d ", "/run/onload-ctk/@leases", "/run/onload-ctk/@locks", "/run/onload-ctk/@runtimes")
    return {line for line in lines if "__pycache__" not in line and not line.startswith(ours)} | {f"mount {line}" for line in mounts}


def compare(what, before):
    after = host()
    gone, new = sorted(before - after), sorted(after - before)
    check(f"{what}: no file and no mount of the host has changed", not gone and not new, "\n".join(["gone:", *gone[:40], "new:", *new[:40]]))


def start(engine, door, number, link):
    """A container of the image with the host's root in it. What a program cannot be loaded with is left out, so that the rest is reached."""
    static = link.startswith(("usr", "dev"))
    program = ["/usr/bin/probe", "node=/dev/onload"] if static else ["/usr/bin/sh", "-c", "probe node=/dev/onload"]
    request = engines.Request(door, ["nic=all"], {"onload.dev/preload": "off" if static else "file"})
    # What exec starts has docker's own limit otherwise, with which the preload by file is refused.
    limit = ["--ulimit=nofile=1048576:1048576"] if engine.name.startswith("docker") else []
    return Kept(engine, f"hostile-{number}", f"hostile-{number}", program, request, more=["--volume=/:/host", *limit])


def roots(engine, door):
    # What the engine itself does to a host that it is given whole is done before.
    for number, (link, _, _) in enumerate(LINKS):
        with start(engine, "plain", number, link):
            pass
    before = host()
    for number, (link, target, leads_out) in enumerate(LINKS):
        is_refused = leads_out and not (engine.name.startswith("docker") and link in DOCKERS_OWN)
        word = "refused" if is_refused else "started"
        with start(engine, door, number, link) as kept:
            check(f"{engine.name} {door}: /{link} that is {target}: {word}", (kept.started.status != 0) == is_refused, f"{kept.text()}\n{engines.said_by_hook(kept.started)}")
    compare(f"{engine.name} {door}: roots that lead elsewhere", before)


def parts(on):
    import session
    with Part("hostile images"):
        must("podman", "create", "--name", "probe", "localhost/debian13:1", "true")
        must("podman", "cp", "probe:/usr/bin/probe", PROBE)
        must("podman", "rm", "probe")
        for number, (link, target, _) in enumerate(LINKS):
            bring(number, link, target)
    for engine in [engines.Docker(), engines.Podman("crun"), engines.Podman("runc")]:
        for door in ("live", "wrapper"):
            if on(f"{engine.name}-{door}-hostile"):
                session.configure(engine.low)
                with Part(f"{engine.name} {door}: roots that lead elsewhere"):
                    roots(engine, door)
    for number in range(len(LINKS)):
        run("podman", "rmi", "-f", f"localhost/hostile-{number}:1")
        run("docker", "rmi", "-f", f"localhost/hostile-{number}:1")
