"""Boots the guest under QEMU, hands it a payload and reads its events.

The payload is a tar archive, given as a raw disk. The guest answers through a virtio serial port: each line that is a JSON object
with a member "ev" is an event, any other line is text to be shown as it is.
"""

import contextlib
import io
import json
import subprocess
import tarfile
import time
from pathlib import Path

# QEMU's emulation of a second CPU now and then never delivers that CPU's timer, and the kernel stands still before its first program:
# its console says "rcu_preempt kthread timer wakeup didn't happen", "Possible timer handling issue on cpu=1". Nothing of ours has run
# then, so such a guest is booted anew, sooner where its console says so. One that boots says its first word after 20 to 150 s,
# and after 280 s where much else runs.
BOOT_SECONDS, STALLED_SECONDS = 600, 90
BOOTS = 3
STALLED = "rcu_preempt kthread"
SILENT = "it says nothing"

PROGRAMS = {"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}
CONSOLES = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
# What the kernel is told of the IOMMU: the host's own drivers go past it, as on servers that are tuned for their network.
IOMMU_OPTIONS = {"amd64": "intel_iommu=on iommu=pt", "arm64": "iommu.passthrough=1"}


def write_payload(path, trees, settings):
    """A tar of files and directories (name in the payload: path here), with the settings as settings.json."""
    def keep(info):
        if "__pycache__" in info.name:
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        return info

    with tarfile.open(path, "w") as tar:
        for name, source in sorted(trees.items()):
            tar.add(source, arcname=name, filter=keep)
        data = json.dumps(settings, indent=1).encode()
        info = tarfile.TarInfo("settings.json")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def board(hardware):
    """A q35 with two NUMA nodes of 2 GiB, and with hardware an IOMMU of Intel's.

    A part of the memory is in modules (pc-dimm). With more than q35 puts below 4 GiB SeaBIOS has the bridges' windows
    above it, and QEMU 10.0 decodes the lower 32 bits alone of a virtual function's BAR: it reads the BAR's type before
    igb sets it (pcie_sriov_pf_init comes before pcie_sriov_pf_init_vf_bar in hw/net/igb.c). igbvf then reads ones.
    Node 1 begins at 1 GiB, for the page of that size that it has from the boot on.

    Without AVX, whose instructions are emulated one by one, the same cells take a fifth less of the host's CPU time.
    """
    base = ["-machine", "q35,kernel-irqchip=split", "-cpu", "max,la57=off,-avx,-avx2", "-m", "2560M,slots=2,maxmem=4G"]
    for node, low, module in ((0, 1024, 1024), (1, 1536, 512)):
        base += ["-object", f"memory-backend-ram,id=m{node},size={low}M", "-numa", f"node,nodeid={node},cpus={node},memdev=m{node}",
                 "-object", f"memory-backend-ram,id=d{node},size={module}M", "-device", f"pc-dimm,memdev=d{node},node={node}"]
    return base + (["-device", "intel-iommu,intremap=on"] if hardware else [])


def board_of_arm(hardware):
    """The same as a server of aarch64 has it: UEFI with ACPI, by which alone the kernel finds the two bridges of a node each, GICv3
    with its ITS for MSIs, and with hardware an SMMUv3. Without highmem-mmio the bridges' windows are below 4 GiB, see `board`.

    Node 1 has a GiB more, or what the kernel puts at both its ends leaves no place for its page of 1 GiB. The CPU has no
    authentication of pointers, which QEMU computes slowly.
    """
    base = ["-machine", "virt,gic-version=3,highmem-mmio=off" + (",iommu=smmuv3" if hardware else ""), "-cpu", "neoverse-n1", "-m", "5G"]
    for node, size in ((0, 2), (1, 3)):
        base += ["-object", f"memory-backend-ram,id=m{node},size={size}G", "-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"]
    return base


def topology(architecture, hardware, gpu=False):
    """Two NUMA nodes; with hardware, on each a PCIe bridge with an igb whose functions sit behind the IOMMU.

    With a GPU there is a switch below the root of the second igb, with an e1000e and a graphics card of a vendor of GPUs. The igb itself is
    not below it: QEMU's switch has no ACS, so that a virtual function would share its IOMMU group with all else there.

    The first igb shares a wire with an e1000e of the same guest. Every other device is put on pcie.0 by name,
    or QEMU would put it behind the bridges too.
    """
    base = ["-accel", "tcg,thread=multi", "-smp", "2,sockets=2", *(board if architecture == "amd64" else board_of_arm)(hardware)]
    if not hardware:
        return base
    switch = [
        "-device", "pcie-root-port,bus=pxb1,id=rp2,chassis=3,slot=3", "-device", "x3130-upstream,bus=rp2,id=up2",
        "-device", "xio3130-downstream,bus=up2,id=down0,chassis=4,slot=4", "-device", "xio3130-downstream,bus=up2,id=down1,chassis=5,slot=5",
        "-netdev", "hubport,hubid=9,id=wire2", "-device", "e1000e,bus=down0,netdev=wire2", "-device", "ati-vga,bus=down1",
    ]
    return base + [
        "-device", "pxb-pcie,bus=pcie.0,bus_nr=64,numa_node=0,id=pxb0", "-device", "pcie-root-port,bus=pxb0,id=rp0,chassis=1,slot=1",
        "-device", "pxb-pcie,bus=pcie.0,bus_nr=128,numa_node=1,id=pxb1", "-device", "pcie-root-port,bus=pxb1,id=rp1,chassis=2,slot=2",
        "-netdev", "hubport,hubid=7,id=wire0", "-device", "igb,bus=rp0,netdev=wire0",
        "-netdev", "hubport,hubid=8,id=wire1", "-device", "igb,bus=rp1,netdev=wire1",
        "-netdev", "hubport,hubid=7,id=peer0", "-device", "e1000e,bus=pcie.0,netdev=peer0",
        *(switch if gpu else []),
    ]


class Machine:
    """One run of QEMU. `image` holds disk.img, vmlinuz, initrd and for arm64 the firmware; `state` is made for the console and the events.

    The guest can mount `shared` by 9p, and sees there what the host puts into it later.
    With `keep_writes` the guest changes the disk; a second boot finds it as the first one did.
    """

    def __init__(self, image, payload, state, shared=None, architecture="amd64", keep_writes=False, hardware=True, kernel_options="", output=None, gpu=False):
        state.mkdir(parents=True, exist_ok=True)
        self.kept_disk = image / "disk.img" if keep_writes else None
        self.console = state / "console.log"
        self.port = state / "port.log"
        # The kernel counts ticks of the timer in a time that it guesses, and panics where there are too few: on a busy machine they are late.
        timer = "no_timer_check"
        options = f"console={CONSOLES[architecture]} root=/dev/vda rw quiet loglevel=4 panic=-1 {timer} mitigations=off systemd.show_status=false memhp_default_state=online {kernel_options}"
        if hardware:
            options += f" {IOMMU_OPTIONS[architecture]} hugepagesz=1G hugepages=1:1"
        padded(payload)
        self.command = [
            PROGRAMS[architecture], *topology(architecture, hardware, gpu), "-nodefaults", "-display", "none", "-no-user-config",
            *(["-bios", str(image / "firmware")] if architecture == "arm64" else []),
            "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"), "-append", options,
            "-drive", f"file={image / 'disk.img'},format=raw,if=none,id=root,cache=unsafe,discard=unmap,snapshot={'off' if keep_writes else 'on'}",
            "-device", "virtio-blk-pci,bus=pcie.0,drive=root",
            "-drive", f"file={payload},format=raw,if=none,id=payload,readonly=on",
            "-device", "virtio-blk-pci,bus=pcie.0,drive=payload,serial=payload",
            *(["-drive", f"file={output},format=raw,if=none,id=output", "-device", "virtio-blk-pci,bus=pcie.0,drive=output,serial=output"]
              if output else []),
            *(["-fsdev", f"local,id=shared,path={shared},security_model=none,readonly=on", "-device", "virtio-9p-pci,bus=pcie.0,fsdev=shared,mount_tag=shared"]
              if shared else []),
            "-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,bus=pcie.0,rng=rng",
            "-serial", f"file:{self.console}",
            "-device", "virtio-serial-pci,bus=pcie.0",
            "-chardev", f"file,id=port,path={self.port}", "-device", "virtserialport,chardev=port,name=machine",
        ]

    def run(self, on_event, timeout):
        """Feeds every event to on_event until the guest powers off. "done" when it said so itself, else why it ended.

        The timeout is in seconds, from the boot that gives the first event.
        """
        steps = self.steps(on_event, timeout)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            time.sleep(0.2)

    def steps(self, on_event, timeout):
        """The same as a generator, so that several guests run at once. It yields True whenever it has read what the guest said."""
        with self.disk_for_every_boot() as restore:
            for boot in range(1, BOOTS + 1):
                end = yield from self.run_once(on_event, timeout)
                if end != SILENT:
                    break
                on_event({"ev": "log", "text": f"boot {boot} of {BOOTS}: {SILENT}; the end of its console:\n{self.console_end(3)}"})
                restore()
        return end

    @contextlib.contextmanager
    def disk_for_every_boot(self):
        """What puts the disk back to what it was before the first boot; a snapshot is so by itself."""
        if not self.kept_disk:
            yield lambda: None
            return
        unbooted = self.kept_disk.with_suffix(".unbooted")
        copy_sparse(self.kept_disk, unbooted)
        try:
            yield lambda: copy_sparse(unbooted, self.kept_disk)
        finally:
            unbooted.unlink()

    def run_once(self, on_event, timeout):
        for log in (self.console, self.port):
            log.write_text("")
        qemu = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            end = yield from self.listen(qemu, on_event, timeout)
        finally:
            if qemu.poll() is None:
                qemu.kill()
            said = qemu.communicate()[0]
        return end or f"QEMU ended with {qemu.returncode}: {said.strip()}"

    def listen(self, qemu, on_event, timeout):
        """How the guest ended; nothing where QEMU ended without the guest's word."""
        start = time.monotonic()
        end, rest, spoken = "", b"", False
        with open(self.port, "rb") as port:
            while True:
                running = qemu.poll() is None
                rest += port.read()
                *lines, rest = rest.split(b"\n")
                spoken |= bool(lines)
                for line in lines:
                    item = parse_line(line)
                    if item.get("ev") == "done":
                        end = "done"
                    on_event(item)
                if not running:
                    return end
                if not spoken and time.monotonic() - start > min(self.patience(), timeout):
                    return SILENT
                if time.monotonic() - start > timeout:
                    return f"nothing left of {timeout} s"
                yield True

    def patience(self):
        return STALLED_SECONDS if STALLED in self.console.read_text(errors="replace") else BOOT_SECONDS

    def console_end(self, lines):
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-lines:])


def copy_sparse(source, target):
    """A disk is mostly holes."""
    subprocess.run(["cp", "--sparse=always", source, target], check=True)


def parse_line(line):
    text = line.decode(errors="replace").rstrip("\r")
    if text.startswith("{"):
        try:
            item = json.loads(text)
            if isinstance(item, dict) and "ev" in item:
                return item
        except ValueError:
            pass
    return {"ev": "text", "text": text}


def padded(path):
    """A raw disk is a whole number of sectors, and tar's last record ends before it."""
    path = Path(path)
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.truncate((size + 1048575) // 1048576 * 1048576)
