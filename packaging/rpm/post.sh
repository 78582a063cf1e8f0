#COMMON#

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null 2>&1 || true
fi
# $1 is how many versions will be installed: one on a first installation. The host's presets say which
# units are enabled then (systemd.preset(5)); ours come behind the administrator's.
if [ "$1" = 1 ] && command -v systemctl >/dev/null; then
    # shellcheck disable=SC2086 # a list of words
    systemctl preset $onload_ctk_units >/dev/null 2>&1 || true
fi
if [ -d /run/systemd/system ]; then
    # A unit that the administrator has disabled stays stopped, after an upgrade too.
    for unit in onload-cdi.path onload-cdi.timer; do
        if systemctl --quiet is-enabled "$unit" 2>/dev/null; then
            systemctl restart "$unit" >/dev/null 2>&1 || true
        fi
    done
    # Nobody's installation fails because a host cannot be read; the journal says why.
    if systemctl --quiet is-enabled onload-cdi.service 2>/dev/null; then
        systemctl start onload-cdi.service >/dev/null 2>&1 || true
    fi
fi
onload_ctk_make_directories
onload_ctk_restart_nri systemctl
onload_ctk_start_restore
if [ "$1" = 1 ]; then
    onload_ctk_say_next
fi
exit 0
