#!/bin/sh
# Installs onload-ctk from a release: downloads the package for this distribution and architecture, verifies and installs it.
set -eu

version=@version@
repository=@repository@
url=
dry_run=
action=install

usage() {
    cat <<TEXT
install.sh [OPTION]...   installs onload-ctk $version, as root

  --version VERSION  installs another version
  --url URL          downloads from this directory instead of $repository; also http: or file:
  --uninstall        removes onload-ctk; keeps changed files in /etc
  --dry-run          prints the commands and changes nothing
TEXT
}

die() {
    echo "install.sh: $*" >&2
    exit 1
}

run() {
    echo "+ $*"
    [ -n "$dry_run" ] || "$@"
}

# The value of a key in os-release(5), without quotes.
os_release() { sed -n "s/^$1=[\"']\{0,1\}\([^\"']*\)[\"']\{0,1\}$/\1/p" /etc/os-release 2>/dev/null || true; }

download() { # file name
    # Only a URL that the caller named may lack TLS, and it may not be redirected to a weaker protocol.
    run curl --fail --silent --show-error --location --proto "=$protocol" --proto-redir =https \
        --output "$1" "$url/$1" || die "could not download $url/$1${hint:-}"
}

# A checksum from the same server does not prove who made a file; the attestation of the release does.
verify_provenance() {
    case $repository in
    https://github.com/*) ;;
    *) return 1 ;;
    esac
    # It needs a login even for public repositories, and gh 2.49 or newer.
    [ -z "$is_named" ] && gh auth status >/dev/null 2>&1 && gh attestation verify --help >/dev/null 2>&1 || return 1
    run gh attestation verify "$directory/$file" --repo "${repository#https://github.com/}" ||
        die "the provenance of $file could not be verified; nothing was installed"
}

verify() {
    run sha256sum --check --quiet expected || die "the checksum of $file does not match; nothing was installed"
    verify_provenance ||
        echo "install.sh: the provenance of $file was not verified: its checksum comes from the same server." \
            "Releases on GitHub can be verified if gh 2.49 or newer is logged in and --url is not used." >&2
}

fetch() {
    case $version in
    @*) die "this is a template; use the install.sh of a release, or name a version with --version" ;;
    esac
    command -v curl >/dev/null || die "curl is missing; install it"
    is_named=$url
    url=${url:-$repository/releases/download/v$version}
    url=${url%/}
    protocol=${url%%:*}
    case $protocol:$is_named in
    https:*) ;;
    http:?* | file:?*) ;;
    *) die "expected an https: URL, found $url" ;;
    esac
    case $url in https://*.invalid/*) hint="; no release is published yet: name a directory with --url" ;; esac
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    run cd "$directory"
    download SHA256SUMS
    [ -n "$dry_run" ] || grep -F "  $file" SHA256SUMS >expected || die "$url/SHA256SUMS does not list $file"
    download "$file"
    verify
}

unpack() {
    run tar -xzf "$directory/$file" -C "$directory"
    program=$directory/${file%.tar.gz}/install
}

while [ $# -gt 0 ]; do
    case $1 in
    --version | --url)
        [ $# -gt 1 ] || die "$1 needs a value"
        if [ "$1" = --url ]; then url=$2; else version=$2; fi
        shift
        ;;
    --uninstall) action=uninstall ;;
    --dry-run) dry_run=yes ;;
    --help | -h) usage && exit ;;
    *) die "unknown option $1; install.sh --help lists all" ;;
    esac
    shift
done
case $version in
*[!0-9A-Za-z.~@-]*) die "invalid version $version" ;;
esac

case $(uname -m) in
x86_64) machine=x86_64 architecture=amd64 ;;
aarch64) machine=aarch64 architecture=arm64 ;;
*) die "there is no package for the architecture $(uname -m)" ;;
esac
[ -n "$dry_run" ] || [ "$(id -u)" = 0 ] || die "run it as root, or with --dry-run"

case " $(os_release ID) $(os_release ID_LIKE) " in
*" debian "* | *" ubuntu "*) file=onload-ctk_$version-1_$architecture.deb install="dpkg -i" uninstall="dpkg -r" ;;
*" fedora "* | *" rhel "*) file=onload-ctk-$version-1.$machine.rpm install="dnf install -y" uninstall="dnf remove -y" ;;
*suse*)
    file=onload-ctk-$version-1.$machine.rpm
    install="zypper --non-interactive --no-gpg-checks install"
    uninstall="zypper --non-interactive remove"
    ;;
*) file=onload-ctk-$version-$machine-linux.tar.gz install='' uninstall='' ;;
esac

# shellcheck disable=SC2086 # commands with their options
case $action:$install in
install:)
    fetch
    unpack
    run "$program"
    ;;
install:*)
    fetch
    run $install "$directory/$file"
    ;;
uninstall:)
    fetch
    unpack
    run "$program" --remove
    ;;
uninstall:*) run $uninstall onload-ctk ;;
esac
[ "$action" = uninstall ] || echo "Next: run \"onload-ctk\" to see what this host offers."
