#COMMON#

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null 2>&1 || true
fi
# $1 is how many versions will be installed: one on a first installation.
if [ "$1" = 1 ] && command -v systemctl >/dev/null; then
    # shellcheck disable=SC2086 # a list of words
    systemctl enable $onload_ctk_units >/dev/null 2>&1 || true
fi
if [ -d /run/systemd/system ]; then
    systemctl restart onload-cdi.path onload-cdi.timer >/dev/null 2>&1 || true
    systemctl start onload-cdi.service >/dev/null 2>&1 || true
fi
exit 0
