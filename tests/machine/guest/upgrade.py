"""The package upgraded while containers start and end.

What is promised: a container that runs keeps its process, its devices and its leases; what it was given comes back at its end, by the
hook that its config.json names, of whichever version; and a container that starts in the meantime, between unpacking and configuring as
well, gets what it asks for or is refused for a reason that holds, and never gets what another one has.

The later releases are the package with another version: dpkg replaces every file of it.
"""

import contextlib
import re
import shutil
import threading
from pathlib import Path

import devices
import engines
import managers
import package
import parts
import report
from leases import holders, leased
from netdev.lab import Interface, links_in
from report import Part, check, must, run
from stale import config_of

WORK = Path("/var/lib/machine/upgrade")
CONFIG = Path("/etc/onload-ctk/config.toml")
HOOK, OLDER_HOOK = Path("/usr/bin/onload-hook"), Path("/opt/older/onload-hook")
IMAGE = "localhost/debian13:1"
SLEEP = [IMAGE, "sleep", "100000"]
SHOWS_GROUPS = [IMAGE, "ls", "/dev/vfio"]
OPENS_ONLOAD = [IMAGE, "probe", "node=/dev/onload"]
DEVICE, ANNOTATION = "--device=onload.dev/", "--annotation=onload.dev/"


def later_release(version):
    """The package that is installed first, under another version."""
    tree = WORK / version
    must("dpkg-deb", "-R", managers.Dpkg().package(), tree, timeout=120)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", f"Version: {version}", control.read_text(), flags=re.M))
    built = WORK / f"{version}.deb"
    must("dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, built, timeout=120)
    shutil.rmtree(tree)
    return built


def version():
    return run("dpkg-query", "-W", "-f", "${Version} ${db:Status-Status}", managers.NAME).out


def set_option(name, value):
    """A setting of config.toml, where it stands commented out or set."""
    text, count = re.subn(rf"^#?{name} = .*$", f"{name} = {value}", CONFIG.read_text(), flags=re.M)
    assert count == 1, f"{CONFIG} has {name} {count} times"
    CONFIG.write_text(text)
    package.quiet()
    must("systemctl", "start", package.SERVICE, timeout=60)


class Host:
    """Three functions in a pool, and an interface that moves."""

    def __init__(self, found):
        inner, third = [(Path("/sys/bus/pci/devices") / one / "virtfn1").resolve().name for one in found["functions"]]
        name = devices.interface_of(inner)
        must("ip", "link", "set", name, "down")
        must("ip", "link", "set", name, "mtu", 1400, "alias", "port 0 of rack 7")
        self.interface = Interface(inner)
        devices.to_vfio(third)
        group = (Path("/sys/bus/pci/devices") / third / "iommu_group").resolve().name
        devices.wait_for(f"/dev/vfio/{group}")
        self.groups = {**dict(found["vfio"]), third: group}

    def held(self):
        """The functions that containers hold, with their groups."""
        names = {lease["name"] for lease in leased() if lease["class"] == "vfio" and lease["state"] == "held"}
        return {name: group for name, group in self.groups.items() if name in names}


class Container:
    """One of docker's that runs on through upgrades."""

    def __init__(self, name, *options):
        self.name = name
        done = run("docker", "run", "-d", "--name", name, *options, *SLEEP, timeout=120)
        check(f"{name} starts", done.status == 0, done)
        self.pid = self.runs()

    def runs(self):
        """The number of its process; 0 where it has none."""
        return int(package.docker("inspect", "-f", "{{.State.Pid}}", self.name).out.strip() or 0)

    def end(self, when):
        """Its leases end with it."""
        mine = [lease for lease in leased() if lease["pid"] == self.pid]
        done = package.docker("rm", "-f", self.name)
        gone = package.wait_until(lambda: not [lease for lease in leased() if lease["pid"] == self.pid])
        check(f"{when}: {self.name} ends, and with it its lease", done.status == 0 and mine and gone, f"{done}\nbefore: {mine}\nafter: {leased()}")


class Load:
    """Containers that start and end in two rows, each of which asks again and again for the same things."""

    def __init__(self, host):
        held = host.held()
        name = min(held)
        spare, = set(host.groups.values()) - set(held.values())
        docker, podman = ["docker", "run", "--rm", "--network=host"], ["podman", "run", "--rm", "--network=host"]
        wrapped = [*docker, "--runtime=onload"]
        self.rows = [
            [([*docker, f"{DEVICE}vfio=any", *SHOWS_GROUPS], self.has_alone(spare)),
             ([*wrapped, f"{ANNOTATION}vfio=any", *SHOWS_GROUPS], self.has_alone(spare)),
             ([*podman, f"{DEVICE}vfio=any", *SHOWS_GROUPS], self.has_alone(spare))],
            [([*docker, f"{DEVICE}nic=all", *OPENS_ONLOAD], self.has_onload),
             ([*docker, f"{DEVICE}vfio={name}", *SHOWS_GROUPS], self.is_refused),
             ([*wrapped, f"{ANNOTATION}nic=all", *OPENS_ONLOAD], self.has_onload),
             ([*wrapped, f"{ANNOTATION}vfio={name}", *SHOWS_GROUPS], self.is_refused),
             ([*podman, f"{ANNOTATION}nic=all", *OPENS_ONLOAD], self.has_onload)],
        ]
        self.stopping = threading.Event()
        self.counts = [0] * len(self.rows)
        self.wrong = []

    @staticmethod
    def has_alone(group):
        """It has the function that is free, and no other one."""
        return lambda done: done.status == 0 and [word for word in done.out.split() if word.isdigit()] == [group]

    @staticmethod
    def has_onload(done):
        return done.status == 0 and "node=/dev/onload open" in done.out

    @staticmethod
    def is_refused(done):
        return done.status != 0 and "in use by container" in done.err

    def row(self, number):
        """Stops between two containers."""
        while True:
            for command, is_right in self.rows[number]:
                if self.stopping.is_set():
                    return
                done = run(*command, timeout=240)
                self.counts[number] += 1
                if not is_right(done):
                    self.wrong.append(f"{' '.join(command)}\n{done}")

    def a_round(self):
        """Waits until each container of each row has started once more."""
        wanted = [count + len(row) + 1 for count, row in zip(self.counts, self.rows)]
        return package.wait_until(lambda: all(now >= then for now, then in zip(self.counts, wanted)), 600)

    def started(self):
        return sum(self.counts)

    @contextlib.contextmanager
    def runs(self):
        threads = [threading.Thread(target=self.row, args=[number]) for number in range(len(self.rows))]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()


def leases_of(containers):
    pids = {each.pid for each in containers}
    return sorted((lease["class"], lease["name"], lease["container"], lease["pid"], lease["state"]) for lease in leased() if lease["pid"] in pids)


def nothing_is_lost(when, containers, before, groups):
    """What ran is as it was, and nobody else has anything of it."""
    check(f"{when}: the containers that ran do so with the same processes", all(each.pid and each.runs() == each.pid for each in containers),
          {each.name: (each.pid, each.runs()) for each in containers})
    check(f"{when}: their leases are held as before", leases_of(containers) == before, f"{before}\n{leased()}")
    opened = {each.name: [group for group in groups if f"node=/dev/vfio/{group} open" in package.docker("exec", each.name, "probe", f"node=/dev/vfio/{group}").out]
              for each in containers}
    check(f"{when}: each function opens in its one container", sorted(sum(opened.values(), [])) == groups, opened)
    several = {group: holders(group) for group in groups}
    check(f"{when}: and no other has its node", all(len(each) == 1 for each in several.values()), several)


def has_the_interface(when, host, container):
    check(f"{when}: {container.name} has the interface", host.interface.name in links_in(container.pid), f"{links_in(container.pid)}\n{host.interface}")


def interface_is_back(when, host):
    check(f"{when}: the interface is back as it was", package.wait_until(host.interface.is_home), host.interface)


def moved(name, host):
    return Container(name, "--network=none", f"{DEVICE}netdev={host.interface.name}")


def under_load(when, host, containers, install, meanwhile=None):
    """An upgrade by `install`, two commands at most, with `meanwhile` between them."""
    before = leases_of(containers)
    check(f"{when}: the functions and the interface are held before", len(before) == 3, leased())
    with Load(host).runs() as load:
        check(f"{when}: containers start and end before it", load.a_round(), load.wrong)
        started = load.started()
        for number, command in enumerate(install):
            done = run(*command, timeout=900)
            check(f"{when}: {' '.join(command[:2])}", done.status == 0, done)
            if meanwhile and number == 0:
                check(f"{when}: containers start and end in between", load.a_round(), load.wrong)
                meanwhile()
        report.log(f"{when}: {load.started() - started} containers started during the upgrade")
        check(f"{when}: containers started and ended during it", load.started() > started, load.counts)
        check(f"{when}: containers start and end after it", load.a_round(), load.wrong)
    check(f"{when}: each container got what it asked for, or was refused since another has it", not load.wrong, "\n".join(load.wrong))


def prepared():
    """The first release, on a host whose engines know it."""
    done = managers.Dpkg().install()
    check("dpkg -i installs the first release", done.status == 0, done)
    for engine in ("docker", "podman"):
        must("onload-ctk", "runtime", "configure", "--runtime", engine, "--allow", "nic,vfio", "--restart", timeout=180)


def by_dpkg_i(host, held, newer):
    """The moved interface is of a container whose config.json names a hook that no package replaces."""
    OLDER_HOOK.parent.mkdir()
    shutil.copy(HOOK, OLDER_HOOK)
    set_option("hook-path", f'"{OLDER_HOOK}"')
    check("the specifications name the older hook", str(OLDER_HOOK) in (package.SPECS / "onload.dev-netdev.json").read_text())
    old = moved("with-older-hook", host)
    set_option("hook-path", f'"{HOOK}"')
    containers, when = [*held, old], "dpkg -i"
    before, groups = leases_of(containers), sorted(host.held().values())
    has_the_interface("before", host, old)
    config = config_of(engines.Docker(), old.name).read_text()
    check("its config.json names the older hook alone", str(OLDER_HOOK) in config and str(HOOK) not in config, config)
    under_load(when, host, containers, [("dpkg", "-i", newer)])
    nothing_is_lost(when, containers, before, groups)
    has_the_interface(when, host, old)
    old.end(f"{when}, by the older hook")
    interface_is_back(f"{when}, by the older hook", host)


def unpacked_first(host, held, newer):
    """A container of the release before ends between unpacking and configuring."""
    new, when = moved("moved", host), "dpkg --unpack and --configure"
    containers = [*held, new]
    before, groups = leases_of(containers), sorted(host.held().values())

    def between():
        status = version()
        check(f"{when}: it is unpacked in between", status.endswith("unpacked"), status)
        nothing_is_lost(f"{when}, in between", containers, before, groups)
        has_the_interface(f"{when}, in between", host, new)
        new.end(f"{when}, in between")
        interface_is_back(f"{when}, in between", host)

    under_load(when, host, containers, [("dpkg", "--unpack", newer), ("dpkg", "--configure", managers.NAME)], between)
    nothing_is_lost(when, held, [lease for lease in before if lease[0] == "vfio"], groups)


def upgrade():
    report.prefix = "upgrade: "
    with Part("devices"):
        host = Host(devices.bring_up())
    Path("/etc/docker/daemon.json").write_text(package.DOCKER)
    with Part("engines"):
        engines.prepare()
    WORK.mkdir(parents=True)
    with Part("installation"):
        prepared()
        set_option("offer-netdevs", f'["{host.interface.name}"]')
    with Part("later releases"):
        later = {number: later_release(number) for number in ("99.1-1", "99.2-1")}
    held = [Container("by-device", "--network=host", f"{DEVICE}vfio=any"),
            Container("by-annotation", "--network=host", "--runtime=onload", f"{ANNOTATION}vfio=any")]
    for (number, newer), stage in zip(later.items(), (by_dpkg_i, unpacked_first)):
        with Part(f"upgrade to {number}"):
            stage(host, held, newer)
            check(f"{number} is installed", version() == f"{number} installed", version())
    with Part("the end"):
        for each in held:
            each.end("after both")
        check("no lease is left", not leased(), leased())
        check("and no record of a container", not parts.records(), parts.records())
