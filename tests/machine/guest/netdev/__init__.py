"""Interfaces that move into containers: virtual functions of igb, in engines with networks of their own.

The first igb shares a wire with an e1000e, which has a network of its own: what a function's interface sends into that network and gets
back went over the wire.
"""

import contextlib

import engines
from report import Part, check, log

from . import arrivals, back, cluster, discovery, ends, refusals, vf_settings, while_held
from .lab import Lab

PARTS = ["netdev-in", "netdev-card", "netdev-refused", "netdev-hostile", "netdev-restore", "netdev-udev", "netdev-ends", "netdev-stays",
         "netdev-held", "netdev-pod", "netdev-cluster", "vf-settings"]


def parts(bench, table, wanted, full):
    """A run of everything tries one way in with --quick and few with --full: all of them take half an hour."""
    few = not full and not wanted

    def on(name):
        return any(word in name for word in wanted) if wanted else full or name in ("netdev-in", "netdev-card")

    if not any(map(on, PARTS)):
        return
    by_name = {engine.name: engine for engine in engines.all_engines()}
    with contextlib.ExitStack() as stack:
        with Part("netdev: devices"):
            lab = stack.enter_context(Lab(bench))
            log(f"interfaces {lab.first.name} and {lab.second.name}, the card at the other end {lab.card.name}")
        with Part("netdev: discovery"):
            discovery.offered_by_the_unit(lab)
            if on("netdev-in"):
                discovery.in_use(lab)
        if on("netdev-in"):
            arrivals.parts(lab, table, full and bool(wanted), few)
        if on("netdev-refused"):
            with Part("netdev: refusals"):
                refusals.parts(lab)
        back.parts(lab, on)
        ends.parts(lab, on, by_name, bool(wanted), few)
        while_held.parts(lab, on, by_name)
        cluster.parts(lab, on)
        vf_settings.parts(lab, on)
        if on("netdev-card"):
            with Part("netdev: a card"):
                arrivals.card(lab, engines.Docker(), "cdi")
        log(f"netdev: {lab.moves} moves and {lab.ends} ends")
        check("netdev: no interface was lost", lab.moves > 0 and lab.ends > 0 and lab.lost == 0, f"{lab.moves} moves, {lab.ends} ends, {lab.lost} lost")
