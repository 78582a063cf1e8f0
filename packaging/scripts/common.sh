# Functions that the scripts of all packages share. packaging/build puts them where #COMMON# stands.

onload_ctk_units="onload-cdi.service onload-cdi.path onload-cdi.timer"
# The first changes the host itself, the second is of use to who collects metrics, and the third to who has pods
# without a runtime class, so the operator enables them.
onload_ctk_own_units="onload-host.service onload-metrics.timer onload-nri.service"
# Those that nobody enables: udev's rule, a timer and onload-cdi.service start them.
onload_ctk_started_units="onload-metrics.service onload-restore.service"

# A daemon of the earlier version. It stands here since it is the only unit of ours that stays running.
onload_ctk_restart_nri() {
    [ -d /run/systemd/system ] || return 0
    if systemctl --quiet is-active onload-nri.service 2>/dev/null; then
        "$@" restart onload-nri.service >/dev/null 2>&1 || true
    fi
}

# What the package's line in tmpfiles.d makes at boot.
onload_ctk_make_directories() {
    if command -v systemd-tmpfiles >/dev/null; then
        systemd-tmpfiles --create onload-ctk.conf >/dev/null 2>&1 || true
    fi
}

# What containers that have ended since a removal left, which udev told nobody.
onload_ctk_start_restore() {
    [ -d /run/systemd/system ] && [ -d /run/onload-ctk/@leases ] || return 0
    systemctl --no-block start onload-restore.service >/dev/null 2>&1 || true
}

# The last line of a first installation.
onload_ctk_say_next() {
    echo "onload-ctk: run \"onload-ctk\" to see what this host offers and what to do next"
}

# The OCI runtime that the containers of ours were made with, from the first step of a removal to the
# last one, when onload-ctk is gone.
onload_ctk_behind=/run/onload-ctk-behind

# The engines whose default runtime ours is until they read their files again, from the first step of a removal on.
onload_ctk_told=/run/onload-ctk-told

# Before the files go: engines no longer name a program that will not be there, and no engine is
# offered devices any more. Both take away what is ours and nothing else. What runs keeps running. An
# entry that containers have recorded stays; onload_ctk_leave_runtime gives it a runtime.
onload_ctk_forget() {
    onload_ctk_forget_runs
    if [ -d /run/systemd/system ]; then
        # shellcheck disable=SC2086 # a list of words
        systemctl stop $onload_ctk_started_units >/dev/null 2>&1 || true
    fi
    # Who keeps it waiting must not keep the removal waiting.
    timeout 120 onload-ctk --quiet lease restore || true
    onload_ctk_say_moved
    # Not quiet: it warns where one link cannot serve all containers.
    onload-ctk runtime behind >"$onload_ctk_behind" || rm -f "$onload_ctk_behind"
    entries=$(onload_ctk_entries)
    defaults=$(onload_ctk_defaults)
    for engine in docker containerd crio podman nomad; do
        onload_ctk_forget_in "$engine"
    done
    onload_ctk_named | while read -r file; do
        onload_ctk_forget_in containerd --file "$file"
    done
    onload_ctk_reread "$entries" "$defaults"
    onload_ctk_forget_locks
    rmdir /run/onload-ctk 2>/dev/null || true
    onload_ctk_forget_metrics
    # A host with nothing in it offers nothing: every specification of ours goes, others stay.
    [ -d /var/run/cdi ] || return 0
    empty=$(mktemp -d) && mkdir "$empty/sys" || return 0
    onload-ctk --quiet --host-root "$empty" cdi generate --output-dir /var/run/cdi || true
    rmdir "$empty/sys" "$empty"
    rm -f /var/run/cdi/.onload-ctk-manifest /var/run/cdi/.onload-ctk-lock
    rmdir /var/run/cdi 2>/dev/null || true
}

# Without these directories udev's rules start no run of onload-cdi.service, and no run of onload-restore.service
# starts one more.
onload_ctk_forget_runs() {
    rm -rf /run/onload-cdi /run/onload-restore
}

# What leases say is still with containers. The kernel gives it back when they end, and nobody is left then who gives
# an interface its name, a function its VLAN and so on.
onload_ctk_say_moved() {
    moved=
    for lease in /run/onload-ctk/@leases/*=*; do
        container=$(sed -n 's/.*"container":"\([^"]*\)".*"moved":.*/\1/p' "$lease" 2>/dev/null) || continue
        device=${lease##*/}
        [ -z "$container" ] || moved="$moved, ${device%#*} ($container)"
    done
    [ -z "$moved" ] ||
        echo "onload-ctk: these devices are with containers, and become what they were only while onload-ctk is installed:" \
            "${moved#, }; stop the containers, then install it again" >&2
}

# Engines keep what they were told until they read their files again. docker does so when it is told to, and goes on
# with its containers. The others would have to be restarted, which is their operator's to decide.
onload_ctk_reread() {
    rm -f "$onload_ctk_told"
    case $1 in
    */etc/docker/daemon.json*)
        if onload_ctk_is_active docker dockerd && ! onload_ctk_reload_docker; then
            onload_ctk_keeps docker
        fi
        ;;
    esac
    for file in $2; do
        case $file in
        # These have a containerd of their own, which reads its file anew when they start.
        /var/lib/rancher/k3s/*)
            ! onload_ctk_is_active k3s k3s-server || onload_ctk_keeps k3s
            ! onload_ctk_is_active k3s-agent k3s-agent || onload_ctk_keeps k3s-agent
            ;;
        /var/lib/rancher/rke2/*)
            ! onload_ctk_is_active rke2-server rke2 || onload_ctk_keeps rke2-server
            ! onload_ctk_is_active rke2-agent rke2 || onload_ctk_keeps rke2-agent
            ;;
        /var/snap/microk8s/*)
            ! onload_ctk_is_active snap.microk8s.daemon-containerd containerd || onload_ctk_keeps snap.microk8s.daemon-containerd
            ;;
        /etc/k0s/*)
            ! onload_ctk_is_active k0sworker k0s || onload_ctk_keeps k0sworker
            ! onload_ctk_is_active k0scontroller k0s || onload_ctk_keeps k0scontroller
            ;;
        */etc/containerd/*) ! onload_ctk_is_active containerd containerd || onload_ctk_keeps containerd ;;
        */etc/crio/*) ! onload_ctk_is_active crio crio || onload_ctk_keeps crio ;;
        esac
    done
}

# Without systemd, a process of that name counts, whoever started it.
onload_ctk_is_active() {
    if [ -d /run/systemd/system ]; then
        systemctl --quiet is-active "$1.service" 2>/dev/null
    else
        cat /proc/[0-9]*/comm 2>/dev/null | grep -qx "$2"
    fi
}

# dockerd says nothing where it does not take its file, so it is asked for its default runtime, if there is docker's
# command. It keeps a runtime that the file no longer names until it starts again, and uses it where that is asked for.
onload_ctk_reload_docker() {
    if [ -d /run/systemd/system ]; then
        systemctl reload docker.service >/dev/null 2>&1 || return 1
    else
        kill -HUP "$(cat /run/docker.pid 2>/dev/null)" 2>/dev/null || return 1
    fi
    command -v docker >/dev/null || return 0
    for pause in 0 1 1 1 1; do
        sleep "$pause"
        default=$(timeout 20 docker --host unix:///run/docker.sock info --format '{{.DefaultRuntime}}' 2>/dev/null) || return 1
        [ "$default" = onload ] || return 0
    done
    return 1
}

# A service, and the run of it that keeps what it was told.
onload_ctk_keeps() {
    echo "$1 $(onload_ctk_invocation "$1")" >>"$onload_ctk_told"
}

onload_ctk_invocation() {
    systemctl show --property=InvocationID --value "$1.service" 2>/dev/null || true
}

# The services that still keep it.
onload_ctk_kept() {
    [ -e "$onload_ctk_told" ] || return 0
    while read -r service invocation; do
        [ "$(onload_ctk_invocation "$service")" != "$invocation" ] || echo "$service"
    done <"$onload_ctk_told"
}

# A daemon of Kubernetes that is not of this package holds two locks for as long as it runs. Without the files a
# second daemon would work beside it.
onload_ctk_forget_locks() {
    for lock in /run/onload-ctk/@locks/*; do
        case ${lock##*/} in
        spec-writer | device-plugin) ;;
        *) rm -rf "$lock" ;;
        esac
    done
    rmdir /run/onload-ctk/@locks 2>/dev/null || true
}

# node_exporter would serve for ever what was written last: in the usual place, and in the one that the service was given.
onload_ctk_forget_metrics() {
    named=$(sed -n "s/^ONLOAD_CTK_METRICS_OUTPUT=[\"']\{0,1\}\(.*[^\"' ]\)[\"']\{0,1\} *\$/\1/p" /etc/default/onload-ctk 2>/dev/null | tail -n 1)
    for file in /var/lib/prometheus/node-exporter/onload-ctk.prom "$named"; do
        case $file in
        /*.prom) [ -L "$file" ] || [ ! -f "$file" ] || rm -f "$file" || true ;;
        esac
    done
}

# Takes back what one file of an engine was told.
onload_ctk_forget_in() {
    engine=$1
    shift
    onload_ctk_status=0
    message=$(onload-ctk --quiet runtime configure --runtime "$engine" "$@" --remove 2>&1) || onload_ctk_status=$?
    # 1: containers are left, which it has said. Its command will be gone, and the last step says what to do.
    [ -z "$message" ] || printf '%s\n' "$message" | sed 's/; then run "onload-ctk .*"$//' >&2
    [ "$onload_ctk_status" -le 1 ] ||
        echo "onload-ctk: $engine keeps its configuration; see above" >&2
}

# The files of k3s, RKE2, k0s and MicroK8s that lead to our runtime, where they are as a rule: they may have been named
# with --file.
onload_ctk_named() {
    grep -ls /usr/bin/onload-container-runtime /var/lib/rancher/*/agent/etc/containerd/config*.tmpl \
        /var/lib/rancher/*/agent/etc/containerd/config*.d/*.toml /etc/k0s/containerd.toml /etc/k0s/containerd.d/*.toml \
        /var/snap/microk8s/current/args/containerd-template.toml || true
}

# The files of engines that still lead to our runtime, for containers that have recorded it.
onload_ctk_entries() {
    onload_ctk_named
    grep -ls /usr/bin/onload-container-runtime /etc/docker/daemon.json /etc/containerd/config.toml \
        /etc/containerd/conf.d/*.toml /etc/crio/crio.conf.d/*.conf /etc/containers/containers.conf /etc/containers/containers.conf.d/*.conf || true
}

# Those of them that make it the default runtime.
onload_ctk_defaults() {
    onload_ctk_entries | while read -r file; do
        grep -lsE '^[^#]*default[-_]runtime[^#]*"onload"' "$file" || true
    done
}

# Whether a container runs whose engine calls our runtime again to stop it: containerd's shim keeps
# the path in a file, conmon (podman, CRI-O) in its arguments. Those lie in the process's own memory,
# and a user's process can keep a reader waiting for good: the name, which the kernel keeps, is read
# first. KILL makes timeout end although cat may be unable to, so nobody waits for cat: a file instead
# of a pipe. What does not answer counts as a container of ours.
onload_ctk_running() {
    grep -qs /usr/bin/onload-container-runtime \
        /run/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        /run/containerd/io.containerd.runtime.v2.task/*/*/runtime \
        /run/k3s/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        /run/k0s/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        /var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/*/*/options.json && return 0
    arguments=$(mktemp) || return 0
    onload_ctk_found=1
    for process in /proc/[0-9]*; do
        name=
        { read -r name <"$process/comm"; } 2>/dev/null || true
        [ "$name" = conmon ] || continue
        onload_ctk_status=0
        timeout -s KILL 5 cat "$process/cmdline" >"$arguments" 2>/dev/null || onload_ctk_status=$?
        # cat itself ends with 1, where the process is gone.
        if [ "$onload_ctk_status" -ge 124 ]; then
            echo "onload-ctk: process ${process##*/} (conmon) does not give its arguments; taken for one of ours" >&2
        elif ! tr '\0' '\n' <"$arguments" | grep -qx -- '/usr/bin/onload-container-runtime'; then
            continue
        fi
        onload_ctk_found=0
        break
    done
    rm -f "$arguments"
    return "$onload_ctk_found"
}

# Whether containerd has a container that was made with our runtime's path, as ctr and nerdctl do it,
# running or not. Its database also holds what was deleted: containerd itself says what is left, and
# where it does not answer what the database holds counts.
onload_ctk_recorded() {
    grep -qs /usr/bin/onload-container-runtime \
        /var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db || return 1
    namespaces=$(timeout 20 ctr namespaces list --quiet 2>/dev/null) || return 0
    for namespace in $namespaces; do
        ids=$(timeout 20 ctr --namespace "$namespace" containers list --quiet 2>/dev/null) || return 0
        for id in $ids; do
            info=$(timeout 20 ctr --namespace "$namespace" containers info "$id" 2>/dev/null) || return 0
            # The options of the runtime are a message of protobuf, in base64.
            printf '%s\n' "$info" |
                sed -n 's/^ *"value": *"\([A-Za-z0-9+/=]*\)".*/\1/p' |
                while read -r value; do echo "$value" | base64 -d 2>/dev/null; done |
                grep -qa /usr/bin/onload-container-runtime && return 0
        done
    done
    return 1
}

onload_ctk_in_use() {
    [ -n "$(onload_ctk_entries)" ] || [ -n "$(onload_ctk_kept)" ] || onload_ctk_running || onload_ctk_recorded
}

# The containers from whose later processes our runtime takes CAP_SETUID, by what it remembers.
onload_ctk_guarded() {
    ids=
    for record in /run/onload-ctk/@runtimes/*; do
        if grep -qs '"guarded":true' "$record"; then
            id=${record##*/}
            ids="$ids ${id%%@*}"
        fi
    done
    echo "${ids# }"
}

# The last step: what is remembered of containers, and locks that were made since the first step. Leases
# stay, if there are any: a later installation must not give the devices of running containers to others.
onload_ctk_forget_containers() {
    rm -rf /run/onload-ctk/@runtimes /run/onload-ctk/@requests
    onload_ctk_forget_locks
    rm -f /run/onload-ctk/@leases/.lock
    rmdir /run/onload-ctk/@leases 2>/dev/null || true
    rmdir /run/onload-ctk 2>/dev/null || true
}

# After the files are gone: a container that was made with our runtime could be neither stopped nor
# started without one at that path, so the one behind ours takes its place for as long.
onload_ctk_leave_runtime() {
    behind=$(cat "$onload_ctk_behind" 2>/dev/null || true)
    rm -f "$onload_ctk_behind"
    if [ -e /usr/bin/onload-container-runtime ] || ! onload_ctk_in_use; then
        return 0
    fi
    for runtime in "$behind" /usr/bin/runc /usr/sbin/runc /usr/local/sbin/runc /usr/bin/crun /usr/local/bin/crun \
        /usr/libexec/crio/crun /usr/libexec/crio/runc /usr/local/bin/runc /usr/lib/cri-o-runc/sbin/runc; do
        [ -x "$runtime" ] || continue
        ln -sf "$runtime" /usr/bin/onload-container-runtime
        for service in $(onload_ctk_kept); do
            echo "onload-ctk: $service runs with the runtime \"onload\" until it is restarted, so" \
                "/usr/bin/onload-container-runtime is now a link to $runtime; \"systemctl restart $service\", then remove the link" >&2
        done
        if [ -z "$(onload_ctk_entries)" ] && ! onload_ctk_running && ! onload_ctk_recorded; then
            return 0
        fi
        echo "onload-ctk: containers of the runtime \"onload\" are left, so" \
            "/usr/bin/onload-container-runtime is now a link to $runtime: they stop as before, and" \
            "start without the devices that their annotations ask for." >&2
        entries=$(onload_ctk_entries | tr '\n' ' ')
        echo "onload-ctk: when they are gone, remove the link${entries:+ and the runtime \"onload\" in: $entries}" >&2
        guarded=$(onload_ctk_guarded)
        [ -z "$guarded" ] ||
            echo "onload-ctk: root-with-onload = \"refuse\" no longer holds in containers that run; end them: $guarded" >&2
        return 0
    done
}

# The link of an earlier removal, where nothing needs it any more.
onload_ctk_remove_link() {
    if [ -L /usr/bin/onload-container-runtime ] && ! onload_ctk_in_use; then
        rm -f /usr/bin/onload-container-runtime
    fi
}

# A run of a service that the removal ended, or that failed before, leaves no trace in
# "systemctl --failed": its unit is gone.
onload_ctk_forget_units() {
    systemctl daemon-reload >/dev/null 2>&1 || true
    # shellcheck disable=SC2086 # a list of words
    systemctl reset-failed $onload_ctk_units $onload_ctk_own_units $onload_ctk_started_units >/dev/null 2>&1 || true
}
