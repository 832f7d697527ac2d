#!/usr/bin/env bash
# Runs the commands of README.md on a machine that has nothing: a throw-away Debian 12, without a compiler, a cache, Python
# packages or data, made from the apt sources of this machine and booted, with a clone of the last commit.
#
# usage: scripts/check-fresh.sh [--only PART,...] [--out DIR] [--keep]
#   quickstart  ./scripts/quickstart.sh, then "Build and run it by hand", as root
#   service     "Install it as a service", as a user with sudo, who then trains a job
#   check       ./scripts/check.sh, as root: 25 minutes
#
#   --only      these parts, each in a root of its own; all three by default
#   --out DIR   where the output of each part is left, fresh by default
#   --keep      leaves the roots, PART.root in DIR
#
# Prints the time of each command and what was skipped. Fails if a command fails, or if anything is skipped but what needs a
# GPU, NVIDIA's compiler or cuobjdump. Needs root, a network, mmdebstrap and systemd-nspawn.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh
. scripts/root.sh

parts=quickstart,service,check out=fresh keep=no failed=0
while [ $# -gt 0 ]; do
  case $1 in
    --only) parts=${2:?} && shift 2 ;;
    --out) out=${2:?} && shift 2 ;;
    --keep) keep=yes && shift ;;
    *) sed -n 's/^# *usage/usage/p' "$0" >&2 && exit 2 ;;
  esac
done
[ "$(id -u)" = 0 ] || die "only root can make a root"
for tool in mmdebstrap:mmdebstrap systemd-nspawn:systemd-container git:git python3:python3; do
  command -v "${tool%:*}" >/dev/null || die "${tool%:*} is missing: apt-get install ${tool#*:}"
done
commit=$(git rev-parse HEAD) || exit 1
[ -z "$(git status --porcelain)" ] || say "note: what is not committed is not in the clone"
mkdir -p "$out" && out=$(realpath "$out") || exit 1

# shellcheck disable=SC2317 # a trap
clean_up() {
  end_root
  [ $keep = yes ] || rm -rf --one-file-system "$out"/*.root
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fresh() { # PART: a root of its own, with a user and a clone in each home
  local home
  root=$out/$1.root
  rm -rf --one-file-system "$root"
  # What a Debian has that an administrator installed, and what made the clone.
  make_root "$root" dbus sudo git man-db || die "no root: is there a network?"
  printf '%s\n' "fresh-$1" >"$root/etc/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 fresh-%s\n' "$1" >"$root/etc/hosts"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # Who would answer its questions says yes.
  echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/90yes"
  chroot "$root" useradd --create-home --shell /bin/bash member
  echo 'member ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/member"
  for home in root home/member; do
    git clone --quiet --no-hardlinks --no-checkout . "$root/$home/fsdpd" &&
      git -C "$root/$home/fsdpd" checkout --quiet --detach "$commit" || exit 1
  done
  chroot "$root" chown -R member: /home/member/fsdpd
  boot_root "$root" "fresh-$1" "$out/boot.log" || die "a container cannot be booted on this machine: $out/boot.log"
}

# as USER: runs the commands of its input, a line each, in one shell that has just logged in, in the clone. Prints the time of
# each; the log has the output.
as() {
  local user=$1 command status
  {
    cat <<'EOF'
cd fsdpd
trap 'kill $(jobs -p) 2>/dev/null' EXIT
step() {
  local began=$SECONDS status
  echo "== $USER: $1"
  eval "$1" </dev/null
  status=$?
  echo "   $([ $status = 0 ] && echo ok || echo "FAIL, status $status"), $((SECONDS - began)) s: $1"
  return $status
}
EOF
    while read -r command; do printf 'step %q || exit\n' "$command"; done
  } >"$out/commands"
  in_root su --login "$user" -c "$(cat "$out/commands")" </dev/null 2>&1 | tee -a "$log" |
    grep -a --line-buffered -E '^   (ok|FAIL)'
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || { failed=$((failed + 1)) && tail -n 30 "$log"; }
  return "$status"
}

quickstart() {
  as root <<'EOF' && as root < <(python3 tests/system/printed.py docs/getting-started.md "Build and run it by hand")
./scripts/quickstart.sh
test -s mnist_cnn.safetensors && rm mnist_cnn.safetensors
build/fsdpd-digits --seed 1 --train 10000 --test 2000 -o ~/mnist
EOF
}

service() {
  as member < <(python3 tests/system/printed.py README.md "Install it as a service") &&
    as member <<'EOF' # who is now in the group
make -C build --quiet fsdpd-digits && build/fsdpd-digits --seed 1 --train 2000 --test 500 -o ~/drawn
sudo cp -r ~/drawn /var/lib/fsdpd/data/digits && sudo chown -R fsdpd: /var/lib/fsdpd/data/digits
fsdpctl submit /usr/share/doc/fsdpctl/examples/mnist/job.yaml --set data.dir=digits --set train.epochs=1 --wait
fsdpctl pull mnist-1 -o mnist_cnn.safetensors && test -s mnist_cnn.safetensors
sudo systemctl restart fsdpd && fsdpctl show mnist-1
EOF
}

check() {
  as root <<<./scripts/check.sh
  grep -aE '^[0-9]+ passed, ' "$log" | tail -n 1
}

skips() { # what the programs of check.sh skipped, also some of their tests
  grep -aE '^(SKIP|going on without)' "$log"
  find "$root/root/fsdpd/build/tests" -name '*.log' -exec grep -aHE '\.\.\. skipped|^SKIP' {} + 2>/dev/null |
    sed "s|^.*/build/tests/||" | sort -u
}

for part in ${parts//,/ }; do
  log=$out/$part.log
  : >"$log"
  case $part in
    quickstart | service | check) ;;
    *) die "no such part: $part" ;;
  esac
  began=$SECONDS
  fresh "$part"
  echo "== $part: Debian $(cat "$root/etc/debian_version") with ${commit:0:12}, made and booted in $((SECONDS - began)) s"
  "$part"
  skips >"$out/$part.skips"
  sed 's/^/   skipped: /' "$out/$part.skips"
  wrong=$(grep -vciE 'GPU|CUDA|nvcc|cuobjdump' "$out/$part.skips")
  [ "$wrong" = 0 ] || { echo "FAIL: $wrong skips for another reason than NVIDIA's things" && failed=$((failed + 1)); }
  end_root
  [ $keep = yes ] || rm -rf --one-file-system "$root"
done
[ $failed = 0 ]
