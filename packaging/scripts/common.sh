# Functions that the scripts of all packages share. packaging/build puts them where #COMMON# stands.

onload_ctk_units="onload-cdi.service onload-cdi.path onload-cdi.timer"

# Before the files go: engines no longer name a program that will not be there, and no engine is
# offered devices any more. Both take away what is ours and nothing else. What runs keeps running.
onload_ctk_forget() {
    # Without it the udev rule no longer starts the service.
    rm -rf /run/onload-cdi
    for engine in docker containerd crio podman nomad; do
        onload-ctk --quiet runtime configure --runtime "$engine" --remove ||
            echo "onload-ctk: $engine keeps its configuration; see above" >&2
    done
    rm -rf /run/onload-ctk/@locks
    rmdir /run/onload-ctk 2>/dev/null || true
    # A host with nothing in it offers nothing: every specification of ours goes, others stay.
    [ -d /var/run/cdi ] || return 0
    empty=$(mktemp -d) || return 0
    onload-ctk --quiet --host-root "$empty" cdi generate --output-dir /var/run/cdi || true
    rmdir "$empty"
    rm -f /var/run/cdi/.onload-ctk-manifest /var/run/cdi/.onload-ctk-lock
    rmdir /var/run/cdi 2>/dev/null || true
}

# Whether a container runs whose engine calls our runtime again to stop it: containerd's shim keeps
# the path in a file, conmon (podman, CRI-O) in its arguments.
onload_ctk_in_use() {
    grep -qs /usr/bin/onload-container-runtime \
        /run/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        /run/containerd/io.containerd.runtime.v2.task/*/*/runtime && return 0
    for arguments in /proc/[0-9]*/cmdline; do
        tr '\0' '\n' 2>/dev/null <"$arguments" |
            grep -qx -- '/usr/bin/onload-container-runtime' && return 0
    done
    return 1
}

# After the files are gone: a container that runs could not be stopped without a runtime at that
# path, so the one behind ours takes its place for as long.
onload_ctk_leave_runtime() {
    if [ -e /usr/bin/onload-container-runtime ] || ! onload_ctk_in_use; then
        return 0
    fi
    for runtime in /usr/bin/runc /usr/sbin/runc /usr/local/sbin/runc /usr/bin/crun /usr/local/bin/crun; do
        [ -x "$runtime" ] || continue
        ln -sf "$runtime" /usr/bin/onload-container-runtime
        echo "onload-ctk: containers of the runtime \"onload\" are running, so" \
            "/usr/bin/onload-container-runtime is now a link to $runtime;" \
            "remove it when they have ended" >&2
        return 0
    done
}

# The link of an earlier removal, where nothing needs it any more.
onload_ctk_remove_link() {
    if [ -L /usr/bin/onload-container-runtime ] && ! onload_ctk_in_use; then
        rm -f /usr/bin/onload-container-runtime
    fi
}
