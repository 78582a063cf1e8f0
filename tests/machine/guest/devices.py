"""Brings the guest's devices up: stand-in modules, VFs, vfio, soft-RoCE, hugepages. Run again it changes nothing."""

import os
import time
from pathlib import Path

from report import log, must, run

HUGE_2M = "hugepages/hugepages-2048kB/nr_hugepages"
VFS = 2  # each that igbvf takes costs seconds on an emulated CPU
RXE = "rxe0"
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]  # the number of bpf(2)
# Where Debian has a machine's libraries.
MULTIARCH = f"/usr/lib/{os.uname().machine}-linux-gnu"


def write(path, text):
    Path(path).write_text(f"{text}\n", encoding="ascii")


def read(path):
    return Path(path).read_text(encoding="utf-8").strip()


def igb_functions():
    """The physical functions, by PCI address."""
    driver = Path("/sys/bus/pci/drivers/igb")
    return sorted(path.name for path in driver.iterdir() if ":" in path.name)


def interface_of(address):
    return sorted(os.listdir(f"/sys/bus/pci/devices/{address}/net"))[0]


def to_vfio(address):
    device = Path(f"/sys/bus/pci/devices/{address}")
    write(device / "driver_override", "vfio-pci")
    if (device / "driver").exists():
        if (device / "driver").resolve().name == "vfio-pci":
            return
        write(device / "driver/unbind", address)
    write("/sys/bus/pci/drivers_probe", address)


def load_stand_ins(spare_majors=0):
    for module in ["sfc_resource", "sfc_char", "onload"]:
        option = [] if module == "sfc_resource" or not spare_majors else [f"spare_majors={spare_majors}"]
        must("modprobe", module, *option)


def is_accelerated(interface):
    return any(path.name.endswith(f"_{interface}") for path in Path("/sys/kernel/debug/sfc_resource/nics").iterdir())


def accelerate(interfaces):
    """The first interface by AF_XDP, where there is no TCPDirect; the second as one of an adapter with a datapath of Onload's own."""
    for interface, file in zip(interfaces, ["afxdp/register", "stand_in/attach"]):
        if not is_accelerated(interface):
            write(f"/sys/module/sfc_resource/{file}", interface)


def unload_stand_ins():
    for module in ["onload", "sfc_char", "sfc_resource"]:
        must("rmmod", module)


def unload(module):
    """A module, after every one that uses it."""
    for user in os.listdir(f"/sys/module/{module}/holders"):
        if os.path.exists(f"/sys/module/{user}"):
            unload(user)
    must("rmmod", module)


def load_rdma(found, exclusive):
    """RDMA's modules and its device anew, in this netns mode: later the kernel takes a mode only where there is no other network namespace."""
    must("rdma", "link", "delete", found["rdma"])
    unload("ib_core")
    must("modprobe", "ib_core", f"netns_mode={int(not exclusive)}")
    must("modprobe", "-a", "rdma_ucm", "ib_uverbs", "ib_umad", "rdma_rxe")
    must("rdma", "link", "add", found["rdma"], "type", "rxe", "netdev", found["interfaces"][0])
    must("udevadm", "settle", "--timeout=30")


def wait_for(path, seconds=20):
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} did not appear within {seconds} s")
        time.sleep(0.1)


def bring_up():
    """What the tests ask about, by name."""
    last = time.monotonic()

    def took(what):
        nonlocal last
        now = time.monotonic()
        if now - last > 3:
            log(f"{what}: {now - last:.1f} s")
        last = now

    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        write(node / HUGE_2M, 32)
    os.makedirs("/dev/hugepages1G", exist_ok=True)
    if run("mountpoint", "-q", "/dev/hugepages1G").status:
        must("mount", "-t", "hugetlbfs", "-o", "pagesize=1G", "none", "/dev/hugepages1G")
    load_stand_ins()
    must("modprobe", "-a", "vfio-pci", "rdma_ucm", "ib_uverbs", "ib_umad", "rdma_rxe", "igb", "igbvf")
    # Without it runc 1.1 begins with a warning, and conmon may hand on that line alone in the place of a refusal.
    must("modprobe", "tun")

    took("modules")

    functions = igb_functions()
    interfaces = [interface_of(address) for address in functions]
    groups = []
    for number, address in enumerate(functions):
        device = Path(f"/sys/bus/pci/devices/{address}")
        must("ip", "address", "replace", f"192.0.2.{number * 16 + 1}/28", "dev", interfaces[number])
        must("ip", "link", "set", interfaces[number], "up")
        if read(device / "sriov_numvfs") != str(VFS):
            write(device / "sriov_numvfs", VFS)
            took(f"VFs of {address}")
        function = (device / "virtfn0").resolve().name
        to_vfio(function)
        group = (Path("/sys/bus/pci/devices") / function / "iommu_group").resolve().name
        groups.append((function, group))
        wait_for(f"/dev/vfio/{group}")
        took(f"vfio of {address}")
    if not os.path.exists(f"/sys/class/infiniband/{RXE}"):
        must("rdma", "link", "add", RXE, "type", "rxe", "netdev", interfaces[0])
    must("udevadm", "settle", "--timeout=30")
    took("soft-RoCE and udev")
    accelerate(interfaces)
    uverbs = sorted(os.listdir("/sys/class/infiniband_verbs"))
    wait_for(f"/dev/infiniband/{[name for name in uverbs if name.startswith('uverbs')][0]}")
    return {"interfaces": interfaces, "functions": functions, "vfio": groups, "rdma": RXE,
            "uverbs": [name for name in uverbs if name.startswith("uverbs")]}
