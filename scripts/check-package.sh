#!/usr/bin/env bash
# Tests the Debian packages end to end: builds them, runs lintian, looks for their files, installs them in a temporary
# root, trains the service's first job there, pulls its weights, removes and purges, with the commands of README.md,
# "Install it as a service", as they are printed. The root comes from the apt sources of this machine. The job runs under
# systemd where a container can be booted, otherwise in a chroot.
# Needs root and the Debian mirror for all but the first three, and says SKIP where they are missing.
#
# usage: scripts/check-package.sh [--full] [--build DIR] [--release TARBALL] [--packages DIR] [--root TARBALL]
#   --full             also fsdpd-cuda, and under systemd: access, reload, the watchdog, an upgrade while a job runs,
#                      and the Python client's wheel and sdist: each installed, used, upgraded and uninstalled
#   --build DIR        a configured build tree, "build" by default
#   --release TARBALL  makes packages and client of this alone, which `make dist` made, instead of this tree
#   --packages DIR     tests the packages in DIR instead of building them
#   --root TARBALL     a Debian 12 root with systemd, instead of a fresh one by mmdebstrap
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh
. scripts/root.sh

build=build release='' packages='' tarball='' full=no passed=0 failed=0 skipped=0
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=yes && shift ;;
    --build) build=${2:?} && shift 2 ;;
    --release) release=${2:?} && shift 2 ;;
    --packages) packages=${2:?} && shift 2 ;;
    --root) tarball=${2:?} && shift 2 ;;
    *) sed -n 's/^# *usage/usage/p' "$0" >&2 && exit 2 ;;
  esac
done
work=$(mktemp -d /tmp/fsdpd-package-XXXXXX)
root=$work/root

# shellcheck disable=SC2317 # a trap
clean_up() {
  end_root
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
finish() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
  exit
}
check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$work/out" 2>&1; then
    echo "ok: $name"
    passed=$((passed + 1))
    return 0
  fi
  echo "FAIL: $name"
  tail -n 30 "$work/out"
  failed=$((failed + 1))
  return 1
}
must() { check "$@" || finish; }
skip() {
  echo "SKIP: $*"
  skipped=$((skipped + 1))
}
mapfile -t commands < <(python3 tests/system/printed.py README.md "Install it as a service")
as_printed() { # WORDS: prints README's command with these words, and notes that it is run
  local command
  for command in "${commands[@]}"; do
    case $command in *"$1"*) printf '%s\n' "$command" | tee -a "$work/as-printed" && return ;; esac
  done
  die "README.md prints no command with '$1'"
}
# shellcheck disable=SC2317 # called through check
eventually() { # SECONDS COMMAND...
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.2
  done
}

# ---- the packages ----

for tool in dh:debhelper lintian:lintian; do
  command -v "${tool%:*}" >/dev/null || die "missing packages: ${tool#*:} (run: apt-get install $PACKAGE_PACKAGES)"
done
[ -f "$build/Makefile" ] || configure_tree "$build" || exit 1
mkdir "$work/tree"
if [ -n "$release" ]; then
  tar -C "$work/tree" --strip-components=1 -xf "$release" || exit 1
else
  tar --exclude=./.git --exclude='./build*' --exclude=./fsdpd-*.tar.xz -cf - . | tar -C "$work/tree" -xf - || exit 1
fi
if [ -z "$packages" ]; then
  # shellcheck disable=SC2317
  as_root() { # COMMAND: on this machine, where apt-get only says what it would do
    echo 'APT::Get::Simulate "true"; APT::Get::Assume-Yes "true";' >"$work/apt-get.conf"
    (cd "$work/tree" && APT_CONFIG=$work/apt-get.conf bash -ec "sudo() { \"\$@\"; }; $1")
  }
  command=$(as_printed build-dep) || exit 1
  must "$command" as_root "$command"
  # nvcc, debugging symbols and the smallest tarball take minutes, and the other packages are the same without them
  [ $full = yes ] || export MAKEFLAGS='DEB_CUDA= DEB_OPTIONS=noautodbgsym' XZ_OPT=-1 DEB_CFLAGS_APPEND=-g0 DEB_CXXFLAGS_APPEND=-g0
  command=$(as_printed "make deb") || exit 1
  must "$command" as_root "$command"
  unset MAKEFLAGS XZ_OPT DEB_CFLAGS_APPEND DEB_CXXFLAGS_APPEND
  packages=$work/tree/build/deb
fi
deb=$(compgen -G "$packages/fsdpd_*.deb") || die "no packages in $packages"
ctl=$(compgen -G "$packages/fsdpctl_*.deb") || die "no fsdpctl in $packages"
cuda=''
[ $full = no ] || cuda=$(compgen -G "$packages/fsdpd-cuda_*.deb") ||
  skip "fsdpd-cuda: nvcc was not found where this was built"
check "lintian finds no errors" lintian --allow-root --fail-on error "$deb" "$ctl" ${cuda:+"$cuda"}
cat "$work/out"
# shellcheck disable=SC2317
has_files() {
  local list
  list=$(dpkg-deb -c "$deb" && dpkg-deb -c "$ctl") || return 1
  for file in usr/bin/fsdpd usr/bin/fsdpctl etc/fsdpd/fsdpd.yaml lib/systemd/system/fsdpd.socket \
    usr/share/man/man8/fsdpd.8.gz usr/share/man/man1/fsdpctl-pull.1.gz \
    usr/share/bash-completion/completions/fsdpctl; do
    grep -q " \./$file\$" <<<"$list" || { echo "no $file" && return 1; }
  done
}
check "everything is in them" has_files

# ---- a temporary root ----

if [ "$(id -u)" != 0 ]; then
  skip "installing: only root can" && finish
fi
if [ -z "$tarball" ]; then
  command -v mmdebstrap >/dev/null ||
    { skip "installing: mmdebstrap is not installed (apt-get install mmdebstrap)" && finish; }
  make_root "$root" man-db || { skip "installing: no network, or no mirror in apt's sources" && finish; }
else
  mkdir "$root" && tar -C "$root" -xf "$tarball" || exit 1
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir "$root/root/deb" && cp "$deb" "$ctl" ${cuda:+"$cuda"} "$root/root/deb/"
printf '%s\n' 'APT::Get::Assume-Yes "true";' 'APT::Install-Recommends "false";' >"$root/etc/apt/apt.conf.d/90test"
# The root has no sudo, and its user is root.
install -m 755 /dev/stdin "$root/usr/local/bin/sudo" <<<'#!/bin/sh
exec "$@"'
# The same package with a later version, to upgrade to.
dpkg-deb -R "$deb" "$work/later" && sed -i 's/^Version: .*/&+later/' "$work/later/DEBIAN/control" &&
  dpkg-deb --root-owner-group -b "$work/later" "$root/root/later.deb" >/dev/null

inside=(chroot "$root")
run() { # a shell command in the root, in the booted system once it runs
  "${inside[@]}" env DEBIAN_FRONTEND=noninteractive PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    USER=member sh -xc "cd /root && $1"
}
[ -z "$tarball" ] || check "the lists of packages" run "ls /var/lib/apt/lists/*Packages* || apt-get update -qq"
command=$(as_printed "apt-get install") || exit 1
must "$command" run "$command"
check "both programs start" run "fsdpd --version && fsdpctl --version && fsdpd config check"
if [ -n "$cuda" ]; then
  # It installs and uninstalls without affecting the rest, and reports missing libraries of NVIDIA.
  check "fsdpd-cuda is installed" run "apt-get install ./deb/$(basename "$cuda")"
  check "fsdpd devices says what is missing" run \
    "fsdpd devices >/root/devices 2>&1 || true; cat /root/devices; grep -q 'cpu' /root/devices &&
     grep -Eq 'libcu|libnccl|driver' /root/devices"
  check "fsdpd-cuda is removed" run "apt-get purge -y fsdpd-cuda && fsdpd --version"
fi
check "the user was made" run "getent passwd fsdpd | grep -q nologin"
run "useradd -m member; useradd -m stranger" >/dev/null 2>&1
command=$(as_printed usermod) || exit 1
check "$command" run "$command && id member | grep -F '(fsdpd)'"
command=$(as_printed "man fsdpd") || exit 1
check "$command" run "$command | grep -q fsdpctl"

must "draw digits" make -C "$build" --quiet fsdpd-digits
must "digits for the service" "$build/fsdpd-digits" --seed 1 --train 2000 --test 500 \
  -o "$root/var/lib/fsdpd/data/digits"
chroot "$root" chown -R fsdpd /var/lib/fsdpd/data

# ---- booted ----

if ! command -v systemd-nspawn >/dev/null; then
  skip "booting: systemd-nspawn is not installed (apt-get install systemd-container)"
else
  if boot_root "$root" fsdpd-package "$work/boot.log"; then
    inside=(in_root)
  else
    tail -n 3 "$work/boot.log"
    skip "everything under systemd: a container cannot be booted on this machine"
  fi
fi

first_job="fsdpctl submit /usr/share/doc/fsdpctl/examples/mnist/job.yaml --set data.dir=digits \
    --set train.epochs=1 --set tensorboard=true --wait && fsdpctl pull mnist-1 -o /root/weights.safetensors &&
  test -s /root/weights.safetensors && ls /var/lib/fsdpd/jobs/mnist-1/tensorboard/events.*"
if [ -z "$machine" ]; then
  # The unit's command and environment as its user, in namespaces that end with the shell.
  { echo "first_job() { $first_job; }" && cat <<'EOF'
mount -t proc proc /proc && mount -t tmpfs tmpfs /run
unit=/lib/systemd/system/fsdpd.service
systemd-tmpfiles --create fsdpd.conf
setpriv --reuid=fsdpd --regid=fsdpd --init-groups env $(sed -n 's/^Environment=//p' $unit) \
  $(sed -n 's/^ExecStart=//p' $unit) 2>/root/fsdpd.log &
for _ in $(seq 150); do fsdpctl status && break; sleep 0.2; done
first_job || { tail -n 20 /root/fsdpd.log; exit 1; }
kill $! && wait $!
EOF
  } >"$root/root/first-job"
  check "a job trains as the unit says, without systemd" unshare --mount --pid --fork --kill-child \
    chroot "$root" sh -e /root/first-job
else
  check "fsdpd and its socket are active" eventually 30 \
    run "systemctl is-active --quiet fsdpd.service fsdpd.socket"
  check "nothing failed in booting" run '! systemctl --failed --no-legend | grep fsdpd'
  command=$(as_printed "systemctl status") || exit 1
  check "$command" eventually 30 run "$command | grep '2 workers, 0 jobs running, 0 queued'"
  check "a job trains in the sandbox" run "$first_job"
  check "systemctl restart fsdpd" run "systemctl restart fsdpd && fsdpctl show mnist-1"
fi

if [ -n "$machine" ] && [ $full = yes ]; then
  check "a member of the group may use it" run "setpriv --reuid=member --regid=member --init-groups \
    fsdpctl status"
  # shellcheck disable=SC2317
  stranger() {
    run "setpriv --reuid=stranger --regid=stranger --init-groups fsdpctl status"
    [ $? = 4 ]
  }
  check "a stranger may not" stranger
  check "the journal has the fields" run "journalctl -u fsdpd FSDPD_JOB=mnist-1 FSDPD_EVENT=job_state \
    FSDPD_STATE=SUCCEEDED -o json | grep -q '\"PRIORITY\":\"6\"'"
check "reload" run "echo 'log_level: debug' >/etc/fsdpd/fsdpd.yaml && systemctl reload fsdpd &&
    sleep 1 && journalctl -u fsdpd --no-pager | grep -q 'reloaded file=/etc/fsdpd/fsdpd.yaml changed=log_level'"
  check "a mistake is refused, and fsdpd continues" run "echo 'log_levle: x' >/etc/fsdpd/fsdpd.yaml &&
    systemctl reload fsdpd && sleep 1 && journalctl -u fsdpd --no-pager | grep -q 'did you mean log_level' &&
    systemctl is-active --quiet fsdpd"
  check "a restart keeps the socket" run "echo >/etc/fsdpd/fsdpd.yaml && ls -i /run/fsdpd/fsdpd.sock >/root/a &&
    systemctl restart fsdpd && ls -i /run/fsdpd/fsdpd.sock >/root/b && cmp /root/a /root/b &&
    fsdpctl show mnist-1 >/dev/null"
  check "the watchdog ends one that hangs" run "mkdir -p /run/systemd/system/fsdpd.service.d &&
    printf '[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n' >/run/systemd/system/fsdpd.service.d/t.conf &&
    systemctl daemon-reload && systemctl restart fsdpd && sleep 5 && systemctl is-active --quiet fsdpd &&
    kill -STOP \$(systemctl show -P MainPID fsdpd) && sleep 7 &&
    journalctl -u fsdpd --no-pager | grep -q 'Watchdog timeout' && fsdpctl status &&
    rm -r /run/systemd/system/fsdpd.service.d && systemctl daemon-reload && systemctl restart fsdpd"
  check "a worker of its own outlives a restart of the coordinator" run "
    printf 'workers: none\ndata_roots: [/var/lib/fsdpd/data]\n' >/etc/fsdpd/fsdpd.yaml &&
    systemctl restart fsdpd && systemctl start fsdpd-worker@cpu:0 && sleep 2 &&
    fsdpctl workers | grep -q '/cpu:0 ' &&
    systemctl show -P MainPID fsdpd-worker@cpu:0 >/root/a && systemctl restart fsdpd && sleep 4 &&
    systemctl show -P MainPID fsdpd-worker@cpu:0 >/root/b && cmp /root/a /root/b &&
    fsdpctl workers | grep -q '/cpu:0 ' && systemctl stop fsdpd-worker@cpu:0 &&
    echo >/etc/fsdpd/fsdpd.yaml && systemctl restart fsdpd"
  check "an upgrade leaves a running job alone" run "
    fsdpctl submit /usr/share/doc/fsdpctl/examples/mnist/job.yaml --set data.dir=digits \
      --set train.epochs=10000 --id long &&
    for i in \$(seq 50); do fsdpctl show long -o json | grep -q '\"RUNNING\"' && break; sleep 0.2; done
    systemctl show -P MainPID fsdpd >/root/a && dpkg -i /root/later.deb &&
    systemctl show -P MainPID fsdpd >/root/b && cmp /root/a /root/b &&
    fsdpctl show long -o json | grep -q '\"RUNNING\"' &&
    dpkg-query -W -f '\${Version}' fsdpd | grep -q later &&
    systemctl restart fsdpd && fsdpctl status"
  check "stopping is clean" run "systemctl stop fsdpd.socket fsdpd &&
    ! systemctl is-failed --quiet fsdpd && ! pgrep -x fsdpd"
  check "starting by its socket" run "systemctl start fsdpd.socket && fsdpctl status &&
    systemctl is-active --quiet fsdpd"
  check "the job continues, and can be ended" run "
    for i in \$(seq 600); do fsdpctl show long -o json | grep -q '\"RUNNING\"' && break; sleep 0.2; done
    fsdpctl show long -o json | grep -q '\"RUNNING\"' && fsdpctl cancel long"
fi

# ---- the Python client ----

# shellcheck disable=SC2317
make_client() { # its sdist, and the wheel of that alone; then those of a later version
  mkdir -p "$root/root/source/clients" && cp -r "$work/tree/proto" "$root/root/source/" &&
    cp -r "$work/tree/clients/python" "$root/root/source/clients/" || return 1
  cat >"$root/root/train.py" <<'EOF'
import fsdpd
with fsdpd.connect() as client:
    job = client.submit("/usr/share/doc/fsdpctl/examples/mnist/job.yaml", "data.dir=digits", "train.epochs=1")
    job = client.wait(job.id)
    assert job.state == fsdpd.messages.JOB_STATE_SUCCEEDED, job
    assert "conv1.weight" in client.pull(job.id)
EOF
  run "apt-get install python3-venv && python3 -m venv maker && maker/bin/pip install --quiet build &&
    maker/bin/python -m build --outdir dist source/clients/python &&
    sed -i 's/^version = .*/version = \"99\"/' source/clients/python/pyproject.toml &&
    maker/bin/python -m build --outdir later source/clients/python && ls dist later"
}
if [ -n "$machine" ] && [ $full = yes ] && check "the Python client's sdist and wheel" make_client; then
  for kind in whl tar.gz; do
    pip=$kind-env/bin/pip
    check "a job is trained through the client's $kind" run "python3 -m venv $kind-env &&
      $pip install --quiet dist/*.$kind && $kind-env/bin/python train.py"
    check "it is upgraded" run "$pip install --quiet --upgrade later/*.$kind &&
      $pip show fsdpd | grep -x 'Version: 99' && $kind-env/bin/python train.py"
    check "it is uninstalled" run "ls $kind-env/bin/fsdpd-prepare && $pip uninstall --quiet -y fsdpd &&
      ! $kind-env/bin/python -c 'import fsdpd' && ! ls $kind-env/bin/fsdpd-*"
  done
fi

# ---- removal ----

check "remove" run "apt-get remove -y fsdpd && test ! -e /usr/bin/fsdpd && test -e /etc/fsdpd/fsdpd.yaml"
[ -z "$machine" ] || check "nothing runs any more" run \
  "! systemctl is-active --quiet fsdpd.service && ! systemctl is-active --quiet fsdpd.socket && ! pgrep -x fsdpd"
check "install again" run "apt-get install ./deb/$(basename "$deb")"
check "purge" run "apt-get purge -y fsdpd fsdpctl && test ! -e /etc/fsdpd && test ! -e /var/lib/fsdpd &&
  test ! -e /run/fsdpd && test ! -e /usr/share/doc/fsdpd && ! find /etc/systemd /lib/systemd -name 'fsdpd*' | grep -q ."
# shellcheck disable=SC2317
all_printed() { diff <(printf '%s\n' "${commands[@]}" | sort) <(sort "$work/as-printed"); }
[ "$packages" != "$work/tree/build/deb" ] || [ -z "$machine" ] || check "every command of README.md was run" all_printed
finish
