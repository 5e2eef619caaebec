#!/bin/sh
# Lays the systemd profile out under a prefix: deploy/install.sh ROOT. The programs themselves come from `cmake --install`. Used by build-deb.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$1
units=$root/usr/lib/systemd/system
install -d "$units" "$root/usr/lib/sysusers.d" "$root/usr/lib/tmpfiles.d" "$root/usr/lib/tie/supervisord" "$root/usr/libexec/tie" "$root/etc/tie"
# Each unit is written with what all share before what it says itself, so that an installed unit is complete to read.
for unit in "$here"/systemd/*.service "$here"/systemd/*.socket "$here"/systemd/*.target; do
  name=$(basename "$unit")
  case $name in
    tie-stage.service|tie-app-assets.service|tie-model-folders@.service|*.socket|*.target) cp "$unit" "$units/$name" ;;
    *) sed '/^\[Service\]/,$d' "$unit" > "$units/$name"
       cat "$here/systemd/hardening.conf" >> "$units/$name"
       printf '\n' >> "$units/$name"
       sed -n '/^\[Service\]/,$p' "$unit" >> "$units/$name" ;;
  esac
  chmod 644 "$units/$name"
done
install -m 644 "$here/sysusers.d/tie.conf" "$root/usr/lib/sysusers.d/tie.conf"
install -m 644 "$here/tmpfiles.d/tie.conf" "$root/usr/lib/tmpfiles.d/tie.conf"
install -m 644 "$here/supervisord/afm-runtime.conf" "$root/usr/lib/tie/supervisord/afm-runtime.conf"
install -m 644 "$here/supervisord/supervise.py" "$root/usr/lib/tie/supervisord/supervise.py"
install -m 755 "$here/supervisord/critical-process" "$here/supervisord/container" "$root/usr/lib/tie/supervisord/"
install -m 755 "$here/tie-stage-assets" "$root/usr/libexec/tie/tie-stage-assets"
