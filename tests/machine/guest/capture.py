"""Writes this host, as its kernel shows it, to the output disk: a tar of sys/, proc/, etc/, usr/ and dev.table."""

import io
import os
import stat
import tarfile

DISK = "/dev/disk/by-id/virtio-output"
TREES = ["/sys/bus/pci/drivers", "/sys/bus/pci/devices", "/sys/bus/auxiliary", "/sys/devices/pci0000:00", "/sys/devices/pci0000:40",
         "/sys/devices/pci0000:80", "/sys/devices/virtual/infiniband", "/sys/devices/virtual/infiniband_mad",
         "/sys/devices/virtual/infiniband_verbs", "/sys/devices/virtual/iommu", "/sys/devices/virtual/net", "/sys/devices/virtual/onload",
         "/sys/devices/virtual/onload_epoll", "/sys/devices/virtual/sfc_char", "/sys/devices/virtual/vfio", "/sys/devices/system/node",
         "/sys/kernel/iommu_groups", "/sys/kernel/mm/hugepages", "/sys/kernel/debug/sfc_resource",
         "/sys/class/infiniband", "/sys/class/infiniband_mad", "/sys/class/infiniband_verbs", "/sys/class/misc", "/sys/class/net",
         "/sys/class/onload", "/sys/class/onload_epoll", "/sys/class/pps", "/sys/class/ptp", "/sys/class/sfc_char", "/sys/class/vfio",
         "/sys/class/vfio-dev", "/sys/module/onload", "/sys/module/sfc_char", "/sys/module/sfc_resource", "/sys/module/rdma_rxe",
         "/sys/module/ib_uverbs", "/sys/module/ib_umad", "/sys/module/rdma_ucm", "/sys/module/vfio", "/sys/module/vfio_pci", "/sys/module/igb",
         "/sys/module/igbvf", "/proc/driver/onload", "/proc/driver/sfc_resource", "/usr/libexec/onload/profiles"]
FILES = ["/proc/cmdline", "/proc/cpuinfo", "/proc/devices", "/proc/filesystems", "/proc/meminfo", "/proc/misc", "/proc/modules", "/proc/mounts",
         "/proc/version", "/proc/sys/kernel/osrelease", "/proc/sys/vm/nr_hugepages", "/etc/os-release",
         "/usr/bin/onload", "/usr/bin/onload_stackdump", "/usr/bin/zf_stackdump"]
LIB = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = ("libonload", "libefcp")
# Raw images of hardware: large, and nothing that discovery reads.
SKIPPED = {"config", "rom", "vpd", "remove", "rescan", "reset", "firmware_node", "eeprom", "power", "statistics", "queues", "msi_irqs", "sections",
           "notes", "phys_port_id", "phys_port_name", "phys_switch_id", "meminfo", "vmstat", "numastat"}
LARGEST = 1 << 20


def keep(name):
    return name not in SKIPPED and not (name.startswith("resource") and name != "resource")


def add(tar, path):
    """One file, link or directory, without descending. What cannot be read is left out, as it would be for any reader."""
    name = path.lstrip("/")
    try:
        st = os.lstat(path)
        info = tarfile.TarInfo(name)
        info.mode = stat.S_IMODE(st.st_mode)
        if stat.S_ISLNK(st.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            tar.addfile(info)
        elif stat.S_ISDIR(st.st_mode):
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        elif stat.S_ISREG(st.st_mode):
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                data = file.read(LARGEST)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    except OSError:
        pass


def device_table():
    lines = ["# path type major minor mode uid gid"]
    for directory, _, names in sorted(os.walk("/dev")):
        for name in sorted(names):
            path = os.path.join(directory, name)
            st = os.lstat(path)
            kind = "c" if stat.S_ISCHR(st.st_mode) else "b" if stat.S_ISBLK(st.st_mode) else ""
            if kind:
                lines.append(f"{path} {kind} {os.major(st.st_rdev)} {os.minor(st.st_rdev)} {stat.S_IMODE(st.st_mode):04o} {st.st_uid} {st.st_gid}")
    return "\n".join(lines) + "\n"


def capture():
    with open(DISK, "wb") as disk, tarfile.open(fileobj=disk, mode="w|") as tar:
        for top in TREES:
            if not os.path.lexists(top):
                continue
            add(tar, top)
            for directory, children, names in os.walk(top):
                children[:] = sorted(child for child in children if keep(child))
                for name in sorted([*children, *names]):
                    if keep(name):
                        add(tar, os.path.join(directory, name))
        for path in FILES:
            add(tar, os.path.realpath(path) if path == "/etc/os-release" else path)
        add(tar, "/etc/os-release")
        for name in sorted(os.listdir(LIB)):
            if name.startswith(LIBRARIES):
                add(tar, f"{LIB}/{name}")
        data = device_table().encode()
        info = tarfile.TarInfo("dev.table")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
