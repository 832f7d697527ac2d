# A throw-away Debian 12 for scripts that install things: made, booted, and entered. Needs root. Source it after common.sh.
# shellcheck shell=bash

machine='' leader='' # of a booted root: systemd-nspawn's process, and that of the systemd within

# make_root DIR PACKAGE...: from the apt sources of this machine, which it keeps. Returns 1 without a network.
make_root() {
  local target=$1 packages logs
  shift
  packages=$(IFS=, && printf '%s' "$*")
  logs=$(mktemp -d /tmp/fsdpd-root-XXXXXX) || return 1
  # shellcheck disable=SC2016 # apt's variables
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    sort -u >"$logs/sources"
  apt-config dump Acquire | grep -E '^Acquire::(http|https|Check|Retries)' >"$logs/apt.conf"
  mmdebstrap --variant=minbase --include="ca-certificates,systemd,systemd-sysv${packages:+,$packages}" \
    --skip=cleanup/apt/lists --aptopt="$logs/apt.conf" --dpkgopt=force-unsafe-io \
    bookworm "$target" - <"$logs/sources" >"$logs/log" 2>&1 ||
    { tail -n 5 "$logs/log" && rm -rf "$logs" && return 1; }
  rm -rf "$logs"
  # It trusts whom this machine trusts: the network may have a certificate of its own.
  cp /etc/ssl/certs/ca-certificates.crt "$target/etc/ssl/certs/ca-certificates.crt"
}

# boot_root DIR NAME LOG: boots it, on the network of this machine. Returns 1 where that cannot be done.
boot_root() {
  local _
  systemd-nspawn -q -D "$1" --register=no --keep-unit --private-users=no --boot --console=pipe --machine="$2" >"$3" 2>&1 &
  machine=$!
  for _ in $(seq 300); do # 60 s
    leader=$(pgrep -P "$machine" | head -n 1)
    [ -z "$leader" ] || ! in_root systemctl is-active --quiet multi-user.target >/dev/null 2>&1 || return 0
    kill -0 "$machine" 2>/dev/null || break
    sleep 0.2
  done
  end_root
  return 1
}

in_root() { # COMMAND...: in the booted root, as root
  nsenter -t "$leader" -m -u -i -p -n chroot / "$@"
}

end_root() { # and all that runs in it
  [ -z "$machine" ] || { kill "$machine" && wait "$machine"; } 2>/dev/null
  machine='' leader=''
}
