# Programs of the packages and of the image, as packaging/build and packaging/image build them: static, and the
# same bytes wherever the same commit is built.
# shellcheck shell=bash

# Builds the programs of a package of the workspace for a target, into target/build/TARGET/release.
build_static() {
    local package=$1 target=$2 separator=$'\x1f'
    # shellcheck disable=SC2054 # the commas belong to the linker
    local flags=(
        -Ctarget-feature=+crt-static
        "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
        "--remap-path-prefix=$PWD=/build"
        # A hash of the linked file, debugging information included, which paths stand in.
        -Clink-arg=-Wl,--build-id=none
    )
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator && echo "${flags[*]}") \
        cargo build --release --locked -p "$package" --bins --target "$target" --target-dir target/build
}

# What tells one compiler's output from another's.
strip_static() {
    strip --strip-all --remove-section=.comment "$@"
}
