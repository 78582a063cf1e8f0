#COMMON#

if [ "$1" = 0 ]; then
    onload_ctk_leave_runtime
    onload_ctk_forget_containers
    onload_ctk_forget_runs
    rm -f /etc/onload-ctk/drain.json /etc/onload-ctk/engine-files
    # rpm removes only directories that a package lists, and cargo-generate-rpm lists none.
    for directory in /etc/onload-ctk \
        /usr/share/onload-ctk/hooks.d/oci /usr/share/onload-ctk/hooks.d/podman \
        /usr/share/onload-ctk/hooks.d /usr/share/onload-ctk \
        /usr/share/doc/onload-ctk/docs /usr/share/doc/onload-ctk; do
        rmdir "$directory" 2>/dev/null || true
    done
fi
if [ -d /run/systemd/system ]; then
    if [ "$1" = 0 ]; then
        onload_ctk_forget_units
    else
        systemctl daemon-reload >/dev/null 2>&1 || true
    fi
fi
exit 0
