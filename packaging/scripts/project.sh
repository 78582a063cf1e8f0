# The version of the project, and the names and addresses that follow from `repository` in Cargo.toml. Read in its directory.
# shellcheck shell=bash disable=SC2034

manifest_value() { # key of [workspace.package]
    sed -n "/^\[workspace.package\]/,/^\[/s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml
}

# Where images and charts of a repository are published. Without a registry of its own a repository has the local name.
registry_of() { # repository
    case $1 in
    https://github.com/*/*) echo "$1" | sed 's|^https://github.com/\([^/]*\)/.*|ghcr.io/\1|' | tr '[:upper:]' '[:lower:]' ;;
    *) echo onload.dev ;;
    esac
}

version=$(manifest_value version)
repository=$(manifest_value repository)
registry=$(registry_of "$repository")
image=$registry/onload-kubernetes
