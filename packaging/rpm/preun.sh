#COMMON#

# $1 is how many versions stay: none on a removal.
if [ "$1" = 0 ]; then
    if command -v systemctl >/dev/null; then
        # shellcheck disable=SC2086 # a list of words
        systemctl --no-reload disable --now $onload_ctk_units $onload_ctk_own_units >/dev/null 2>&1 || true
    fi
    onload_ctk_forget
fi
exit 0
