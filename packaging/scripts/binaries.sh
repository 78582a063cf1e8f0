# How programs are built for packages, the image and what checks them: static, and the same bytes wherever the same
# commit is built. What is built so once, in target/build, is there for all of them.
# shellcheck shell=bash

# This machine's architecture, by Debian's name.
own_architecture() {
    case $(uname -m) in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) uname -m ;;
    esac
}

# The same in the names of targets, of .rpm packages and of tarballs. What is built for is one of these, or this machine's.
machine_of() {
    case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
    "$(own_architecture)") echo "$1" ;;
    *) echo "there is no architecture $1: programs are built for amd64 and arm64" >&2 && return 2 ;;
    esac
}

# Where programs of an architecture are, once they are built.
programs_of() {
    if [ "$1" = "$(own_architecture)" ]; then echo target/programs; else echo "target/programs-$1"; fi
}

# A tool of binutils or gcc for an architecture: this machine's own, or Debian's cross compiler.
tool_for() { # architecture, tool
    local machine prefix=
    machine=$(machine_of "$1") || return
    [ "$1" = "$(own_architecture)" ] || prefix=$machine-linux-gnu-
    command -v "$prefix$2" && return
    echo "programs for $1 need $prefix$2: install the packages gcc-${machine//_/-}-linux-gnu and libc6-dev-$1-cross" >&2
    return 1
}

# Runs a command whose cargo builds for an architecture: across_to ARCHITECTURE COMMAND...
across_to() {
    local architecture=$1 target compiler archiver
    shift
    if [ "$architecture" = "$(own_architecture)" ]; then
        "$@"
        return
    fi
    compiler=$(tool_for "$architecture" gcc) || return
    archiver=$(tool_for "$architecture" ar) || return
    target=$(machine_of "$architecture")_unknown_linux_musl
    # It links, and compiles the C code of a library.
    (export "CARGO_TARGET_${target^^}_LINKER=$compiler" "CC_$target=$compiler" "AR_$target=$archiver" && "$@")
}

# Runs a command whose cargo builds so.
as_packaged() {
    local separator=$'\x1f'
    # shellcheck disable=SC2054 # the commas belong to the linker
    local flags=(
        -Ctarget-feature=+crt-static
        "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
        "--remap-path-prefix=$PWD=/build"
        # A hash of the linked file, debugging information included, which paths stand in.
        -Clink-arg=-Wl,--build-id=none
        # They would be a ninth of onload-hook.
        "-Clink-arg=-Wl,-T,$PWD/packaging/scripts/no-unwind-tables.ld,--no-eh-frame-hdr"
    )
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator && echo "${flags[*]}") CARGO_TARGET_DIR=target/build "$@"
}

# Installs a subcommand of cargo if it is missing. Its optimized build takes minutes and would save seconds; what it writes is the same.
need() {
    command -v "$1" >/dev/null || CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug "$1"
}

# Runs a command as one of $steps, and says which and how long it took: step WHAT COMMAND...
# shellcheck disable=SC2154 # who calls has counted them
step() {
    local began=$SECONDS what=$1
    shift
    step_number=$((${step_number:-0} + 1))
    echo "[$step_number/$steps] $what" >&2
    "$@"
    echo "[$step_number/$steps] $what: $((SECONDS - began)) s" >&2
}
