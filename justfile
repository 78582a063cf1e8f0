# What a change has to pass, one recipe a check. `.ci/run` installs what they need and runs them all.

set shell := ["bash", "-euo", "pipefail", "-c"]

[private]
default:
    @"{{ just_executable() }}" --justfile "{{ justfile() }}" --list --unsorted

# Every test that needs no virtual machine, by the README's own command
test:
    #!/usr/bin/env bash
    set -euo pipefail
    command=$(sed -n '/^This runs the tests:$/,/^```$/s/^\(cargo test.*\)$/\1/p' README.md)
    [ -n "$command" ] || { echo "README.md names no test command"; exit 1; }
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    echo "\$ $command"
    bash -c "$command" 2>&1 | tee "$log"
    # The harness counts a test that returned early as passed.
    if skipped=$(grep -o 'skipped: .*' "$log" | sort); then
        printf '\n%s tests or parts of them checked nothing here:\n%s\n' "$(wc -l <<<"$skipped")" "$skipped"
    fi

# The README's first command
first-command:
    #!/usr/bin/env bash
    set -euo pipefail
    command=$(sed -n '/^## Try it$/,/^This runs the tests:$/s/^\(cargo run.*\)$/\1/p' README.md)
    [ -n "$command" ] || { echo "README.md names no first command"; exit 1; }
    bash -ec "$command"

# Size and dependencies of what runs at every container start
hooks-budget:
    scripts/check-hooks-budget

# A release build of the workspace
release:
    cargo build --release --workspace --locked

# System calls and memory of discovery
syscalls:
    scripts/count-syscalls

# ONLOAD_CTK_MACHINE=off leaves it out: it boots a guest without KVM, which takes minutes.

# Every engine and entry point in a booted guest
machine:
    #!/usr/bin/env bash
    set -euo pipefail
    if [ "${ONLOAD_CTK_MACHINE:-on}" = off ]; then
        echo "skipped: ONLOAD_CTK_MACHINE=off"
    elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "skipped: building its guest needs root and Debian's apt"
    else
        tests/machine/install-deps
        tests/machine/run --quick
    fi

# The form of the sources
fmt:
    cargo fmt --all --check

# What clippy says, in tests and benchmarks too
clippy:
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings

# The fuzz targets compile
fuzz:
    cd fuzz && RUSTFLAGS="--cfg fuzzing -D warnings" cargo check --locked

# Most items are private to their crates, and read by those who work on them; onload-cdi is read by others too.

# The documentation of the crates
doc:
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --locked --document-private-items
    RUSTDOCFLAGS="-D warnings" cargo doc -p onload-cdi --no-deps --locked

# The package of onload-cdi: it stands alone and names nothing of the toolkit
package:
    #!/usr/bin/env bash
    set -euo pipefail
    for licence in LICENSE-MIT LICENSE-APACHE; do
        cmp "$licence" "cdi/$licence"
    done
    packaged=$(cargo package -p onload-cdi --locked --allow-dirty 2>&1) || { echo "$packaged"; exit 1; }
    if grep '^warning' <<<"$packaged"; then
        echo "cargo package warns"
        exit 1
    fi
    if grep -rniE 'onload|ctk' cdi/src cdi/tests cdi/README.md | grep -vE 'onload_cdi(::|;)'; then
        echo "cdi/ names the toolkit"
        exit 1
    fi

# The database of advisories is fetched from elsewhere; what needs no network is checked.

# Licences and sources of the dependencies
deny:
    command -v cargo-deny >/dev/null || cargo install --locked --quiet cargo-deny
    cargo fetch --locked
    cargo deny --offline --workspace check bans licenses sources

# What was copied from elsewhere is left out.

# Spelling, in sources and pages
spelling:
    #!/usr/bin/env bash
    set -euo pipefail
    if ! command -v codespell >/dev/null; then
        echo "skipped: codespell is not installed"
        [ "${ONLOAD_CTK_REQUIRE_ROOT:-}" != 1 ]
        exit
    fi
    git ls-files -z -- . ':!*.lock' ':!LICENSE-*' ':!cdi/LICENSE-*' ':!tests/hosts' ':!tests/versions' ':!tests/refusals.txt' ':!fuzz/seeds' |
        xargs -0 codespell

# Commits before that date were made without the rule. A shallow clone has fewer commits, and those are read.

# Subjects of commits: a component, and at most 72 characters
subjects range="--since=2026-11-23":
    #!/usr/bin/env bash
    set -euo pipefail
    if ! git rev-parse --git-dir >/dev/null; then
        echo "skipped: this is no git checkout"
        exit
    fi
    subjects=$(git log --no-merges --format=%s "{{ range }}")
    [ -z "$subjects" ] || scripts/check-subjects <<<"$subjects"
    echo "read $(grep -c . <<<"$subjects" || true) subjects of {{ range }}"
