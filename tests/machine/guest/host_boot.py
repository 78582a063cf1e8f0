"""The host at boot: what config.toml wants of it is there after a reboot, with nothing done by hand, and nothing in use is taken away.

No device is brought up here: the guest has its two physical functions, and the unit of the package does the rest.
"""

import json
import os
import time
from pathlib import Path

import devices
import engines
import managers
import package
import report
from report import Part, check, must, run

PHASE = Path("/var/lib/machine/host-boot")
CONFIG = Path("/etc/onload-ctk/config.toml")
UNIT = "onload-host.service"
MAC = "02:00:00:00:10:"
VLAN = 7
PAGES = {0: 24, 1: 40}
NAME = "holder"


def wanted(functions, interfaces, vfs=2):
    pages = ", ".join(f"{node} = {count}" for node, count in PAGES.items())
    return (f'[[sriov]]\npf = "{functions[0]}"\nvfs = {vfs}\ndriver = "vfio-pci"\nmac = "{MAC}00"\nspoof-check = true\n\n'
            f'[[sriov]]\npf = "{interfaces[1]}"\nvfs = 1\ndriver = "kernel"\nvlan = {VLAN}\n\n'
            f'[host]\naf-xdp = ["{interfaces[0]}"]\nrdma-netns = "exclusive"\nhugepages = {{ "2Mi" = {{ {pages} }} }}\n')


def vfs_of(function):
    """Addresses by index."""
    found = {}
    for link in Path(f"/sys/bus/pci/devices/{function}").glob("virtfn*"):
        found[int(link.name.removeprefix("virtfn"))] = link.resolve().name
    return [found[index] for index in sorted(found)]


def driver_of(function):
    path = Path(f"/sys/bus/pci/devices/{function}/driver")
    return path.resolve().name if path.exists() else ""


def vf_info(interface):
    """What iproute2 says of virtual functions, which is no code of ours."""
    told = json.loads(must("ip", "-details", "-json", "link", "show", "dev", interface).out)
    return told[0].get("vfinfo_list", [])


def plan():
    return run("onload-ctk", "host", "plan")


def apply():
    return run("onload-ctk", "host", "apply", timeout=180)


def docker_run(*words):
    return run("docker", "run", "--rm", "--network", "none", *words, timeout=120)


def first_boot():
    must("modprobe", "igb")
    must("udevadm", "settle", "--timeout=30")
    functions = devices.igb_functions()
    interfaces = [devices.interface_of(address) for address in functions]
    Path("/etc/docker/daemon.json").write_text(package.DOCKER)
    Path("/etc/containerd/config.toml").write_text(package.CONTAINERD)
    with Part("engines"):
        engines.prepare()
    with Part("installation"):
        done = managers.Dpkg().install()
        check("the package is installed", done.status == 0, done)
        state = run("systemctl", "is-enabled", UNIT)
        check("the unit that changes the host is not enabled by the package", state.out.strip() == "disabled", state)
        verified = run("systemd-analyze", "verify", f"/usr/lib/systemd/system/{UNIT}", timeout=120)
        complaints = [line for line in verified.err.splitlines() if "onload" in line and "man " not in line]
        check(f"systemd-analyze verify has nothing to say of {UNIT}", not complaints, verified)
        planned, applied = plan(), apply()
        check("without the sections host plan says that there is nothing to change", planned.status == 0 and not planned.out
              and "nothing to change on this host" in planned.err, planned)
        check("without the sections host apply says and does nothing", applied.status == 0 and not applied.out + applied.err, applied)
    with Part("configuration"):
        CONFIG.write_text(wanted(functions, interfaces), encoding="ascii")
        done = run("onload-ctk", "runtime", "configure", "--runtime", "docker", "--restart", timeout=180)
        check("runtime configure --runtime docker --restart", done.status == 0, done)
        shown = plan()
        rows = ["virtual functions", "vf 0-1 mac", "vf 0-1 spoof-check", "vf 0-1 driver", "vf 0 vlan", "registered with Onload", "2Mi on node 1"]
        check("host plan shows what there is to do", shown.status == 1 and all(row in shown.out for row in rows), shown)
        counts = [devices.read(f"/sys/bus/pci/devices/{function}/sriov_numvfs") for function in functions]
        check("and does none of it", counts == ["0"] * len(functions), counts)
        CONFIG.write_text(wanted(functions, interfaces, vfs=100), encoding="ascii")
        refused = plan()
        check("more functions than the card can have are refused", refused.status == 2 and "virtual functions, not 100" in refused.err, refused)
        CONFIG.write_text(wanted(functions, interfaces), encoding="ascii")
    must("systemctl", "enable", UNIT, "docker.service", "containerd.service", timeout=120)
    PHASE.parent.mkdir(parents=True, exist_ok=True)
    PHASE.write_text(json.dumps({"functions": functions, "interfaces": interfaces}))
    report.log("going down for a reboot")
    os.sync()
    run("systemctl", "reboot")
    time.sleep(600)


def is_as_wanted(functions, interfaces):
    """Looked at by other means than ours, as far as there are any."""
    journal = run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", UNIT).out
    result = run("systemctl", "show", "--value", "-p", "Result", "-p", "ActiveState", UNIT).out.split()
    check("after a reboot the unit has done its work", sorted(result) == ["active", "success"], f"{result}\n{journal}")
    drivers = [driver_of(vf) for vf in vfs_of(functions[0])]
    check("the functions for vfio are vfio's", drivers == ["vfio-pci"] * 2, f"{drivers}\n{journal}")
    info = vf_info(interfaces[0])
    told = [(vf.get("address"), vf.get("spoofchk")) for vf in info]
    check("their addresses count up and are checked", told == [(f"{MAC}00", True), (f"{MAC}01", True)], info)
    drivers = [driver_of(vf) for vf in vfs_of(functions[1])]
    check("the other one has the kernel's driver", drivers == ["igbvf"], f"{drivers}\n{journal}")
    info = vf_info(interfaces[1])
    vlans = [vf.get("vlan_list", [{}])[0].get("vlan", vf.get("vlan")) for vf in info]
    check("and is in its VLAN", vlans == [VLAN], info)
    pages = {node: int(devices.read(f"/sys/devices/system/node/node{node}/{devices.HUGE_2M}")) for node in PAGES}
    check("each node has its pages", all(pages[node] >= PAGES[node] for node in PAGES), pages)
    check("the interface is registered with Onload", devices.is_accelerated(interfaces[0]), journal)
    mode = run("rdma", "system", "show")
    check("RDMA's mode is the one that is wanted", "netns exclusive" in mode.out, f"{mode}\n{journal}")
    done = plan()
    check("and the plan is empty", done.status == 0 and not done.out, done)


def given_to_a_container(function):
    group = (Path("/sys/bus/pci/devices") / function / "iommu_group").resolve().name
    node = f"/dev/vfio/{group}"
    done = docker_run("--device", f"onload.dev/vfio={function}", "localhost/debian13:1", "probe", f"node={node}")
    check("after a reboot docker run --device onload.dev/vfio opens the group, with nothing done by hand", f"node={node} open" in done.out, done)
    script = 'cat /dev/onload-ctk.env; for node in /dev/vfio/[0-9]*; do exec 3<>"$node" && echo "$node opens"; done'
    done = docker_run("--device", "onload.dev/vfio=any", "localhost/debian13:1", "sh", "-c", script)
    opens = [line for line in done.out.splitlines() if line.endswith(" opens")]
    check("docker run --device onload.dev/vfio=any too", done.status == 0 and len(opens) == 1 and "ONLOAD_CTK_VFIO_" in done.out, done)
    done = docker_run("--device", "onload.dev/hugepages=2Mi", "localhost/debian13:1", "probe", "huge=/dev/hugepages-2Mi")
    check("and one with hugepages has them", "huge=/dev/hugepages-2Mi yes" in done.out, done)


def again(functions):
    """A second run leaves everything as it is: the same functions, not new ones."""
    places = [Path(f"/sys/bus/pci/devices/{vf}").resolve() for function in functions for vf in vfs_of(function)]
    before = [place.stat().st_ino for place in places]
    done = apply()
    after = [place.stat().st_ino for place in places]
    check("a second run changes nothing", done.status == 0 and "nothing to change" in done.err and before == after, done)


def kept_while_in_use(functions, interfaces):
    function = vfs_of(functions[0])[1]
    held = run("docker", "run", "-d", "--name", NAME, "--network", "none", "--device", f"onload.dev/vfio={function}",
               "localhost/debian13:1", "sleep", "1000", timeout=120)
    check("a container holds the second function", held.status == 0, held)
    identity = held.out.strip()
    CONFIG.write_text(wanted(functions, interfaces, vfs=1), encoding="ascii")
    for command in (plan, apply):
        refused = command()
        named = f"is used by container {identity}" in refused.err
        check(f"host {command.__name__} takes no function from a container, and names it", refused.status == 2 and named, refused)
    check("both functions are there", len(vfs_of(functions[0])) == 2, vfs_of(functions[0]))
    must("docker", "rm", "-f", NAME, timeout=90)
    done = apply()
    check("when it is gone there are as many as are wanted", done.status == 0 and len(vfs_of(functions[0])) == 1, done)
    CONFIG.write_text(wanted(functions, interfaces), encoding="ascii")
    done = apply()
    drivers = [driver_of(vf) for vf in vfs_of(functions[0])]
    check("and more again", done.status == 0 and drivers == ["vfio-pci"] * 2, f"{done}\n{drivers}")


def held_by_a_process(functions, interfaces):
    """Without a lease: the kernel says that the group is open, /proc says by whom."""
    function = vfs_of(functions[0])[0]
    group = (Path("/sys/bus/pci/devices") / function / "iommu_group").resolve().name
    CONFIG.write_text(wanted(functions, interfaces, vfs=1), encoding="ascii")
    with open(f"/dev/vfio/{group}", "r+b", buffering=0):
        refused = apply()
    named = f"is used by process {os.getpid()}" in refused.err
    check("a group that a process has open keeps its function", refused.status == 2 and named, refused)
    check("and the others", len(vfs_of(functions[0])) == 2, vfs_of(functions[0]))
    CONFIG.write_text(wanted(functions, interfaces), encoding="ascii")


def half_done(functions):
    """What somebody else undid, in whichever state it is."""
    function = vfs_of(functions[0])[0]
    devices.write(f"/sys/bus/pci/devices/{function}/driver/unbind", function)
    done = apply()
    check("a function without its driver gets it", done.status == 0 and driver_of(function) == "vfio-pci", done)
    must("ip", "link", "set", devices.interface_of(functions[0]), "vf", "0", "spoofchk", "off")
    warned = plan()
    check("a setting that is another is seen", warned.status == 1 and "vf 0" in warned.out and "spoof-check" in warned.out, warned)
    done = apply()
    check("and set", done.status == 0 and vf_info(devices.interface_of(functions[0]))[0].get("spoofchk") is True, done)
    devices.write(f"/sys/bus/pci/devices/{functions[0]}/sriov_numvfs", 0)
    done = apply()
    drivers = [driver_of(vf) for vf in vfs_of(functions[0])]
    check("functions that are gone come back", done.status == 0 and drivers == ["vfio-pci"] * 2, f"{done}\n{drivers}")


def too_many_pages(functions, interfaces):
    # Large ones: the kernel gives up at the first piece that it does not find, and keeps memory for others.
    text = wanted(functions, interfaces).replace("hugepages = { ", 'hugepages = { "1Gi" = { 1 = 64 }, ')
    CONFIG.write_text(text, encoding="ascii")
    done = apply()
    told = "hugepages 1Gi on node 1: pages: the kernel gave" in done.err and "of 64; the node has no more contiguous free memory" in done.err
    check("pages that there is no memory for are counted", done.status == 2 and told, done)
    CONFIG.write_text(wanted(functions, interfaces), encoding="ascii")
    devices.write("/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", 0)


def second_boot():
    found = json.loads(PHASE.read_text())
    functions, interfaces = found["functions"], found["interfaces"]
    with Part("after the reboot"):
        package.wait_until(lambda: run("systemctl", "is-active", "docker.service").out.strip() == "active", 120)
        is_as_wanted(functions, interfaces)
        given_to_a_container(vfs_of(functions[0])[0])
    with Part("a second run"):
        again(functions)
    with Part("in use"):
        kept_while_in_use(functions, interfaces)
        held_by_a_process(functions, interfaces)
    with Part("half done"):
        half_done(functions)
    with Part("memory"):
        too_many_pages(functions, interfaces)
    with Part("removal"):
        done = managers.Dpkg().purge()
        check("dpkg -P", done.status == 0, done)
        left = run("systemctl", "list-unit-files", "--plain", "--no-legend", "onload-*").out
        links = sorted(str(path) for path in Path("/etc/systemd/system").rglob("onload-*"))
        check("no unit of ours is left, and no link to one", not left.strip() and not links, f"{left}\n{links}")
        check("the functions stay", len(vfs_of(functions[0])) == 2, vfs_of(functions[0]))


def host_boot():
    report.prefix = "host at boot: "
    if PHASE.exists():
        second_boot()
    else:
        first_boot()
