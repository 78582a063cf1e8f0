# What a change has to pass, one recipe a check. `.ci/run` installs what they need and runs `just ci`.

# What runs the README's commands: nothing, or a program with its arguments
as := ""

set shell := ["bash", "-euo", "pipefail", "-c"]

[private]
default:
    @"{{ just_executable() }}" --justfile "{{ justfile() }}" --list --unsorted

# While you work: form, clippy, unit tests of the crates that differ from a branch, golden files, documentation
quick base="main": fmt clippy && doc
    #!/usr/bin/env bash
    set -euo pipefail
    since=$(git merge-base "{{ base }}" HEAD || echo HEAD)
    crates=$({ git diff --name-only "$since"; git ls-files --others --exclude-standard; } | awk -F/ '
        /^(cdi|sys|core|lease|hooks|host|engines|report)\// { print "-ponload-" $1 }
        /^cluster\// { print "-ponload-" $2 }
        /^src\// { print "-ponload-ctk" }' | sort -u)
    # shellcheck disable=SC2086 # several words
    [ -z "$crates" ] || cargo test --lib --locked $crates
    cargo test --locked --test cases -- --quiet
    cargo test --locked --test it -- --quiet bundles:: default_config:: golden:: topology::

# The guest takes more than half of the time, on a core and a half: the programs that it begins with are built first, the
# Kubernetes agent while it runs, and all the rest runs beside it with what it leaves.

# Everything: what fails within seconds first, the guest beside the rest
ci:
    #!/usr/bin/env bash
    set -euo pipefail
    just() { nice -n "$nice" "{{ just_executable() }}" --justfile "{{ justfile() }}" "$@"; }
    title() { printf '\n== %s (%s s) ==\n' "$1: $(just --list --unsorted | sed -n "s/^ *$1 [^#]*# //p")" "$SECONDS"; }
    # The seconds and name of each step.
    steps=()
    run_one() {
        local begin=$SECONDS
        title "$1"
        just "$@"
        steps+=($((SECONDS - begin)) "$1")
    }
    run() { for recipe in "$@"; do run_one "$recipe"; done; }
    nice=0
    log=$(mktemp)
    jobs=()
    trap 'for job in "${jobs[@]}"; do kill -- "-$job" 2>/dev/null || true; done; rm -f "$log"' EXIT
    # A process group each, which ends as a whole.
    beside() { set -m; just "$@" >>"$log" 2>&1 & jobs+=($!); set +m; }

    run fmt subjects spelling
    beside machine --build-guest
    run_one release hooks tools
    beside machine
    nice=5
    run github doc clippy aarch64 msrv deny package hooks-budget fuzz user test first-command syscalls
    begin=$SECONDS
    title machine
    tail --lines=+1 --follow --pid="${jobs[1]}" "$log"
    wait "${jobs[1]}"
    steps+=($((SECONDS - begin)) "machine, after the others")
    printf '\n== seconds of each step ==\n'
    printf '%6s  %s\n' "${steps[@]}"
    printf '\n== done (%s s) ==\n' "$SECONDS"

# Every test that needs no virtual machine, by the README's own command
test *options:
    #!/usr/bin/env bash
    set -euo pipefail
    command=$(sed -n '/^This runs the tests:$/,/^```$/s/^\(cargo test.*\)$/\1/p' README.md)
    [ -n "$command" ] || { echo "README.md names no test command"; exit 1; }
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    echo "\$ $command {{ options }}"
    status=0
    {{ as }} bash -c "$command {{ options }}" 2>&1 | tee "$log" || status=$?
    # The harness counts a test that returned early as passed.
    scripts/summarize-skips <"$log"
    exit "$status"

# The README's first command
first-command:
    #!/usr/bin/env bash
    set -euo pipefail
    command=$(sed -n '/^## Try it$/,/^This runs the tests:$/s/^\(cargo run.*\)$/\1/p' README.md)
    [ -n "$command" ] || { echo "README.md names no first command"; exit 1; }
    {{ as }} bash -ec "$command"

# As root builds into the same directory afterwards, nothing is compiled twice, and what either leaves meets the other.

# The README's commands as an ordinary user, before root runs them
user:
    #!/usr/bin/env bash
    set -euo pipefail
    if [ "$(id -u)" != 0 ]; then
        echo "skipped: this is an ordinary user, who runs the tests anyway"
        exit
    fi
    if ! unshare --mount true; then
        echo "skipped: root may not make a mount namespace here"
        exit
    fi
    "{{ just_executable() }}" --justfile "{{ justfile() }}" --set as .ci/as-user first-command
    "{{ just_executable() }}" --justfile "{{ justfile() }}" --set as .ci/as-user test

# The programs, as packages and the image have them
release *words:
    scripts/build-programs {{ words }}

# What a release publishes: packages, tarball, image, chart, notes, bills of materials and checksums, in target/dist
release-all:
    packaging/release

# Size and dependencies of what runs at every container start
hooks-budget:
    scripts/check-hooks-budget

# A website of docs/, with mdBook, in target/site; fails if a link leads nowhere
site:
    scripts/build-site

# System calls and memory of discovery
syscalls: release
    ONLOAD_CTK=target/programs/onload-ctk scripts/count-syscalls

# ONLOAD_CTK_MACHINE=off leaves it out: it boots a guest without KVM, which takes minutes.

# Every engine and entry point in a booted guest
machine what="--quick":
    #!/usr/bin/env bash
    set -euo pipefail
    if [ "${ONLOAD_CTK_MACHINE:-on}" = off ]; then
        echo "skipped: ONLOAD_CTK_MACHINE=off"
    elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "skipped: building its guest needs root and Debian's apt"
    else
        flock justfile tests/machine/install-deps
        tests/machine/run {{ what }}
    fi

# The quick part in a guest with aarch64, as root: before a release, not part of ci
machine-aarch64:
    flock justfile tests/machine/install-deps arm64
    tests/machine/run --architecture arm64

# The form of the sources
fmt:
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check
    cargo fmt --manifest-path tests/tools/cdi-crate-oracle/Cargo.toml --check

# What clippy says, in tests and benchmarks too
clippy:
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings

# That the programs compile for the other architecture that a release has
aarch64:
    #!/usr/bin/env bash
    set -euo pipefail
    . packaging/scripts/binaries.sh
    if ! target=$(scripts/hooks-target arm64); then
        echo "skipped: there is no standard library for aarch64 here"
        exit
    fi
    if ! tool_for arm64 gcc >/dev/null; then
        echo "skipped: there is no cross compiler"
        [ "${ONLOAD_CTK_REQUIRE_ROOT:-}" != 1 ]
        exit
    fi
    across_to arm64 cargo check --workspace --locked --target "$target"

# That the oldest compiler that `rust-version` allows can build the programs; rustup installs it
msrv:
    #!/usr/bin/env bash
    set -euo pipefail
    version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml).0
    if ! command -v rustup >/dev/null; then
        echo "skipped: rustup is not installed"
        exit
    fi
    if ! rustup run "$version" rustc --version 2>/dev/null && ! rustup toolchain install "$version" --profile minimal; then
        echo "skipped: rustup cannot install Rust $version"
        exit
    fi
    cargo "+$version" check --workspace --locked

# QEMU 10.0 has no bpf(2), and of netlink rtnetlink and uevents alone. What is left out asks for these, mounts over a file of
# /proc, or has forty threads wait for one lock, which then takes longer than a start may.

# Unit tests as programs of aarch64, by QEMU's user emulation (package qemu-user); not part of ci
aarch64-test *packages="onload-sys onload-core onload-lease":
    #!/usr/bin/env bash
    set -euo pipefail
    . packaging/scripts/binaries.sh
    target=$(scripts/hooks-target arm64)
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64
    words="{{ packages }}"
    # shellcheck disable=SC2086 # several words
    across_to arm64 cargo test --lib --locked --target "$target" ${words//onload-/--package=onload-} -- \
        --skip bpf::interface --skip a_program_on_netlink --skip nobody_but_the_kernel --skip the_boot_is_the_kernel_s \
        --skip containers_that_take_at_once

# libFuzzer itself, which takes longer to compile than they, is not needed: nothing is linked.

# The fuzz targets compile
fuzz:
    cd fuzz && CUSTOM_LIBFUZZER_PATH=./libfuzzer.a RUSTFLAGS="--cfg fuzzing -D warnings" cargo check --locked

# Most items are private to their crates, and read by those who work on them; onload-cdi is read by others too.
# The other programs have the names of their libraries. With examples, dependencies have the features that clippy has
# checked them with.

# The documentation of the crates
doc:
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --all-features --locked \
        --document-private-items --lib --examples --bin onload-hook --bin onload-container-runtime --bin onload-nomad-device
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

# That the version of onload-cdi fits what changed in its interface since the last release
semver:
    scripts/check-semver

# GitHub reads these files only once they are on its default branch, or a tag is pushed. actionlint, which compiles for
# minutes or comes from elsewhere, and ansible-lint, which is large, are used if they are installed.

# Workflows and issue forms of GitHub, the scripts that they run, and compose files and the Ansible role
github:
    #!/usr/bin/env bash
    set -euo pipefail
    if ! command -v check-jsonschema >/dev/null; then
        echo "skipped: check-jsonschema is not installed"
        [ "${ONLOAD_CTK_REQUIRE_ROOT:-}" != 1 ]
        exit
    fi
    cd .github
    check() { check-jsonschema --quiet --builtin-schema "vendor.$1" "${@:2}"; }
    check github-workflows workflows/*.yml
    check dependabot dependabot.yml
    check github-issue-config ISSUE_TEMPLATE/config.yml
    check github-issue-forms ISSUE_TEMPLATE/[!c]*.yml
    if grep -n ' uses: ' workflows/*.yml | grep -vE '@[0-9a-f]{40} # v'; then
        echo "actions are named by their commit, with the version in a comment"
        exit 1
    fi
    grep -ohE '(\.ci|packaging|scripts)/[a-z-]+' workflows/*.yml | sort -u | (cd .. && xargs -n1 test -x)
    ! command -v actionlint >/dev/null || actionlint workflows/*.yml
    cd ..
    check compose-spec packaging/compose/*.yaml
    ! command -v ansible-lint >/dev/null || (cd packaging/ansible && ansible-lint --offline -qq playbook.yml roles/onload_ctk)
    shellcheck -x packaging/{install.sh,publish,release,sbom,scripts/project.sh} scripts/{build-site,check-semver,set-repository}

# The database of advisories is fetched from elsewhere; what needs no network is checked.

# Licences and sources of the dependencies
deny:
    command -v cargo-deny >/dev/null || CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --quiet --debug cargo-deny
    cargo fetch --locked
    cargo deny --offline --workspace check bans licenses sources

# Vulnerabilities and unmaintained crates among the dependencies; fetches RustSec's database
advisories:
    command -v cargo-deny >/dev/null || CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --quiet --debug cargo-deny
    cargo deny --workspace check advisories

# What was copied from elsewhere is left out.

# Spelling in sources and pages, and unclear phrases in lines added since a commit
spelling *base:
    #!/usr/bin/env bash
    set -euo pipefail
    scripts/check-prose {{ base }}
    if ! command -v codespell >/dev/null; then
        echo "skipped: codespell is not installed"
        [ "${ONLOAD_CTK_REQUIRE_ROOT:-}" != 1 ]
        exit
    fi
    git ls-files -z -- . ':!*.lock' ':!LICENSE-*' ':!cdi/LICENSE-*' ':!tests/hosts' ':!cluster/kubernetes/tests/recorded/*/transcripts/*' ':!fuzz/seeds' |
        xargs -0 codespell

# Commits before that date were made without the rule. A shallow clone has fewer commits, and those are read.

# Subjects of commits: a component, and at most 72 characters
subjects range="--since=2026-11-23T00:00":
    #!/usr/bin/env bash
    set -euo pipefail
    if ! git rev-parse --git-dir >/dev/null; then
        echo "skipped: this is no git checkout"
        exit
    fi
    subjects=$(git log --no-merges --format=%s "{{ range }}")
    [ -z "$subjects" ] || scripts/check-subjects <<<"$subjects"
    echo "read $(grep -c . <<<"$subjects" || true) subjects of {{ range }}"
