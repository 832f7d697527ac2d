#!/bin/sh
# Who may include whom: the table "Rooms" of docs/architecture.md is the rule. A file may include its own room
# and what its row names: rooms, single headers, libraries. The rest of the rules is below.
cd "${srcdir:-.}" || exit 1
status=0
fail() {
  echo "$*"
  status=1
}

broken=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]' common daemon client kernels \
  --include='*.[ch]' --include='*.cc' --include='*.cu' | awk '
BEGIN { # libraries: what their headers start with
  header["libyaml"] = "yaml.h"; header["libcrypto"] = "openssl/"; header["grpc"] = "grpc/"
  header["libuv"] = "uv.h"; header["jansson"] = "jansson.h"; header["zlib"] = "zlib.h"
  header["oneDNN"] = "oneapi/"; header["Gloo"] = "gloo/"; header["SQLite"] = "sqlite3.h"
  header["libmicrohttpd"] = "microhttpd.h"; header["CUDA"] = "cu(da|blas|dnn)"; header["NCCL"] = "nccl"
}
FILENAME != "-" && /^\| `/ {
  split($0, column, /[ ]*\|[ ]*/)
  room = column[2]; gsub(/`/, "", room)
  last = room; sub(/.*\//, "", last)
  if (!(last in home)) home[last] = room
  if (column[3] ~ /Pure$/) pure[room] = 1
  may[room] = column[4]; gsub(/`/, "", may[room])
  split(may[room], word, /, */)
  for (i in word) allowed[room, word[i]] = 1
  next
}
FILENAME != "-" { next }
!checked++ { # the words of the table
  for (room in may) {
    split(may[room], word, /, */)
    for (i in word) if (!(word[i] in home || word[i] in may || word[i] in header || word[i] ~ /^libc$|^proto$|\.h$/))
      print "docs/architecture.md: " room " may include \"" word[i] "\", which is neither a room nor a known library"
  }
}
{
  match($0, /:[0-9]+:/)
  file = substr($0, 1, RSTART - 1)
  place = substr($0, 1, RSTART + RLENGTH - 2)
  for (room = file; room ~ /\// && !(room in may); ) sub(/\/[^\/]*$/, "", room)
  if (!(room in may)) { print place ": no row of docs/architecture.md has this file"; next }
  name = $0; sub(/^[^<"]*[<"]/, "", name); sub(/[>"].*/, "", name)
  if (index($0, "<")) {
    for (library in header)
      if (name ~ "^" header[library] && !((room, library) in allowed))
        print place ": " name ": " room " may include only: " may[room]
    if (pure[room] && name ~ /^(pthread|uv|sys\/socket)/) print place ": " name ": " room " is pure"
    next
  }
  if (name !~ /\//) next # in the same directory
  directory = name; sub(/\/.*/, "", directory)
  if (directory ~ /^(fsdpd|google|grpc|proto)$/) {
    if ((room, "proto") in allowed) next
  } else {
    target = home[directory] substr(name, length(directory) + 1)
    while (target ~ /\// && !(target in may)) sub(/\/[^\/]*$/, "", target)
    directory = target; sub(/.*\//, "", directory)
    if (target == room || (room, directory) in allowed || (room, target) in allowed || (room, name) in allowed) next
  }
  print place ": " name ": " room " may include only: " may[room]
}' docs/architecture.md -)
[ -z "$broken" ] || fail "$broken"

grep -rnE '#include <grpc' --include='*.[ch]' --include='*.cc' tests bench | grep -v '^tests/unit/test_rpc.c:' |
  grep -vE '^tests/(unit/test_rpc_parts|fuzz/fuzz_job_message)\.c:[0-9]+:#include <grpc/(byte_buffer|slice)\.h>' &&
  fail "of the tests, tests/unit/test_rpc.c alone calls gRPC's C core (docs/architecture.md)"
grep -rlE '#include <gloo' common daemon client kernels | grep -v '^daemon/runtime/gloo_link.cc$' &&
  fail "Gloo belongs to daemon/runtime/gloo_link.cc alone"
[ $status = 0 ] && echo "every include is where it may be"
exit $status
