#!/usr/bin/env bash
# Makes a relocatable tarball: bin, all libraries except those of glibc and NVIDIA, the CUDA module,
# examples, and the checks for a GPU. The build host's glibc must be as old as the oldest glibc that the
# bundle supports (2.36: Debian 12). Called by `make bundle`.
#
#   bundle.sh BUILD_DIRECTORY NAME
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd) name=$2
[ -f "$build/fsdpd-cuda.so" ] || { echo "bundle: the CUDA backend was not built" >&2; exit 1; }
out=$build/$name
rm -rf "$out" "$out.tar.gz"
mkdir -p "$out"/{bin,lib/fsdpd,libexec,scripts}
programs=(fsdpd fsdpctl fsdpd-digits)
for program in "${programs[@]}"; do install -s "$build/$program" "$out/libexec/$program"; done
for check in "$build"/tests/gpu/gpu_*; do
  if [ -x "$check" ] && [ ! -d "$check" ]; then install "$check" "$out/libexec/"; fi
done
install -s "$build/fsdpd-cuda.so" "$out/lib/fsdpd/"
cp -r "$source/examples" "$out/examples"
install "$source/scripts/gpu-check.sh" "$source/scripts/gpu-gpt2.py" "$out/scripts/"
cp "$source/LICENSE" "$source/README.md" "$out/"

# The libraries that the programs and the module load, directly or indirectly.
libraries=$(for file in "$out"/libexec/* "$out"/lib/fsdpd/*.so; do ldd "$file"; done |
  sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u)
for library in $libraries; do
  case $(basename "$library") in
    ld-linux* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.* | libanl.so.* | libutil.so.* | libnss_*) ;;
    libcuda.so.* | libcudart.so.* | libcublas* | libcudnn* | libnccl* | libnvrtc* | libnvJitLink*) ;;
    *) install -m 644 "$library" "$out/lib/$(basename "$library")" ;;
  esac
done

# The wrapper finds libraries relative to the bundle. The programs are in libexec, so that they find the
# module in lib/fsdpd. NVIDIA's libraries are the host's; PyTorch's wheels may contain missing ones.
cat >"$out/bin/with-libraries" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
if [ -z "${FSDPD_WHEELS+set}" ]; then
  FSDPD_WHEELS=
  if ldd "$here/lib/fsdpd/fsdpd-cuda.so" 2>/dev/null | grep -q 'not found'; then
    FSDPD_WHEELS=$("${PYTHON:-python3}" -c 'import glob, os, sys
print(":".join(sum((sorted(glob.glob(os.path.join(d, "nvidia", "*", "lib"))) for d in sys.path), [])))' 2>/dev/null)
  fi
  export FSDPD_WHEELS
fi
[ -z "$FSDPD_WHEELS" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$FSDPD_WHEELS
exec "$@"
WRAPPER
chmod +x "$out/bin/with-libraries"
for program in "${programs[@]}"; do
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nhere=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)\nexec "$here/bin/with-libraries" "$here/libexec/%s" "$@"\n' \
    "$program" >"$out/bin/$program"
  chmod +x "$out/bin/$program"
done

newest=$(for file in "$out"/libexec/* "$out"/lib/*.so* "$out"/lib/fsdpd/*; do objdump -T "$file" 2>/dev/null; done |
  grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -n 1)
echo "needs $newest" >"$out/NEEDS"
tar -C "$build" -czf "$out.tar.gz" "$name"
rm -rf "$out"
echo "$out.tar.gz ($newest or later)"
