# How programs are built for packages, the image and what checks them: static, and the same bytes wherever the same
# commit is built. What is built so once, in target/build, is there for all of them.
# shellcheck shell=bash

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
    )
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator && echo "${flags[*]}") CARGO_TARGET_DIR=target/build "$@"
}

# Runs a command as one of $steps, and says which and how long it took: step WHAT COMMAND...
step() {
    local began=$SECONDS what=$1
    shift
    step_number=$((${step_number:-0} + 1))
    echo "[$step_number/$steps] $what" >&2
    "$@"
    echo "[$step_number/$steps] $what: $((SECONDS - began)) s" >&2
}
