"""The matrix as people read it: on the terminal, and as record.md."""

LEGEND = [
    ("start", "the container starts"), ("nodes", "every requested node opens and has the host's numbers"),
    ("closed", "nodes not requested do not open"), ("libraries", "the libraries are mounted read-only in both search directories"),
    ("preload", "libonload.so is mapped in the first process"), ("memlock", "its RLIMIT_MEMLOCK"),
    ("ipc-lock", "it holds CAP_IPC_LOCK"), ("mlock-root", "root locks 64 MiB"), ("mlock-user", "uid 1000 locks 64 MiB"),
    ("vfio", "the group's status, by ioctl"), ("huge-root", "root maps and touches a 2 MiB page"),
    ("huge-user", "uid 1000 maps and touches a 2 MiB page"), ("huge-returned", "the pages are free again after the end"),
    ("rdma", "ibv_devices lists the device"), ("exec-nodes", "an exec'd process opens the nodes"),
    ("exec-preload", "libonload.so is mapped in an exec'd process"), ("exec-memlock", "RLIMIT_MEMLOCK of an exec'd process"),
]
# What was tried beside the cells, by the guests' architecture.
TITLES = {"amd64": "## What else was tried", "arm64": "## Tried with aarch64"}
ARM = "debian13-arm64-"
FAILED = " (FAILED)"
TRIED_HEAD = "| what | engines and entry points |"
DOORS = ["plain", "cdi", "wrapper", "precreate", "live"]
RDMA_BEGIN, RDMA_END = "<!-- tests/machine/run writes this table -->\n\n", "\n\n<!-- its end -->"
KEYS = [key for key, _ in LEGEND]


def shown(cell, key):
    value, want = cell["values"].get(key, "-"), cell["want"].get(key, "-")
    return value if value == want or value == "-" else f"{value} (not {want})"


def table(cells):
    """Rows are checks, columns are engines and entry points: text cells."""
    rows = [["", *(f"{cell['engine']} {cell['door']}" for cell in cells)]]
    for key in KEYS:
        rows.append([key, *(shown(cell, key) for cell in cells)])
    return rows


def text(cells):
    """Engines down, checks across would be too wide for a terminal: one block an engine."""
    blocks = []
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        rows = table([cell for cell in cells if cell["engine"] == engine])
        rows[0] = ["", *(name.split(" ", 1)[1] for name in rows[0][1:])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [engine] + ["  " + "  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def rdma_table(cells):
    """A row is an image on a host. Engines and entry points with the same results share a column."""
    if not cells:
        return []
    rows, results = {}, {}
    for cell in cells:
        rows.setdefault((cell["host"], cell["image"], cell["reason"]), {})[cell["way"]] = cell["value"]
        results.setdefault(cell["way"], {})[cell["host"], cell["image"]] = (cell["value"], cell["reason"])
    columns = []
    for way in results:
        column = next((column for column in columns if all(same_results(results[way], results[other]) for other in column)), None)
        if column:
            column.append(way)
        else:
            columns.append([way])
    lines = [f"| host | image | {' | '.join(', '.join(column) for column in columns)} | why not |", "|---" * (len(columns) + 3) + "|"]
    for (host, name, reason), values in rows.items():
        texts = [next((values[way] for way in column if way in values), "-") for column in columns]
        lines.append(f"| {host} | {name} | {' | '.join(texts)} | {f'`{reason}`' if reason else ''} |")
    return lines


def same_results(one, other):
    """Whether two ways were tried with the same image, and had the same result with each such image."""
    both = one.keys() & other.keys()
    return bool(both) and all(one[key] == other[key] for key in both)


def with_rdma_table(page, cells):
    """A page whose table is replaced by the one that a run showed."""
    before, begin, rest = page.partition(RDMA_BEGIN)
    _, end, after = rest.partition(RDMA_END)
    return before + begin + "\n".join(rdma_table(cells)) + end + after if end else page


def earlier(old, section):
    """The checks that an earlier run wrote: name and whether it held."""
    _, _, rest = old.partition(section)
    names = []
    for line in rest.partition("\n## ")[0].splitlines():
        if line.startswith("- "):
            names.append(line[2:])
        elif line.startswith("| ") and line != TRIED_HEAD:
            what, _, where = line[2:].removesuffix(" |").partition(" | ")
            names += [place.removesuffix(FAILED) + ": " + what + (FAILED if place.endswith(FAILED) else "") for place in where.split(", ")]
    return {name.removesuffix(FAILED): not name.endswith(FAILED) for name in names}


def tried_lines(tried):
    """What was tried in several places is one row, all else one entry of a list."""
    rows, alone = {}, []
    for name, ok in tried.items():
        place, _, what = name.partition(": ")
        failed = "" if ok else FAILED
        if what and place.split()[-1] in DOORS:
            rows.setdefault(what.replace("|", "/"), []).append(place + failed)
        else:
            alone.append(f"- {name}{failed}")
    table = [TRIED_HEAD, "|---|---|", *(f"| {what} | {', '.join(places)} |" for what, places in rows.items()), ""]
    return (table if rows else []) + alone


def engine_tables(cells):
    """The lines of each engine's table."""
    tables = {}
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        rows = table([cell for cell in cells if cell["engine"] == engine])
        tables[engine] = [f"## {engine}", "", "| check | " + " | ".join(name.split(" ", 1)[1] for name in rows[0][1:]) + " |", "|---" * len(rows[0]) + "|",
                          *("| " + " | ".join(row) + " |" for row in rows[1:]), ""]
    return tables


def earlier_tables(old):
    """The same as an earlier run wrote them."""
    sections = [section.rstrip().split("\n") for section in old.split("\n## ")[1:]]
    return {section[0]: ["## " + section[0], *section[1:], ""] for section in sections if section[2:3] and section[2].startswith("| check |")}


def document(cells, others, whole, old, architecture):
    """record.md, written by the run itself. `others` are the checks beside the cells: (name, whether it holds).

    A run that was not `whole`, of all parts and guests of its architecture, leaves what it did not try as it stood.
    """
    lines = ["# What the guests showed", "",
             "`tests/machine/run` writes this page; do not edit it manually. It shows what a booted Debian 13 guest did (kernel 6.12, cgroup v2,",
             "emulated CPU and igb, stand-ins for Onload's modules and libraries, soft-RoCE), and with `--full` a Debian 12 guest with cgroup v1",
             "(kernel 6.1). With `--architecture arm64` it is a Debian 13 guest with aarch64, an SMMUv3 and UEFI, whose engines are named `debian13-arm64-…` here.",
             "A value in parentheses is the expected one, where the guest showed another. `(FAILED)` stands behind what failed, and `(stand-ins)`",
             "behind verdicts of `onload-ctk status` that rest on the stand-ins of Onload: no card showed them yet.", "",
             "A column is an entry point: `plain` requests nothing, `cdi` uses `--device`, `wrapper` the runtime `onload`, `precreate` podman's hook,",
             "`live` the OCI hook. `ctr` is containerd's own client, `cri` is containerd as a kubelet calls it. [entry-points.md](../../docs/entry-points.md)",
             "explains them.", ""]
    tables = engine_tables(cells)
    for engine, kept in earlier_tables(old).items():
        if not whole or engine.startswith(ARM) != (architecture == "arm64"):
            tables.setdefault(engine, kept)
    for engine in sorted(tables, key=lambda name: name.startswith(ARM)):
        lines += tables[engine]
    lines += ["## What the checks mean", ""] + [f"- `{key}`: {meaning}." for key, meaning in LEGEND] + [""]
    for of, title in TITLES.items():
        mine = others if of == architecture else []
        tried = {} if whole and of == architecture else earlier(old, title)
        for name in {name for name, _ in mine} & set(tried):
            tried[name] = True
        for name, ok in mine:
            tried[name] = tried.get(name, True) and ok
        if tried:
            lines += [title, "", *tried_lines(tried), ""]
    return "\n".join(lines).rstrip() + "\n"
