"""Runs in the guest as root: does what settings.json asks, then powers off."""

import json
import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import report  # noqa: E402


def main():
    with open("/run/machine/settings.json", encoding="utf-8") as file:
        settings = json.load(file)
    mode = settings["mode"]
    try:
        if mode == "provision":
            import provision
            provision.provision()
        elif mode == "bare":
            import bare
            bare.bare()
        elif mode == "capture":
            import capture
            capture.capture(settings["hardware"])
        elif mode == "package":
            import package
            package.package()
        elif mode == "installer":
            import installer
            installer.installer()
        elif mode == "upgrade":
            import upgrade
            upgrade.upgrade()
        elif mode == "boot_host":
            import host_boot
            host_boot.host_boot()
        elif mode == "netdev_boot":
            from netdev import boot
            boot.netdev_boot()
        elif mode == "near":
            import near
            near.near()
        elif mode == "rpm":
            import rpm_package
            rpm_package.rpm_package()
        else:
            import session
            session.session(settings)
    except Exception:  # the host must learn of it, whatever it was
        report.check(f"the guest's program ({mode})", False, traceback.format_exc())
    report.emit("done")
    os.sync()
    report.run("systemctl", "poweroff", "--force")


main()
