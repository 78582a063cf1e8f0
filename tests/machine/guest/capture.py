"""What the product's `discover --capture` writes of this guest, unpacked onto the output disk: a tar of a host for tests/hosts."""

import shutil

import devices
import session
from report import Part, check, must, run

DISK = "/dev/disk/by-id/virtio-output"
ARCHIVE = "/run/machine/host.tar.zst"


def capture(hardware):
    with Part("devices"):
        if hardware:
            devices.bring_up()
    session.install()
    done = run("onload-ctk", "discover", "--capture", ARCHIVE)
    check("onload-ctk discover --capture", done.status == 0, done)
    must("zstd", "-q", "-d", ARCHIVE, "-o", "/run/machine/host.tar")
    with open("/run/machine/host.tar", "rb") as tar, open(DISK, "wb") as disk:
        shutil.copyfileobj(tar, disk)
