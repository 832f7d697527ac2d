# A .proto file for protoc-c, which knows no "optional" fields of proto3 (protobuf-c 1.4): each becomes
# the oneof of one field that protoc makes of it, too, so the bytes are the same. In C, "optional uint32
# epochs" is the member epochs, given if _epochs_case is not 0.
#     awk -f optional.awk control.proto
$1 == "optional" {
  sub(/optional /, "oneof _" $3 " { ")
  sub(/;/, "; }")
}
{ print }
