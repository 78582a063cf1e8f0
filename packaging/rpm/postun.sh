#COMMON#

if [ "$1" = 0 ]; then
    onload_ctk_leave_runtime
    onload_ctk_forget_containers
    rm -rf /run/onload-cdi
fi
if [ -d /run/systemd/system ]; then
    if [ "$1" = 0 ]; then
        onload_ctk_forget_units
    else
        systemctl daemon-reload >/dev/null 2>&1 || true
    fi
fi
exit 0
