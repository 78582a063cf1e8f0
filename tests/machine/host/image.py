"""Builds the guest's disk and the container images in it from Debian packages, and keeps them by the hash of what they are made of."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from . import vm

HERE = Path(__file__).resolve().parent.parent
# Changing how things are built from the same inputs (the code below) makes a new image too.
TOOLCHAIN_INPUTS = ["recipe/toolchain.packages", "stand-ins", "probe"]
INPUTS = ["recipe", "stand-ins", "probe", "host/image.py", "guest/provision.py"]
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DISK_SIZE = "8G"
NEWEST = "sid"


class Guest(NamedTuple):
    """What a guest is made of. The release names the list of its packages, and the guest's half of the test goes by it."""

    release: str
    suite: str
    architecture: str


GUESTS = {"debian13": Guest("debian13", "trixie", "amd64"), "debian12": Guest("debian12", "bookworm", "amd64"),
          "debian13-arm64": Guest("debian13", "trixie", "arm64")}


class BuildError(Exception):
    """What could not be built, and where its log is."""


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "onload-ctk" / "machine"


def input_hash(inputs):
    """Names, modes and contents of everything that something is made of."""
    digest = hashlib.sha256()
    for top in inputs:
        path = HERE / top
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" in file.parts:
                continue
            digest.update(f"{file.relative_to(HERE)}\0".encode())
            if file.is_symlink():
                digest.update(os.readlink(file).encode())
            elif file.is_file():
                digest.update(b"x" if os.access(file, os.X_OK) else b"-")
                digest.update(file.read_bytes())
            digest.update(b"\0")
    return digest.hexdigest()[:16]


def packages(name):
    lines = (HERE / "recipe" / f"{name}.packages").read_text().splitlines()
    return ",".join(line for line in lines if line and not line.startswith("#"))


def mirror():
    """Where this machine's own apt gets Debian from."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"],
        check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        fields = line.split()
        if fields[:2] == ["Debian", "main"] and "security" not in fields[2]:
            return fields[2]
    raise BuildError("apt on this machine has no main component of Debian: add one to /etc/apt/sources.list.d")


def apt_options():
    """The Acquire settings of this machine's apt (proxies, dates of a snapshot): the guest's apt needs the same."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    wanted = ("Acquire::http::", "Acquire::https::", "Acquire::Check-", "Acquire::Retries")
    return [line for line in dump.splitlines() if line.startswith(wanted)]


# What runs in the example of DPDK, and what testpmd opens by name to drive the guest's functions.
DPDK_PROGRAMS = ["usr/bin/dpdk-testpmd", "usr/bin/dash", "usr/bin/sed"]
DPDK_PLUGINS = ["bus_pci", "bus_vdev", "mempool_ring", "net_e1000"]


# The kernel's package makes an initial RAM disk. With all modules that takes minutes where a program of another architecture copies each.
INITRAMFS = "initramfs-tools"
SMALL_INITRD = (f"--essential-hook=mkdir -p \"$1/etc/{INITRAMFS}/conf.d\" \"$1/usr/share/{INITRAMFS}/modules.d\" && "
                f"cp '{HERE}/recipe/rootfs/etc/{INITRAMFS}/conf.d/machine' \"$1/etc/{INITRAMFS}/conf.d/\" && "
                f"cp '{HERE}/recipe/rootfs/usr/share/{INITRAMFS}/modules.d/machine' \"$1/usr/share/{INITRAMFS}/modules.d/\"")


def keep(tree, kept, path):
    """Copies a file, with the links that lead to it: a library that is loaded by two names is still one."""
    target = kept / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if (tree / path).is_symlink():
        to = os.readlink(tree / path)
        if not target.is_symlink():
            target.symlink_to(to)
        keep(tree, kept, os.path.normpath(os.path.join(os.path.dirname(path), to)).lstrip("/"))
    else:
        shutil.copy(tree / path, target)


def dpdk_only(tree, kept):
    """testpmd comes with all that developers need, too much for a guest without KVM: these programs and their libraries are kept."""
    plugins = [path.relative_to(tree) for name in DPDK_PLUGINS for path in tree.glob(f"usr/lib/*/dpdk/pmds-*/librte_{name}.so.*")]
    subprocess.run(["chroot", tree, "/usr/sbin/ldconfig"], check=True)
    wanted = {"usr/lib64/ld-linux-x86-64.so.2", *DPDK_PROGRAMS, *map(str, plugins)}
    for path in sorted(wanted):
        listing = subprocess.run(["chroot", tree, "/lib64/ld-linux-x86-64.so.2", "--list", f"/{path}"], check=True, capture_output=True, text=True).stdout
        wanted.update(line.split(" => ")[1].split()[0].lstrip("/") for line in listing.splitlines() if " => /" in line)
    for path in sorted(wanted):
        keep(tree, kept, "usr/" + path if path.startswith("lib") else path)
    for name in ["bin", "lib", "lib64"]:
        (kept / name).symlink_to(f"usr/{name}")
    (kept / "usr/bin/sh").symlink_to("dash")
    shutil.rmtree(tree)


class Builder:
    """One build: a working directory, a log beside it, steps that are timed."""

    def __init__(self, guest, work, say):
        self.guest = guest
        self.release, self.suite, self.architecture = GUESTS[guest]
        self.work = work
        self.say = say
        self.log = work / "build.log"
        self.mirror = mirror()
        self.apt = [f"--aptopt={line}" for line in apt_options()]

    def run(self, *command, **options):
        with open(self.log, "ab") as log:
            done = subprocess.run([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                  check=False, **options)
        if done.returncode:
            tail = self.log.read_text(errors="replace").splitlines()[-25:]
            raise BuildError(f"{command[0]} ended with {done.returncode}; the end of {self.log}:\n  " + "\n  ".join(tail))

    def timed(self, what, step, *arguments):
        start = time.monotonic()
        result = step(*arguments)
        self.say(f"  {what}: {time.monotonic() - start:.0f} s")
        return result

    def mmdebstrap(self, suite, variant, include, target, *options):
        source = f"deb [signed-by={KEYRING}] {self.mirror} {suite} main"
        self.run("mmdebstrap", "--quiet", f"--variant={variant}", f"--include={include}", f"--architectures={self.architecture}",
                 "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
                 "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=force-unsafe-io",
                 *self.apt, *options, suite, target, source)

    def toolchain(self):
        """Stand-ins, probe and the pods' first process, in self.work/built; kept by themselves, since they change seldom."""
        out = self.work / "built"
        kept = cache_dir() / f"toolchain-{self.guest}-{input_hash(TOOLCHAIN_INPUTS)}"
        if kept.exists():
            shutil.copytree(kept, out, symlinks=True)
            return
        out.mkdir()
        script = ("set -e; kdir=$(echo /usr/lib/modules/*/build); [ -d $kdir ] || kdir=$(echo /lib/modules/*/build); "
                  "cd /src/stand-ins; make KDIR=$kdir all; make KDIR=$kdir DESTDIR=/out/guest install; cd ../probe; "
                  "mkdir -p /out/bin; flags='-O2 -Wall -Wextra -Werror'; "
                  "musl-gcc $flags -static -o /out/bin/probe probe.c; musl-gcc $flags -o /out/bin/probe-musl probe.c; "
                  "musl-gcc $flags -static -o /out/bin/pause pause.c")
        self.mmdebstrap(self.suite, "apt", packages("toolchain") + f",linux-headers-{self.architecture}", "/dev/null", SMALL_INITRD,
                        f"--customize-hook=mkdir -p \"$1/src\" && cp -r '{HERE}/stand-ins' '{HERE}/probe' \"$1/src/\"",
                        f"--customize-hook=chroot \"$1\" sh -c '{script.replace(chr(39), chr(34))}'",
                        f"--customize-hook=cp -a \"$1/out/.\" '{out}/'")
        shutil.copytree(out, kept, symlinks=True)

    def container_tree(self, name, suite):
        """An image's root: its packages unpacked, not configured. Nothing in it runs but what a test starts."""
        tree = self.work / f"tree-{name}"
        self.mmdebstrap(suite, "extract", packages(name), tree,
                        "--setup-hook=for d in bin sbin lib lib64; do mkdir -p \"$1/usr/$d\"; ln -s usr/$d \"$1/$d\"; done")
        return tree

    def container_image(self, name, tree, add):
        """Adds files and packs the tree as a docker-archive, which podman, docker and containerd all load."""
        for target, source in add.items():
            path = tree / target
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)
        for waste in ["usr/share", "var", "boot", "dev"]:
            shutil.rmtree(tree / waste, ignore_errors=True)
        for empty in ["dev", "proc", "sys", "tmp", "etc", "run", "var/tmp"]:
            (tree / empty).mkdir(parents=True, exist_ok=True)
        (tree / "var/run").symlink_to("/run")
        (tree / "tmp").chmod(0o1777)
        (tree / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nplain:x:1000:1000::/:/bin/sh\n")
        (tree / "etc/group").write_text("root:x:0:\nplain:x:1000:\n")
        if (tree / "usr/sbin/ldconfig").exists():
            self.run("chroot", tree, "/usr/sbin/ldconfig")
        docker_archive(self.work / "images" / f"{name}.tar", f"localhost/{name}:1", tree, self.architecture)
        shutil.rmtree(tree)

    def images(self):
        (self.work / "images").mkdir()
        built = self.work / "built" / "bin"
        wanted = [("debian13", "trixie"), ("debian12", "bookworm"), ("musl", "trixie")]
        # What the documentation runs, and a program without Onload.
        wanted += [("redis", "trixie")] if self.release == "debian13" else []
        for name, suite in wanted:
            tree = self.container_tree(name, suite)
            add = {"usr/bin/probe": built / "probe"}
            if name == "musl":
                add["usr/bin/probe-musl"] = built / "probe-musl"
                add["usr/bin/sh"] = tree / "usr/bin/busybox"
                add["usr/bin/sleep"] = tree / "usr/bin/busybox"
            self.container_image(name, tree, add)
        if self.guest == "debian13":
            kept = self.work / "tree-dpdk-only"
            dpdk_only(self.container_tree("dpdk", "trixie"), kept)
            self.container_image("dpdk", kept, {})
        tree = self.work / "tree-pause"
        tree.mkdir()
        self.container_image("pause", tree, {"pause": built / "pause"})

    def firmware(self):
        """UEFI of the guest's own suite. With that of Debian 12 the kernel takes a flash for memory of no node, and then knows one node alone."""
        tree = self.work / "tree-firmware"
        self.mmdebstrap(self.suite, "extract", "qemu-efi-aarch64", tree)
        shutil.copy(tree / "usr/share/qemu-efi-aarch64/QEMU_EFI.fd", self.work / "firmware")
        shutil.rmtree(tree)

    def newest_containerd(self):
        """The programs of the newest suite's containerd, in self.work/containerd2: clusters have it before a stable release does."""
        tree = self.container_tree("containerd2", NEWEST)
        out = self.work / "containerd2"
        out.mkdir()
        for name in ["containerd", "containerd-shim-runc-v2", "ctr"]:
            shutil.copy(tree / "usr/bin" / name, out / name)
        shutil.rmtree(tree)

    def guest_tree(self):
        tree = self.work / "tree-guest"
        include = f"linux-image-{self.architecture}," + packages(f"guest-{self.release}")
        self.mmdebstrap(self.suite, "apt", include, tree, SMALL_INITRD)
        return tree

    def finish_guest(self, tree):
        shutil.copytree(HERE / "recipe" / "rootfs", tree, symlinks=True, dirs_exist_ok=True)
        shutil.copytree(self.work / "built" / "guest" / "usr", tree / "usr", symlinks=True, dirs_exist_ok=True)
        shutil.copytree(self.work / "images", tree / "var/lib/machine-images")
        if (self.work / "containerd2").exists():
            shutil.copytree(self.work / "containerd2", tree / "opt/containerd2/bin")
        versions = [path.name for path in (tree / "usr/lib/modules").iterdir() if (path / "kernel").exists()]
        stand_ins = [path.parent.name for path in (tree / "usr/lib/modules").glob("*/extra")]
        if versions != stand_ins:
            raise BuildError(f"kernel {versions} and stand-in modules {stand_ins} differ: the mirror is between two updates, try again later")
        script = ("set -e; depmod " + versions[0] + "; ldconfig; groupadd -r onload_users; useradd -m -u 1000 -s /bin/bash tester; passwd -d root; "
                  "echo machine > /etc/hostname; echo 'debugfs /sys/kernel/debug debugfs defaults 0 0' > /etc/fstab; "
                  "mkdir -p /var/lib/systemd/linger; touch /var/lib/systemd/linger/tester; "
                  "systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer man-db.timer "
                  f"dpkg-db-backup.timer systemd-networkd-wait-online.service getty@tty1.service serial-getty@{vm.CONSOLES[self.architecture]}.service "
                  "podman-auto-update.timer netavark-dhcp-proxy.socket netavark-dhcp-proxy.service")
        self.run("chroot", tree, "sh", "-c", script)
        shutil.rmtree(tree / "var/lib/apt/lists", ignore_errors=True)
        shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
        shutil.copy(next((tree / "boot").glob("vmlinuz-*")), self.work / "vmlinuz")
        shutil.copy(next((tree / "boot").glob("initrd.img-*")), self.work / "initrd")
        self.run("mke2fs", "-q", "-t", "ext4", "-L", "machine", "-O", "^metadata_csum,^has_journal", "-d", tree, self.work / "disk.img", DISK_SIZE)
        shutil.rmtree(tree)

    def provision(self):
        """One boot that loads the images into every engine's store and lets first-boot work happen, kept on the disk."""
        payload = self.work / "payload.tar"
        vm.write_payload(payload, {"guest": HERE / "guest"}, {"mode": "provision"})
        machine = vm.Machine(self.work, payload, self.work / "provision", architecture=self.architecture, keep_writes=True)
        failed = []

        def event(item):
            if item.get("ev") == "log":
                self.say(f"    {item['text']}")
            if item.get("ev") == "check" and not item["ok"]:
                failed.append(item)

        end = machine.run(event, timeout=1800)
        if end != "done" or failed:
            raise BuildError(f"the first boot ended with {end!r}, failed: {failed}; its console is {machine.console}")


def docker_archive(path, tag, tree, architecture):
    """An image of one layer, made without any engine."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(tree, arcname=".")
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {"architecture": architecture, "os": "linux", "created": "1970-01-01T00:00:00Z",
              "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/pause" if (tree / "pause").exists() else "/bin/sh"]},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
              "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "packages"}]}
    config_bytes = json.dumps(config).encode()
    config_name = hashlib.sha256(config_bytes).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for name, data in [(config_name, config_bytes), ("manifest.json", json.dumps(manifest).encode())]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, arcname=f"{digest}/layer.tar")
    layer.unlink()


def ensure(say, guest):
    """The directory with disk.img, vmlinuz, initrd and the firmware, if it needs one, of a guest, built when it is not there yet."""
    final = cache_dir() / f"guest-{guest}-{input_hash(INPUTS)}"
    if (final / "complete").exists():
        say(f"guest: {final} (kept from before)")
        return final
    if os.geteuid():
        raise BuildError("building the guest needs root (it unpacks packages with their owners)")
    work = final.with_name(final.name + ".building")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    say(f"guest: building {final}")
    builder = Builder(guest, work, say)
    with ThreadPoolExecutor(2) as pool:
        tree = pool.submit(builder.timed, "guest's packages", builder.guest_tree)
        builder.timed("stand-ins and probe", builder.toolchain)
        builder.timed("container images", builder.images)
        if guest == "debian13":
            builder.timed("the newest containerd", builder.newest_containerd)
        if builder.architecture == "arm64":
            builder.timed("firmware", builder.firmware)
        builder.timed("file system", builder.finish_guest, tree.result())
    builder.timed("first boot", builder.provision)
    (work / "complete").touch()
    if final.exists():
        shutil.rmtree(final)
    work.rename(final)
    for old in sorted(final.parent.glob(f"guest-{guest}-*")):
        if old != final and old.name.rpartition("-")[0] == f"guest-{guest}":
            shutil.rmtree(old, ignore_errors=True)
    return final
