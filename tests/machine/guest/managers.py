"""The package managers that our packages are for, driven the same way."""

from pathlib import Path

from report import must, run

DIST = Path("/run/machine/dist")
NAME = "onload-ctk"


class Dpkg:
    """Debian's own."""

    installs, removes, purges = "dpkg -i", "dpkg -r", "dpkg -P"

    def package(self):
        return next(DIST.glob("onload-ctk_*.deb"))

    def install(self):
        return run("dpkg", "-i", self.package(), timeout=180)

    def remove(self):
        return run("dpkg", "-r", NAME, timeout=180)

    def purge(self):
        return run("dpkg", "-P", NAME, timeout=180)


class Rpm:
    """Debian's rpm, with a database of its own.

    What Debian itself has installed is not in that database, so that no dependency is met there, not even /bin/sh: --nodeps.
    (Debian 12's rpm also complains unless it is told --force-debian, an option that Debian 13's no longer has.)
    All else is the code that runs on rpm's own distributions: scripts, files, configuration files.
    """

    installs, removes, purges = "rpm -i", "rpm -e", None

    def __init__(self):
        must("mkdir", "-p", "/var/lib/rpm")

    def package(self):
        return next(DIST.glob("onload-ctk-[0-9]*.rpm"))

    def ask(self, *words):
        """A question to rpm, which changes nothing."""
        return run("rpm", "--dbpath=/var/lib/rpm", *words, timeout=60)

    def change(self, *words):
        return run("rpm", "--dbpath=/var/lib/rpm", "--nodeps", *words, timeout=240)

    def install(self):
        return self.change("-i", self.package())

    def upgrade(self, package, *options):
        return self.change("-U", *options, package)

    def remove(self):
        return self.change("-e", NAME)
