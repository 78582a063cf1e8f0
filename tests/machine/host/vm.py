"""Boots the guest under QEMU, hands it a payload and reads its events.

The payload is a tar archive, given as a raw disk. The guest answers through a virtio serial port: each line that is a JSON object
with a member "ev" is an event, any other line is text to be shown as it is.
"""

import io
import json
import subprocess
import tarfile
import time
from pathlib import Path


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


def topology(hardware):
    """Two NUMA nodes; with hardware, on each a PCIe bridge with an igb whose functions sit behind the IOMMU.

    The first igb shares a wire with an e1000e of the same guest. Every other device is put on pcie.0 by name,
    or QEMU would put it behind the bridges too.
    """
    base = ["-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", "2,sockets=2", "-m", "4G",
            "-object", "memory-backend-ram,id=m0,size=2G", "-object", "memory-backend-ram,id=m1,size=2G",
            "-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,cpus=1,memdev=m1"]
    if not hardware:
        return base
    return base + [
        "-device", "intel-iommu,intremap=on",
        "-device", "pxb-pcie,bus=pcie.0,bus_nr=64,numa_node=0,id=pxb0", "-device", "pcie-root-port,bus=pxb0,id=rp0,chassis=1,slot=1",
        "-device", "pxb-pcie,bus=pcie.0,bus_nr=128,numa_node=1,id=pxb1", "-device", "pcie-root-port,bus=pxb1,id=rp1,chassis=2,slot=2",
        "-netdev", "hubport,hubid=7,id=wire0", "-device", "igb,bus=rp0,netdev=wire0",
        "-netdev", "hubport,hubid=8,id=wire1", "-device", "igb,bus=rp1,netdev=wire1",
        "-netdev", "hubport,hubid=7,id=peer0", "-device", "e1000e,bus=pcie.0,netdev=peer0",
    ]


class Machine:
    """One run of QEMU. `image` holds disk.img, vmlinuz and initrd; `state` is made for the console and the events."""

    def __init__(self, image, payload, state, keep_writes=False, hardware=True, kernel_options="", output=None):
        state.mkdir(parents=True, exist_ok=True)
        self.console = state / "console.log"
        self.port = state / "port.log"
        options = "console=ttyS0 root=/dev/vda rw quiet loglevel=4 panic=-1 mitigations=off systemd.show_status=false " + kernel_options
        if hardware:
            options += " intel_iommu=on iommu=pt hugepagesz=1G hugepages=1:1"
        padded(payload)
        self.command = [
            "qemu-system-x86_64", *topology(hardware), "-nodefaults", "-display", "none", "-no-user-config",
            "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"), "-append", options,
            "-drive", f"file={image / 'disk.img'},format=raw,if=none,id=root,cache=unsafe,discard=unmap,snapshot={'off' if keep_writes else 'on'}",
            "-device", "virtio-blk-pci,bus=pcie.0,drive=root",
            "-drive", f"file={payload},format=raw,if=none,id=payload,readonly=on",
            "-device", "virtio-blk-pci,bus=pcie.0,drive=payload,serial=payload",
            *(["-drive", f"file={output},format=raw,if=none,id=output", "-device", "virtio-blk-pci,bus=pcie.0,drive=output,serial=output"]
              if output else []),
            "-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,bus=pcie.0,rng=rng",
            "-serial", f"file:{self.console}",
            "-device", "virtio-serial-pci,bus=pcie.0",
            "-chardev", f"file,id=port,path={self.port}", "-device", "virtserialport,chardev=port,name=machine",
        ]

    def run(self, on_event, timeout):
        """Feeds every event to on_event until the guest powers off. "done" when it said so itself, else why it ended."""
        for log in (self.console, self.port):
            log.write_text("")
        qemu = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + timeout
        end = "no word"
        rest = b""
        try:
            with open(self.port, "rb") as port:
                while True:
                    running = qemu.poll() is None
                    rest += port.read()
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        item = parse_line(line)
                        if item.get("ev") == "done":
                            end = "done"
                        on_event(item)
                    if not running:
                        break
                    if time.monotonic() > deadline:
                        end = f"nothing left of {timeout} s"
                        break
                    time.sleep(0.2)
        finally:
            if qemu.poll() is None:
                qemu.kill()
            said = qemu.communicate()[0]
        if end == "no word":
            end = f"QEMU ended with {qemu.returncode}: {said.strip()}"
        return end


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
