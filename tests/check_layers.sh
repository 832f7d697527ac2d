#!/bin/sh
# Who may include whom (docs/architecture.md). Every quoted include with a directory must be in the
# list of its room; gRPC, libuv and the like appear only where they may.
cd "${srcdir:-.}" || exit 1
status=0
fail() {
  echo "$*"
  status=1
}

allow() { # ROOM DIRECTORY...: the directories that files in ROOM may include from
  room=$1
  shift
  found=$(grep -rnE '^#include "[^"]*/' "$room" --include='*.[ch]' --include='*.cc' |
    grep -vE "#include \"($(echo "$*" | tr ' ' '|'))/")
  [ -z "$found" ] || fail "$room may include only: $*
$found"
}

allow common/base base
allow common/ops base ops
allow common/yaml base yaml
allow common/x509 base x509
allow common/rpc base x509 rpc grpc proto
allow common/spec base yaml spec fsdpd
allow common/print base print fsdpd
allow common/hf base ops hf
allow kernels base ops kernels
allow daemon/model base ops yaml model
allow daemon/fsdp base ops model fsdp
allow daemon/runtime base ops kernels model fsdp runtime
allow daemon/checkpoint base ops hf model fsdp runtime checkpoint
allow daemon/train base ops hf model fsdp kernels runtime checkpoint train
allow daemon/planning base ops yaml model fsdp runtime train fsdpd planning
allow daemon/worker base ops hf model fsdp runtime checkpoint train planning rpc spec fsdpd worker
allow daemon/coordinator base checkpoint rpc spec fsdpd proto coordinator
allow client base hf rpc spec print fsdpd proto client

grep -rn '#include "checkpoint/' --include='*.[ch]' daemon/coordinator | grep -v '"checkpoint/export.h"' &&
  fail "of daemon/checkpoint, the coordinator knows what reads files: checkpoint/export.h"
grep -rlE '#include <grpc' --include='*.[ch]' common daemon client kernels | grep -v '^common/rpc/' &&
  fail "gRPC's C core belongs to common/rpc alone"
grep -rnE '#include <grpc' --include='*.[ch]' --include='*.cc' tests bench | grep -v '^tests/unit/test_rpc.c:' |
  grep -vE '^tests/(unit/test_rpc_parts|fuzz/fuzz_job_message)\.c:[0-9]+:#include <grpc/(byte_buffer|slice)\.h>' &&
  fail "of the tests, tests/unit/test_rpc.c alone calls gRPC's C core (docs/architecture.md)"
grep -rlE '#include <(pthread|uv|sys/socket|cuda|nccl)' daemon/model daemon/fsdp common/ops &&
  fail "daemon/model, daemon/fsdp and common/ops are pure"
grep -rlE '#include <(cuda|cublas|cudnn|nccl)' --include='*.[ch]' --include='*.cc' common daemon client kernels |
  grep -vE '^(daemon/runtime/cuda|kernels/cuda)/' && fail "CUDA belongs to daemon/runtime/cuda and kernels/cuda"
grep -rlE '#include <gloo' common daemon client kernels | grep -v '^daemon/runtime/gloo_link.cc$' &&
  fail "Gloo belongs to daemon/runtime/gloo_link.cc alone"
grep -rlE '#include <oneapi' common daemon client kernels | grep -v '^kernels/cpu/' &&
  fail "oneDNN belongs to kernels/cpu"
grep -rlE '#include <openssl' --include='*.[ch]' common daemon client kernels | grep -v '^common/x509/' &&
  fail "OpenSSL belongs to common/x509"
grep -rlE '#include <sqlite3' common daemon client kernels | grep -v '^daemon/coordinator/' &&
  fail "SQLite belongs to daemon/coordinator"
[ $status = 0 ] && echo "every include is where it may be"
exit $status
