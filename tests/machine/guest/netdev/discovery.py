"""What discovery says of interfaces: the unit sees what a shell sees, and what the host uses stays with the reason."""

from pathlib import Path

from report import check, must, run

from .lab import PROGRAM, SPEC, names_in, reason_for


def offered_by_the_unit(lab):
    """The unit sees by netlink what a shell sees, and its specifications are the same."""
    lab.configure()
    done = run("systemctl", "start", "onload-cdi.service", timeout=120)
    said = run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "onload-cdi.service").out
    names = names_in(SPEC)
    check("netdev: the unit offers what the operator names", done.status == 0 and {one.name for one in lab.both} <= set(names), f"{done}\n{names}\n{said}")
    shell = Path("/run/machine/shell-specs")
    done = run("onload-ctk", "cdi", "generate", "--output-dir", shell)
    same = SPEC.exists() and (shell / SPEC.name).exists() and (shell / SPEC.name).read_bytes() == SPEC.read_bytes()
    check("netdev: and writes what a shell writes", same, done)


def in_use(lab):
    """What the host uses is not offered, and the reason says what for."""
    name, other = lab.second.name, lab.physical[0]
    lab.configure(offered=["*"])
    check("netdev: a function's interface with functions of its own stays", "it has virtual functions" in reason_for(other), reason_for(other))
    check("netdev: an idle interface is offered", reason_for(name) == "", reason_for(name))
    tries = [("an address", "it has the address 203.0.113.77/24", [["address", "add", "203.0.113.77/24", "dev", name]], [["address", "flush", "dev", name]]),
             ("an XDP program", "an XDP program is attached", [["link", "set", "dev", name, "xdpgeneric", "pinned", PROGRAM]], [["link", "set", "dev", name, "xdpgeneric", "off"]]),
             ("a macvlan on it", "macvlan \"on-it\" is on it", [["link", "add", "on-it", "link", name, "type", "macvlan"]], [["link", "delete", "on-it"]])]
    for what, words, make, undo in tries:
        try:
            for command in make:
                must("ip", *command)
            reason = reason_for(name)
        finally:
            for command in undo:
                run("ip", *command)
        check(f"netdev: an interface with {what} stays on the host, with the reason", words in reason, reason)
    lab.configure(offered=["*"])
    check("netdev: it is offered when the host uses it no more", reason_for(name) == "" and lab.second.is_home(), f"{reason_for(name)}\n{lab.second}")
