"""Small images of Debian's suites with their own RDMA programs, and all, some or none of the libraries that these need."""

import shutil
from pathlib import Path

from . import image

SUITES = {"debian11": "bullseye", "debian12": "bookworm", "debian13": "trixie", "sid": image.NEWEST}
PACKAGES = "busybox-static,libc-bin,ibverbs-providers,ibverbs-utils,rdmacm-utils"
APPLETS = ["sh", "sleep", "cat"]
LIBRARIES = "usr/lib/x86_64-linux-gnu/"
# What is kept of the packages.
BASE = ["bin", "sbin", "lib", "lib64", "usr/lib64", "usr/sbin/ldconfig", "etc/ld.so.conf", "etc/ld.so.conf.d",
        *(f"usr/bin/{name}" for name in ["busybox", *APPLETS, "ibv_devinfo", "ibv_rc_pingpong", "rping"]),
        *(LIBRARIES + name for name in ["ld-*", "libc[.-]*", "libdl[.-]*", "libpthread[.-]*", "libgcc_s.so.*"])]
LIBIBVERBS = [LIBRARIES + name for name in ["libibverbs.so.*", "librdmacm.so.*", "libnl-*.so.*"]]
PROVIDERS = ["etc/libibverbs.d", *(LIBRARIES + name for name in ["libibverbs", "libefa.so.*", "libhns.so.*", "libionic.so.*", "libmana.so.*", "libmlx[45].so.*"])]
KINDS = {"own": BASE + LIBIBVERBS + PROVIDERS, "no-provider": BASE + LIBIBVERBS, "no-libibverbs": BASE}


def suite_tree(builder, name, suite):
    tree = builder.work / f"tree-{name}"
    builder.mmdebstrap(suite, "extract", PACKAGES, tree,
                       "--setup-hook=for d in bin sbin lib lib64; do mkdir -p \"$1/usr/$d\"; ln -s usr/$d \"$1/$d\"; done")
    for applet in APPLETS:
        (tree / "usr/bin" / applet).symlink_to("busybox")
    return tree


def build(work, say):
    builder = image.Builder("debian13", work, say)
    (work / "images").mkdir()
    for name, suite in SUITES.items():
        whole = builder.timed(f"packages of {suite}", suite_tree, builder, name, suite)
        for kind, kept in KINDS.items():
            tree = work / f"tree-{name}-{kind}"
            tree.mkdir()
            paths = [path.relative_to(whole) for pattern in kept for path in whole.glob(pattern)]
            builder.run("cp", "-a", "--parents", *paths, tree, cwd=whole)
            builder.container_image(f"{name}-{kind}", tree, {})
        shutil.rmtree(whole)


def ensure(say):
    """The directory with the archives, built when it is not there yet."""
    final = image.cache_dir() / f"rdma-images-{image.input_hash([f'host/{Path(__file__).name}'])}"
    if final.exists():
        return final
    work = final.with_name(final.name + ".building")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    say(f"images of Debian's suites: building {final}")
    build(work, say)
    for old in final.parent.glob("rdma-images-*"):
        if old != work:
            shutil.rmtree(old, ignore_errors=True)
    (work / "images").rename(final)
    shutil.rmtree(work)
    return final
