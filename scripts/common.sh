# Shared functions of the scripts. Source it from the top of the source tree.
# shellcheck shell=bash

BUILD_PACKAGES="autoconf automake make pkg-config gcc g++ protobuf-compiler protobuf-c-compiler
  libprotobuf-c-dev libgrpc-dev libuv1-dev libyaml-dev libjansson-dev libsqlite3-dev zlib1g-dev
  libdnnl-dev libgloo-dev libmicrohttpd-dev libssl-dev"
# shellcheck disable=SC2034 # used by the scripts that source this
QUICKSTART_PACKAGES="$BUILD_PACKAGES ca-certificates curl"
# shellcheck disable=SC2034
CHECK_PACKAGES="$BUILD_PACKAGES check protoc-gen-go protoc-gen-go-grpc python3 python3-torch python3-numpy python3-grpcio
  python3-grpc-tools python3-protobuf python3-venv xz-utils clang libclang-rt-14-dev"

# Without an optimized BLAS, PyTorch runs on Debian's reference BLAS, at half its possible speed.
# shellcheck disable=SC2034
BENCH_PACKAGES="$BUILD_PACKAGES python3 python3-torch python3-numpy libopenblas0-openmp"

# shellcheck disable=SC2034
PACKAGE_PACKAGES="debhelper lintian mmdebstrap systemd-container"

# Optional dependencies of tests, which print SKIP without them.
# shellcheck disable=SC2034
WANTED_PACKAGES="man-db mandoc fish zsh chromium openssl systemd util-linux iproute2 libfaketime
  munge slurmctld slurmd slurm-client"

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$0: $*"
  exit 1
}

missing_packages() { # PACKAGE...: prints those that are not installed
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      printf '%s\n' "$package"
  done
}

# need_packages INSTALL PACKAGE...: installs missing packages, or with INSTALL=no reports them.
need_packages() {
  local install=$1 missing as_root=()
  shift
  command -v dpkg-query >/dev/null ||
    die "this is not a Debian system: install the counterparts of these packages yourself: $*"
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086
  set -- $missing
  if [ "$install" = no ]; then
    die "missing packages: $* (run: apt-get install $*)"
  fi
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "missing packages: $* (run as root: apt-get install $*)"
    as_root=(sudo)
  fi
  say "installing: $*"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# want_packages INSTALL PACKAGE...: the same for optional packages: never fails.
want_packages() {
  (need_packages "$@") || say "going on without: $(shift && missing_packages "$@" | xargs)"
}

# need_python INSTALL DIR: exports FSDPD_PYTHON, a Python with the packages of tests/requirements.txt; unless it is set, that
# of a virtual environment in DIR/python, which is made again for another list. With INSTALL=no it reports what is missing.
need_python() {
  local install=$1 dir=$2/python list=tests/requirements.txt
  [ -z "${FSDPD_PYTHON:-}" ] || return 0
  if ! cmp -s "$list" "$dir/$(basename "$list")"; then
    if [ "$install" = no ]; then
      die "missing Python packages in $dir: $(sed -n 's/ \\$//p' "$list" | grep '==' | xargs) (or set FSDPD_PYTHON to a Python that has them)"
    fi
    say "installing Python packages in $dir"
    rm -rf "$dir"
    # Debian's own Python, as configure prefers it
    if ! PATH=/usr/bin:$PATH python3 -m venv "$dir" || ! "$dir/bin/python3" -m pip install --quiet \
      --disable-pip-version-check --require-hashes --only-binary :all: -r "$list"; then
      die "the Python packages of $list could not be installed; without a network, set FSDPD_PYTHON to a Python that has them"
    fi
    cp "$list" "$dir"
  fi
  FSDPD_PYTHON=$(realpath -s "$dir/bin/python3")
  export FSDPD_PYTHON
}

# build_tree DIR CONFIGURE_ARGUMENT...: configures (once for the same arguments) and builds.
build_tree() {
  configure_tree "$@" && make -C "$1" --quiet -j"$(nproc)" all
}

configure_tree() { # DIR CONFIGURE_ARGUMENT...
  local dir=$1 top=$PWD
  shift
  if [ ! -x configure ] || [ configure.ac -nt configure ]; then
    ./autogen.sh >autogen.log 2>&1 || { cat autogen.log >&2; return 1; }
    rm -f autogen.log
  fi
  mkdir -p "$dir" || return 1
  (
    cd "$dir" || exit 1
    if [ ! -f Makefile ] || [ "$(cat configured-with 2>/dev/null)" != "$*" ]; then
      "$top/configure" --quiet "$@" || exit 1
      printf '%s' "$*" >configured-with
    fi
  )
}
