"""Hand-written CDI specs of the form that the product generates: they try the framework and the engines without it."""

import json
import os

import devices

LIB_DIRS = [devices.MULTIARCH, "/usr/lib64"]
LIBRARIES = ["libonload.so", "libonload_ext.so", "libonload_ext.so.1", "libonload_ext.so.1.2.0", "libefcp.so.1"]
HOOK = "/usr/libexec/machine/memlock-hook"


def memlock_hook():
    return [{"hookName": "createRuntime", "path": HOOK, "args": [HOOK], "env": ["STANDIN=1"], "timeout": 10}]


def node(path):
    return {"path": path, "permissions": "rw"}


def library_mounts():
    mounts = []
    for directory in LIB_DIRS:
        for name in LIBRARIES:
            mounts.append({"hostPath": os.path.realpath(f"{LIB_DIRS[0]}/{name}"), "containerPath": f"{directory}/{name}",
                           "options": ["ro", "nosuid", "nodev", "bind"]})
    return mounts


def specs(found):
    onload_nodes = [node("/dev/onload"), node("/dev/onload_epoll")]
    nic = [found["interfaces"][0], "all"]

    def nics(kind, edits):
        return {"cdiVersion": "0.5.0", "kind": kind, "containerEdits": edits,
                "devices": [{"name": name, "containerEdits": {"env": [f"ONLOAD_CTK_NIC_{nic[0].upper()}={nic[0]}"]}} for name in nic]}

    rdma_nodes = [node(f"/dev/infiniband/{name}") for name in found["uverbs"]]
    yield nics("onload.dev/nic-nodes", {"deviceNodes": onload_nodes})
    yield nics("onload.dev/nic-plain", {"deviceNodes": onload_nodes, "mounts": library_mounts()})
    yield nics("onload.dev/nic", {"deviceNodes": onload_nodes, "mounts": library_mounts(),
                                  "env": ["LD_PRELOAD=libonload.so", "EF_FDTABLE_SIZE=1048576"]})
    yield {"cdiVersion": "0.5.0", "kind": "onload.dev/rdma",
           "containerEdits": {"deviceNodes": [node("/dev/infiniband/rdma_cm")], "hooks": memlock_hook()},
           "devices": [{"name": found["rdma"], "containerEdits": {"deviceNodes": rdma_nodes, "env": ["ONLOAD_CTK_RDMA_RXE0=rxe0"]}}]}
    yield {"cdiVersion": "0.5.0", "kind": "onload.dev/vfio",
           "containerEdits": {"deviceNodes": [node("/dev/vfio/vfio")], "hooks": memlock_hook()},
           "devices": [{"name": address, "containerEdits": {"deviceNodes": [node(f"/dev/vfio/{group}")]}} for address, group in found["vfio"]]}
    # One size a device, as the product names them; a mount that has a type needs version 0.4.0.
    yield {"cdiVersion": "0.5.0", "kind": "onload.dev/hugepages",
           "devices": [{"name": name, "containerEdits": {"mounts": [
               {"hostPath": "hugetlbfs", "containerPath": f"/dev/hugepages-{name}", "type": "hugetlbfs",
                "options": ["nosuid", "nodev", f"pagesize={size}", "mode=1777"]}]}} for name, size in [("2Mi", "2M"), ("1Gi", "1G")]]}


def write(found, directory="/var/run/cdi"):
    os.makedirs(directory, exist_ok=True)
    for spec in specs(found):
        name = spec["kind"].replace("/", "-")
        with open(f"{directory}/{name}.json", "w", encoding="ascii") as file:
            json.dump(spec, file, indent=1)
