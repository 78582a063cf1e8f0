"""A run: devices up, then the parts that the settings name, each timed."""

import os
import shutil
import tomllib
from pathlib import Path

import devices
import engines
import fixture
import live
import matrix
import provision
from report import Part, check, emit, run

BINARIES = ["onload-ctk", "onload-hook", "onload-container-runtime", "onload-nri", "onload-nomad-device"]
ALLOW = ["nic", "nic-plain", "nic-nodes", "zf", "profile", "rdma", "vfio", "hugepages", "ptp", "pps"]


def install():
    """The product into the guest, as its package would."""
    for name in BINARIES:
        shutil.copy(f"/run/machine/bin/{name}", f"/usr/bin/{name}")
        os.chmod(f"/usr/bin/{name}", 0o755)
    packaging = Path("/run/machine/packaging")
    for path in [packaging / "ld.so.preload", *sorted(packaging.glob("hooks.d/*/*.json"))]:
        target = Path("/usr/share/onload-ctk") / path.relative_to(packaging)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def configure(low):
    """The operator's file for a row of the matrix: `low` is the runtime that the wrapper becomes."""
    os.makedirs("/etc/onload-ctk", exist_ok=True)
    classes = ", ".join(f'"{name}"' for name in ALLOW)
    Path("/etc/onload-ctk/config.toml").write_text(
        f'[annotations]\nallow = [{classes}]\nroot-with-onload = "allow"\n\n[runtime]\npath = "{low}"\n', encoding="ascii")


def expected(table, engine, door):
    """The door's values, then what differs for the engine, then for the cell."""
    values = dict(table["door"][door])
    values.update(table.get("engine", {}).get(engine, {}))
    values.update(table.get("cell", {}).get(engine, {}).get(door, {}))
    return values


def run_cell(bench, table, engine, door):
    configure(engine.low)
    extra = {"onload.dev/ipc-lock": "true"} if door in ("wrapper", "precreate") else {}
    want = expected(table, engine.name, door)
    with Part(f"{engine.name} {door}"):
        values, text = matrix.cell(bench, engine, door, extra)
    emit("cell", engine=engine.name, door=door, values=values, want=want)
    if want["start"] != values["start"] or values["start"] != "yes":
        check(f"{engine.name} {door}: start is {want['start']}", values["start"] == want["start"], f"start: {values['start']}\n{text}")
        return
    shown = False
    for key, value in values.items():
        detail = f"expected {want.get(key)!r}, got {value!r}" + ("" if shown else f"\n{text}")
        shown |= not check(f"{engine.name} {door}: {key} is {want.get(key)}", value == want.get(key), detail)


def ten_in_a_row(bench, engine, door):
    """Nothing of ten containers stays on the host."""
    before = matrix.leftovers()
    for number in range(10):
        name = f"row-{number}"
        started = engine.run(name, "debian13", ["sh", "-c", "exit 0"], engines.Request(door, bench.asks(False)))
        engine.remove(name)
        if not check(f"{engine.name} {door}: ten containers in a row start", started.status == 0, started):
            break
    after = matrix.leftovers()
    for key, value in before.items():
        check(f"{engine.name} {door}: ten containers leave no {key}", after[key] == value, f"before: {value}\nafter: {after[key]}")


def session(settings):
    with open("/run/machine/guest/expected.toml", "rb") as file:
        table = tomllib.load(file)
    emit("log", text=run("systemd-analyze").out.partition("\n")[0] or "boot: systemd is not through yet")
    with Part("devices"):
        found = devices.bring_up()
        emit("log", text=f"devices: {found}")
    with Part("engines"):
        engines.prepare()
    bench = matrix.Bench(found)
    doors = ["plain", "cdi"]
    if settings["fixture"]:
        fixture.write(found)
    else:
        install()
        configure("/usr/bin/runc")
        with Part("cdi generate"):
            done = run("onload-ctk", "cdi", "generate")
            check("onload-ctk cdi generate", done.status == 0, done)
            emit("log", text=f"specs: {sorted(os.listdir('/var/run/cdi'))}\n{done.err}")
        live.write_hook_spec()
        doors += ["wrapper", "precreate", "live"]
    wanted = settings.get("only") or []
    for engine in engines.all_engines():
        if settings["guest"] != "debian13":
            engine.name = f"{settings['guest']}-{engine.name}"
        for door in doors:
            name = f"{engine.name}-{door}"
            if (door == "plain" or door in engine.doors) and (not wanted or any(word in name for word in wanted)):
                run_cell(bench, table, engine, door)
    if (not wanted or "ten" in wanted) and settings["guest"] == "debian13":
        with Part("ten in a row"):
            ten_in_a_row(bench, engines.Podman("crun"), "cdi" if settings["fixture"] else "wrapper")
    if not settings["fixture"]:
        import leases
        leases.parts(bench, table, wanted, settings["full"], settings["guest"])
        import bundles
        bundles.parts(bench, wanted, settings["full"], settings["guest"])
        if settings["guest"] == "debian13":
            import draining
            draining.parts(bench, wanted)
            if os.path.exists(provision.NEWEST):
                import kubernetes
                kubernetes.parts(bench, wanted, settings["full"])
                import nri
                nri.parts(bench, wanted, settings["full"])
            import nomad
            nomad.parts(bench, wanted)
            import netdev
            netdev.parts(bench, table, wanted, settings["full"])
            import trying
            trying.parts(bench, wanted, settings["full"])
    if "live" in doors:
        live.parts(bench, table, wanted, settings["full"], settings["guest"])
    if settings["full"]:
        import parts
        parts.all_parts(bench, table, wanted, doors[1:], not settings["fixture"], settings["guest"])
        if settings["guest"] == "debian13" and not settings["fixture"]:
            import stale
            stale.parts(bench, table, wanted)
    # Last: they load drivers again.
    if settings["guest"] == "debian13" and not settings["fixture"]:
        if settings["full"] or wanted:
            import rdma_libraries
            if rdma_libraries.IMAGES.exists():
                rdma_libraries.parts(bench, wanted)
            import rdma_exclusive
            rdma_exclusive.parts(bench, wanted)
        import seeing
        seeing.parts(bench, wanted, settings["full"])
