# The methods of fsdpd's services as C, from their .proto files: a struct rpc_method per "rpc" line.
#     awk -f methods.awk -v output=header|source control.proto worker.proto
# "rpc SubmitJob" of "service Control" becomes control_submit_job; CONTROL_METHODS counts them.

function snake(name,    text, i, letter) {
  for (i = 1; i <= length(name); i++) {
    letter = substr(name, i, 1)
    if (letter ~ /[A-Z]/ && i > 1) text = text "_"
    text = text tolower(letter)
  }
  return text
}

function descriptor(type) { return "&fsdpd__v1__" snake(type) "__descriptor" }

BEGIN {
  print "/* Made from the .proto files by proto/methods.awk. */"
  if (output == "header") {
    print "#ifndef FSDPD_PROTO_METHODS_H\n#define FSDPD_PROTO_METHODS_H\n"
    print "#include \"fsdpd/v1/control.pb-c.h\"\n#include \"fsdpd/v1/worker.pb-c.h\""
    print "#include \"rpc/rpc.h\""
  } else {
    print "#include \"fsdpd/v1/methods.h\""
  }
}

$1 == "service" {
  service = $2
  prefix = snake(service)
  count = 0
}

$1 == "rpc" {
  line = $0
  gsub(/[();]/, " ", line)
  fields = split(line, word, " ") # rpc NAME [stream] REQUEST returns [stream] RESPONSE
  from = word[3] == "stream"
  to = word[fields - 1] == "stream"
  kind = from ? (to ? "RPC_BIDIRECTIONAL" : "RPC_CLIENT_STREAM") : to ? "RPC_SERVER_STREAM" : "RPC_UNARY"
  name = prefix "_" snake(word[2])
  count++
  if (output == "header")
    print "extern const struct rpc_method " name ";"
  else
    print "const struct rpc_method " name " = {\"/fsdpd.v1." service "/" word[2] "\", " kind ",\n    " \
          descriptor(word[from ? 4 : 3]) ", " descriptor(word[fields]) "};"
}

$1 == "}" && service != "" {
  if (output == "header") print "enum { " toupper(prefix) "_METHODS = " count " };\n"
  service = ""
}

END { if (output == "header") print "#endif" }
