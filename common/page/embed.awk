# A file as the text of a C header: awk -v name=NAME -f embed.awk FILE.
BEGIN { print "static const char " name "[] =" }
{
  gsub(/\\/, "&&")
  gsub(/"/, "\\\"")
  print "    \"" $0 "\\n\""
}
END { print "    ;" }
