"""The .rpm in the guest: installed, upgraded and removed by Debian's rpm, with containers that run through all of it.

What the package does once it is installed (events, the pages, a reboot) the .deb's guest shows; both have the same files.
"""

import os
import re
import shutil
from pathlib import Path

import devices
import engines
import managers
import package
import removal
import report
from report import Part, check, must, run

CONFIG = Path("/etc/onload-ctk/config.toml")
DEFAULTS = Path("/etc/default/onload-ctk")
TIMER = "onload-cdi.timer"
WORK = Path("/var/lib/machine/rpm")
ADDED = "# A line of the later release.\n"


def beside(path, suffix):
    return Path(f"{path}{suffix}")


def directories():
    done = must("find", "/etc", "/usr", "-xdev", "-type", "d")
    return set(done.out.splitlines())


def installed(manager, before):
    package.installed(before, manager)
    done = manager.ask("-K", "--nosignature", str(manager.package()))
    check("its digests are right", done.status == 0 and "OK" in done.out, done)
    done = manager.ask("-V", "--nodeps", managers.NAME)
    check("rpm -V finds every file as the package has it", done.status == 0 and not done.out, done)
    done = manager.ask("-qc", managers.NAME)
    check("its configuration files are known as such", done.out.split() == sorted(map(str, (DEFAULTS, CONFIG))), done)


def tag(manager, name):
    return manager.ask("-qp", "--qf", f"%{{{name}}}", str(manager.package())).out


def spec_lines(manager):
    """The later release as rpmbuild takes it: scripts, files and their flags as the package itself says they are."""
    query = "[%{FILEFLAGS:fflags}|%{FILEMODES:perms}|%{FILENAMES}\n]"
    marks = {"": "", "d": "%doc ", "cn": "%config(noreplace) "}
    yield from (f"Name: {managers.NAME}", f"Version: {tag(manager, 'VERSION')}", "Release: 2", "Summary: A later release", "License: MIT",
                "AutoReqProv: no", "%description", "A later release.", "%install", f"cp -a {WORK}/tree/. %{{buildroot}}")
    for section, name in {"post": "POSTIN", "preun": "PREUN", "postun": "POSTUN"}.items():
        yield from (f"%{section}", tag(manager, name).replace("%", "%%"))
    yield "%files"
    for line in manager.ask("-qp", "--qf", query, str(manager.package())).out.splitlines():
        flags, mode, path = line.split("|")
        yield ("%dir " if mode.startswith("d") else marks[flags]) + path


def later(manager):
    """The same package a release later: both configuration files have one more line, all else is what is installed."""
    listed = manager.ask("-qpl", str(manager.package())).out.split()
    for path in listed:
        target = WORK / "tree" / path.lstrip("/")
        if os.path.isdir(path):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    for path in (CONFIG, DEFAULTS):
        copy = WORK / "tree" / str(path).lstrip("/")
        copy.write_text(copy.read_text() + ADDED)
    (WORK / "later.spec").write_text("\n".join(spec_lines(manager)) + "\n")
    defines = {"_topdir": WORK, "_rpmdir": WORK, "_build_id_links": "none", "debug_package": "%{nil}", "__os_install_post": "%{nil}",
               "_binary_payload": "w1.gzdio"}
    options = [f"--define={name} {value}" for name, value in defines.items()]
    must("rpmbuild", "-bb", "--quiet", "--nodeps", "--target=x86_64", *options, str(WORK / "later.spec"), timeout=300)
    built = next(WORK.glob("x86_64/*.rpm"))
    scripts = [manager.ask("-qp", "--scripts", str(path)).out for path in (manager.package(), built)]
    check("the later release has the scripts of the package", scripts[0].split() == scripts[1].split(), "\n---\n".join(scripts))
    return built


def configured():
    for engine in removal.CONFIGURED:
        done = run("onload-ctk", "runtime", "configure", "--runtime", engine, "--allow", "nic,rdma", "--restart", timeout=180)
        check(f"runtime configure --runtime {engine} --restart", done.status == 0, done)
    done = run("dpkg", "-S", "/usr/bin/onload-ctk")
    check("dpkg knows nothing of it", done.status != 0, done)


def opens(name):
    done = package.docker("exec", name, *removal.PROBE)
    return removal.OPEN in done.out, done


def same_again(manager):
    """The version that is installed, once more."""
    text = CONFIG.read_text()
    done = manager.upgrade(manager.package(), "--replacepkgs")
    check("rpm -U --replacepkgs over itself", done.status == 0, done)
    check("leaves an edited config.toml as it is, with nothing beside it", CONFIG.read_text() == text and os.listdir(CONFIG.parent) == ["config.toml"],
          os.listdir(CONFIG.parent))
    done = run("systemctl", "is-enabled", package.SERVICE, "onload-cdi.path", TIMER)
    check("and the units enabled", done.out.split() == ["enabled"] * 3, done)
    check("and the specifications in place", "onload.dev-nic.json" in package.specs(), package.specs().keys())


def upgraded(manager, newer):
    """To a later release whose configuration files differ: one of ours was edited here, the other was not."""
    text, defaults = CONFIG.read_text(), DEFAULTS.read_text()
    must("systemctl", "disable", "--now", TIMER, timeout=60)
    pid = package.docker("inspect", "-f", "{{.State.Pid}}", package.NAME).out.strip()
    done = manager.upgrade(newer)
    check("rpm -U to a later release", done.status == 0, done)
    release = manager.ask("-q", "--qf", "%{RELEASE}", managers.NAME).out
    check("it is what is installed, alone", release == "2", release)
    check("an edited config.toml stays as it is", CONFIG.read_text() == text and re.search(r'^allow = \[.*"nic"', text, re.M), CONFIG.read_text())
    new = beside(CONFIG, ".rpmnew")
    check("and the later one is config.toml.rpmnew", new.exists() and new.read_text().endswith(ADDED) and str(new) in done.out + done.err, done)
    check("a file that nobody edited is replaced", DEFAULTS.read_text() == defaults + ADDED and not beside(DEFAULTS, ".rpmnew").exists(), DEFAULTS.read_text())
    state = run("systemctl", "show", "-p", "UnitFileState", "-p", "ActiveState", TIMER).out
    check("a timer that was disabled stays disabled and stopped", "UnitFileState=disabled" in state and "ActiveState=inactive" in state, state)
    state = run("systemctl", "is-active", "onload-cdi.path")
    check("the path unit is active", state.out.strip() == "active", state)
    result = run("systemctl", "show", "--value", "-p", "Result", package.SERVICE).out.strip()
    check("the service has run", result == "success" and "onload.dev-nic.json" in package.specs(), f"{result} {package.specs().keys()}")
    check("the container runs on", package.docker("inspect", "-f", "{{.State.Pid}}", package.NAME).out.strip() == pid)
    opened, done = opens(package.NAME)
    check("and its nodes open", opened, done)
    must("docker", "restart", "-t", "0", package.NAME, timeout=90)
    opened, done = opens(package.NAME)
    check("stopped and started by the name that docker recorded it has them again", opened, done)
    done = manager.ask("-V", "--nodeps", managers.NAME)
    changed = [line.split()[-1] for line in done.out.splitlines()]
    check("rpm -V finds config.toml changed and no other file", changed == [str(CONFIG)], done)
    new.unlink()
    must("systemctl", "enable", "--now", TIMER, timeout=60)


def gone(manager, before, before_directories):
    """Installed and removed once more, with no container left."""
    done = manager.install()
    check("rpm -i once more", done.status == 0, done)
    own = {str(above) for path in manager.ask("-ql", managers.NAME).out.split() for above in Path(path).parents if managers.NAME in str(above)}
    check("a fresh config.toml stands beside what was saved", ADDED not in CONFIG.read_text() and beside(CONFIG, ".rpmsave").exists(),
          os.listdir(CONFIG.parent))
    done = manager.remove()
    check("rpm -e", done.status == 0 and not done.err, done)
    check("rpm knows nothing of it", manager.ask("-q", managers.NAME).status == 1)
    check("the engines know nothing of us", Path("/etc/docker/daemon.json").read_text() == package.DOCKER
          and Path("/etc/containerd/config.toml").read_text() == package.CONTAINERD and not removal.PODMAN_FILE.exists())
    saved = str(beside(CONFIG, ".rpmsave"))
    mine = sorted(line.split()[0] for line in package.files() - before if "machine" not in line)
    check("rpm -e leaves the edited configuration file, saved, and nothing else", mine == [saved], mine)
    left = sorted(own & directories() - before_directories)
    check("and no directory but its own", left == [str(CONFIG.parent)], left)
    text = Path(saved).read_text()
    check("what is saved is what was edited last", re.search(r'^allow = \["nic"', text, re.M), text)
    units = run("systemctl", "list-unit-files", "--plain", "--no-legend", "onload-cdi.*").out
    check("systemd knows none of the units", not units.strip(), units)
    started = engines.Docker().run("plain", "debian13", ["sleep", "1000"], engines.Request("plain", []))
    check("docker starts a plain container", started.status == 0, started)
    package.docker("rm", "-f", "plain")


def rpm_package():
    report.prefix = "rpm: "
    with Part("devices"):
        devices.bring_up()
    Path("/etc/docker/daemon.json").write_text(package.DOCKER)
    Path("/etc/containerd/config.toml").write_text(package.CONTAINERD)
    with Part("engines"):
        engines.prepare()
    manager = managers.Rpm()
    before, before_directories = package.files(), directories()
    with Part("installation"):
        installed(manager, before)
    with Part("a later release"):
        newer = later(manager)
    with Part("runtime configure"):
        configured()
        must("docker", "run", "-d", "--name", package.NAME, "--network=host", "--runtime=onload", "--annotation=onload.dev/nic=all",
             *removal.SLEEP, timeout=120)
    with Part("upgrade"):
        same_again(manager)
        upgraded(manager, newer)
    removal.with_containers_left(manager)
    with Part("after the last container"):
        gone(manager, before, before_directories)
