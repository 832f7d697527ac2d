#!/bin/sh
# Every path that CONTRIBUTING.md and docs/development.md name exists, every page is in the index of docs/README.md, no link
# leads nowhere (headings too), every job key of docs/coming-from-fsdp.md is one, and README.md has the last ratios of docs/performance.md.
# The commits that CONTRIBUTING.md names are in the history, where there is a complete one.
# Each row of a table of what happens, in docs/durability.md, elastic.md and checkpoints.md, names a test, and all that these pages
# name exist.
# Each page has a budget of words, without its generated tables: shorten a page instead of raising it. docs/popular-models.md says yes where there is a family.
# A path is a word of `code` with a slash, or with a name of the source tree's root.
cd "${srcdir:-.}" || exit 1
status=0
fail() {
  echo "$*"
  status=1
}

count=0
for page in CONTRIBUTING.md docs/development.md; do
  for path in $(grep -oE '`[^` ]+`' "$page" | tr -d '`' | grep -E '^(common|kernels|daemon|client|proto|tests|bench|docs|scripts|examples)/|^Makefile.am$'); do
    count=$((count + 1))
    # tests and fuzz targets are named without a suffix
    [ -e "$path" ] || [ -e "$path.c" ] || [ "$path" = tests/fuzz/found ] || fail "$page: $path does not exist"
  done
  for path in $(grep -oE '^    [^#]*' "$page" | grep -oE '(^|[ /])(tests|bench|scripts)/[a-z_/-]+(\.(sh|py))?' | sed 's|^[ /]*||'); do
    count=$((count + 1))
    [ -e "$path" ] || [ -e "$path.c" ] || fail "$page: $path does not exist"
  done
done
[ $count -gt 100 ] || fail "only $count paths were found"
for page in docs/*.md; do
  name=${page#docs/}
  [ "$name" = README.md ] || grep -qF "($name" docs/README.md || fail "docs/README.md does not mention $name"
done
for page in CONTRIBUTING.md README.md; do
  for link in $(grep -ohE '\]\([^)#:]+\.[a-z]+' $page | sed 's/](//'); do
    [ -e "$link" ] || fail "$page links to $link, which does not exist"
  done
done
# README.md gives the last row against each PyTorch: MNIST's ratio, and the least and the largest of the GPTs.
last() { # PYTORCH: the ratios of its last row
  awk -F ' *\\| *' -v name="$1" '/^\| 20[0-9][0-9]-/ && index($4, name) == 1 { row = $0 } END { print row }' docs/performance.md |
    grep -oE '[0-9]\.[0-9][0-9]( |$)' | sort
}
mnist=$(last 1.13 | xargs) gpts=$(last 2.15 | xargs)
text=$(tr '\n' ' ' <README.md)
for ratios in "$mnist" "${gpts%% *} to ${gpts##* }"; do
  case $text in *" $ratios "*) ;; *) fail "README.md: the ratios are not those of docs/performance.md: expected $ratios" ;; esac
done
# docs/planner.md gives the first and the last line of the tables of docs/notebook.md.
summary() { # SCRIPT WORDS: that line's part from its WORDS on
  sed -n "/<!-- bench\/$1.sh -->/,/<!-- end -->/p" docs/notebook.md | grep -E "$2" | tail -n 1 | grep -oE "$2" | head -n 1
}
text=$(tr '\n' ' ' <docs/planner.md)
for words in "$(summary planner '[0-9]+ configurations: .* in [0-9]+')" "2 workers: $(summary simulate 'mean absolute error [0-9.]+%')" \
  "$(summary choices 'worst [0-9.]+%') slower"; do
  case $text in *"$words"*) ;; *) fail "docs/planner.md is not what docs/notebook.md says: expected $words" ;; esac
done
for link in $(grep -ohE '\]\([^)#:]+\.[a-z]+' docs/*.md | sed 's/](//' | sort -u); do
  [ -e "docs/$link" ] || fail "docs: a link to $link, which does not exist"
done
names=$({
  grep -rhoE '^(LOOP_)?TEST\([a-z_0-9]+|def test_[a-z_0-9]+|^class [A-Z][A-Za-z]+' tests --include='*.c' --include='*.py' |
    sed -E 's/^((LOOP_)?TEST\(|def |class )//'
  find tests/ -name 'test_*' | sed -E 'p; s/\.[a-z]*$//'
  find tests/ -name 'test_*' | sed -E 's|.*/||; p; s/\.[a-z]*$//'
} | sort -u)
pages='docs/durability.md docs/elastic.md docs/checkpoints.md'
for word in $(grep -ohE '`(tests/[^` ]*|test_[a-z_0-9]+)(\.py|\.c)?`|\(tests/[a-z_/]*\.(py|c)' $pages | tr -d '`('); do
  printf '%s\n' "$names" | grep -qxF "$word" || [ -e "$word" ] || fail "a test that does not exist: $word"
done
# The last cell of a row names its tests; in a column of its own it names nothing else.
missing=$(NAMES="$names" awk -F '|' '
BEGIN { split(ENVIRON["NAMES"], list, "\n"); for (i in list) known[list[i]] = 1 }
/^\| (event|what happens|kept|the reason says|may change|`elastic.redundancy`) \|/ {
  inside = 1
  strict = $(NF - 1) ~ /^ test $/
  getline
  next
}
!/^\|/ { inside = 0 }
inside {
  cell = $(NF - 1)
  found = 0
  for (rest = cell; match(rest, /[A-Za-z_0-9\/]+(\.py|\.c)?/); rest = substr(rest, RSTART + RLENGTH))
    if (substr(rest, RSTART, RLENGTH) in known) found++
    else if (strict) print FILENAME ": no test " substr(rest, RSTART, RLENGTH)
  if (!found) print FILENAME ": no test in the row" $0
}' $pages)
[ -z "$missing" ] || fail "$missing"
anchors=$(awk '
function slug(heading) {
  sub(/^#+ /, "", heading)
  heading = tolower(heading)
  gsub(/[^a-z0-9_ -]/, "", heading)
  gsub(/ /, "-", heading)
  return heading
}
/^```/ { code = !code }
/^#+ / && !code { heads[FILENAME "#" slug($0)] = 1 }
{
  for (line = $0; match(line, /\]\([a-z.\/-]*#[a-z0-9_-]+\)/); line = substr(line, RSTART + RLENGTH)) {
    target = substr(line, RSTART + 2, RLENGTH - 3)
    links[(target ~ /^#/ ? FILENAME : "docs/") target] = FILENAME
  }
}
END { for (link in links) if (!(link in heads)) print links[link] ": a link to " link ", which is not a heading" }
' docs/*.md)
[ -z "$anchors" ] || fail "$anchors"
for page in README.md CONTRIBUTING.md docs/*.md; do
  case ${page#docs/} in
    job-file.md) most=11000 ;;
    notebook.md) most=8500 ;;
    fsdpctl.md) most=6500 ;;
    model-file.md | fsdpd.md) most=5700 ;;
    CONTRIBUTING.md) most=1800 ;;
    *) most=4500 ;;
  esac
  [ "$page" != README.md ] || most=900
  words=$(sed '/^<!-- keys:/,/^<!-- end of keys/d' "$page" | wc -w)
  [ "$words" -le $most ] || fail "$page has $words words, more than its budget of $most"
done
rows=0
while IFS='|' read -r _ name trains type _; do
  family=families/$(echo "$type" | tr -d ' `' | tr - _).yaml
  case $trains in
    *yes*) [ -e "$family" ] || fail "docs/popular-models.md: $name: there is no $family" ;;
    *no*) [ ! -e "$family" ] || fail "docs/popular-models.md: $name: there is $family" ;;
    *) continue ;;
  esac
  rows=$((rows + 1))
done <docs/popular-models.md
[ $rows -gt 50 ] || fail "docs/popular-models.md: only $rows checkpoints were found"
for key in $(grep -oE '`(fsdp|precision|train|optimizer|schedule|model|checkpoint)\.[a-z_.]+[`:*]' docs/coming-from-fsdp.md |
  tr -d '`:*'); do
  grep -qF "{\"$key" common/spec/keys.c || fail "docs/coming-from-fsdp.md: there is no job key $key"
done
examples=$(tr '\n' ' ' <CONTRIBUTING.md | grep -oE 'commit `[^`]+`' | cut -d '`' -f 2)
[ "$(printf '%s\n' "$examples" | wc -l)" -ge 5 ] || fail "CONTRIBUTING.md: expected 5 examples of commits"
if [ -e .git ] && [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = false ]; then
  subjects=$(git log --format=%s)
  missing=$(printf '%s\n' "$examples" | while read -r subject; do
    printf '%s\n' "$subjects" | grep -qxF -e "$subject" || echo "CONTRIBUTING.md: there is no commit \"$subject\""
  done)
  [ -z "$missing" ] || fail "$missing"
else
  echo "the commits that CONTRIBUTING.md names were not checked: there is no complete history here"
fi
[ $status = 0 ] && echo "$count paths, all there"
exit $status
