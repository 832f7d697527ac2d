# Converts one of docs/*.md to a man page. These pages use only a part of Markdown: headings,
# paragraphs, lists, tables, indented and fenced blocks, `code`, **bold**, [links](to).
#
#   awk -f md2man.awk -v name=fsdpd.yaml -v section=5 -v about="..." -v version=0.1.0 FILE
#   awk -f md2man.awk -v name=fsdpctl-pull -v section=1 -v verb=pull ... FILE
#
# With `verb`, the page is that verb's section ("## fsdpctl VERB ..."); with verbs=list, the verbs'
# sections are replaced by a list of the verbs. The default of `about` is the text's first sentence.

function escape(text, pieces, count, i)
{
    gsub(/\\/, "\\e", text)
    # What a terminal without UTF-8 cannot show.
    gsub(/\342\200\231/, "'", text)
    gsub(/\342\200\246/, "...", text)
    gsub(/\302\265/, "u", text)
    gsub(/\302\267/, ".", text)
    gsub(/\342\210\232/, "sqrt ", text)
    gsub(/\302\271/, "\0021", text)
    gsub(/\302\262/, "\0022", text)
    gsub(/\302\263/, "\0023", text)
    gsub(/\342\201\260/, "\0020", text)
    gsub(/\342\201\264/, "\0024", text)
    count = split(text, pieces, "\002")
    text = pieces[1]
    for (i = 2; i <= count; i++) text = text (i > 2 && length(pieces[i - 1]) == 1 ? "" : "^") pieces[i]
    return text
}

function page_of(target, text)
{
    if (target == "configuration.md") return "fsdpd.yaml(5)"
    if (target == "job-file.md") return "fsdpd-job(5)"
    if (target == "model-file.md") return "fsdpd-model(5)"
    if (target == "profiles.md") return "fsdpd-profile(5)"
    if (target == "fsdpctl.md") return "fsdpctl(1)"
    if (target == "fsdpd.md") return "fsdpd(8)"
    sub(/^\.\.\//, "", target)
    return target
}

# Converts links, code and bold; code is literal and keeps its dashes.
function inline(text, out, i, part, label, target, rest)
{
    out = ""
    while (match(text, /`[^`]+`|\[[^\]]+\]\([^)]+\)|\*\*[^*]+\*\*/)) {
        out = out escape(substr(text, 1, RSTART - 1))
        part = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (substr(part, 1, 1) == "`") {
            part = escape(substr(part, 2, length(part) - 2))
            gsub(/-/, "\\-", part)
            out = out "\\fB" part "\\fR"
        } else if (substr(part, 1, 2) == "**") {
            out = out "\\fB" escape(substr(part, 3, length(part) - 4)) "\\fR"
        } else {
            i = index(part, "](")
            label = substr(part, 2, i - 2)
            target = page_of(substr(part, i + 2, length(part) - i - 2))
            if (label ~ /\.(md|yaml|json)$/) out = out escape(target)
            else out = out inline_label(label) " (" escape(target) ")"
        }
    }
    return out escape(text)
}

function inline_label(label)
{
    gsub(/`/, "", label)
    return escape(label)
}

# Prints a line of running text, escaped so that it cannot be taken for a request.
function put(text)
{
    if (text ~ /^[.']/) text = "\\&" text
    print text
}

function flush_paragraph()
{
    if (paragraph == "") return
    if (need_break) print ".PP"
    need_break = 1
    put(inline(paragraph))
    paragraph = ""
}

function end_item()
{
    if (item == "") return
    print item_request
    put(inline(item))
    item = ""
    need_break = 1
}

function flush()
{
    flush_paragraph()
    end_item()
    if (in_list) need_break = 1
    in_list = 0
}

function section_heading(text)
{
    flush()
    end_block()
    gsub(/`/, "", text)
    print ".SH " toupper(escape(text))
    need_break = 0
}

function begin_block()
{
    if (in_block) return
    flush()
    if (need_break) print ".PP"
    print ".RS 4"
    print ".nf"
    in_block = 1
}

function end_block()
{
    if (!in_block) return
    print ".fi"
    print ".RE"
    in_block = 0
    blank_lines = 0
    need_break = 1
}

function block_line(text)
{
    begin_block()
    for (; blank_lines > 0; blank_lines--) print ""
    text = escape(text)
    gsub(/-/, "\\-", text)
    put(text)
}

# Prints a row: its first cell is a term, its last cell the definition, with the cells between above it.
function table_row(line, cells, count, i, middle, cell)
{
    gsub(/\\\|/, "\001", line)
    sub(/^\| */, "", line)
    sub(/ *\| *$/, "", line)
    count = split(line, cells, / *\| */)
    for (i = 1; i <= count; i++) gsub(/\001/, "|", cells[i])
    if (!table_rows) {
        for (i = 1; i <= count; i++) titles[i] = cells[i]
        table_rows = 1
        return
    }
    if (line ~ /^-+/) return
    middle = ""
    for (i = 2; i < count; i++) {
        cell = cells[i]
        if (cell == "" || cell == "-") continue
        if (titles[i] == "type" || titles[i] == "of" || titles[i] == "unit") cell = inline(cell)
        else cell = escape(titles[i]) ": " inline(cell)
        middle = middle (middle == "" ? "" : "; ") cell
    }
    print ".TP"
    put(inline(cells[1] ~ /`/ ? cells[1] : "**" cells[1] "**"))
    if (middle != "" && cells[count] != "") {
        put(middle)
        print ".br"
    } else if (middle != "") put(middle)
    if (cells[count] != "") put(inline(cells[count]))
    else if (middle == "") print "\\&"
    need_break = 1
}

# The first sentence of the text, without markup.
function first_sentence(text)
{
    gsub(/\[/, "", text)
    gsub(/\]\([^)]*\)/, "", text)
    gsub(/[`*]/, "", text)
    if (match(text, /[.:] /)) text = substr(text, 1, RSTART - 1)
    sub(/[.:]$/, "", text)
    return escape(text)
}

function begin_page(text)
{
    if (begun) return
    begun = 1
    if (about == "") about = first_sentence(text)
    gsub(/-/, "\\-", about)
    printf ".TH \"%s\" %s \"%s\" \"fsdpd %s\" \"fsdpd\"\n", toupper(name), section, date, version
    print ".nh"
    print ".ad l"
    print ".SH NAME"
    shown_name = name
    gsub(/-/, "\\-", shown_name)
    print shown_name " \\- " about
    if (synopsis != "") {
        print ".SH SYNOPSIS"
        print ".nf"
        printf "%s", synopsis
        print ".fi"
    }
    print ".SH DESCRIPTION"
    need_break = 0
}

function add_synopsis(text)
{
    text = escape(text)
    gsub(/-/, "\\-", text)
    synopsis = synopsis "\\fB" text "\\fR\n"
}

{ lines[++line_count] = $0 }

# The paragraph that starts at line i, joined to one line.
function paragraph_at(i, text)
{
    for (text = ""; i <= line_count && lines[i] != "" && lines[i] !~ /^[#|]/; i++)
        text = text (text == "" ? "" : " ") lines[i]
    return text
}

function begin_at(i)
{
    while (i <= line_count && lines[i] == "") i++
    begin_page(paragraph_at(i))
    return i
}

function convert(i, line, words)
{
    for (; i <= last; i++) {
        line = lines[i]
        if (fenced) {
            if (line ~ /^ *```/) {
                fenced = 0
                end_block()
            } else if (line == "") blank_lines++
            else block_line(line)
            continue
        }
        if (line ~ /^ *```/) {
            fenced = 1
            begin_block()
            continue
        }
        if (in_list && line ~ /^  +[^ ]/) {
            sub(/^ +/, "", line)
            item = item " " line
            continue
        }
        if (line ~ /^    /) {
            block_line(substr(line, 5))
            continue
        }
        if (line == "" && in_block) {
            blank_lines++
            continue
        }
        end_block()
        if (line !~ /^\|/) table_rows = 0
        if (line ~ /^## /) section_heading(substr(line, 4))
        else if (line ~ /^### /) {
            flush()
            print ".SS " escape(substr(line, 5))
            need_break = 0
        } else if (line ~ /^\|/) {
            flush()
            table_row(line)
        } else if (line ~ /^- / || line ~ /^[0-9]+\. /) {
            flush_paragraph()
            end_item()
            in_list = 1
            if (line ~ /^- /) {
                item_request = ".IP \\(bu 2"
                item = substr(line, 3)
            } else {
                item_request = ".IP " substr(line, 1, index(line, ".")) " 4"
                item = substr(line, index(line, " ") + 1)
            }
        } else if (line == "") {
            flush_paragraph()
            if (in_list && lines[i + 1] !~ /^(- |[0-9]+\. |  )/) flush()
        } else {
            if (in_list) flush()
            paragraph = paragraph (paragraph == "" ? "" : " ") line
        }
    }
    flush()
    end_block()
}

END {
    last = line_count
    if (verb != "") {
        for (i = 1; i <= line_count; i++) {
            split(lines[i], words, " ")
            if (words[1] == "##" && words[2] == "fsdpctl" && words[3] == verb) break
        }
        if (i > line_count) {
            print "md2man.awk: no section about " verb > "/dev/stderr"
            exit 1
        }
        add_synopsis(substr(lines[i], 4) " [OPTION...]")
        for (last = i + 1; last <= line_count && lines[last] !~ /^## /; last++) {}
        last--
        i = begin_at(i + 1)
        convert(i)
        print ".SH SEE ALSO"
        print "\\fBfsdpctl\\fR(1) for the options of every verb and the exit codes"
        exit
    }
    for (i = 2; i <= line_count && (lines[i] == "" || lines[i] ~ /^    /); i++)
        if (lines[i] != "") add_synopsis(substr(lines[i], 5))
    i = begin_at(i)
    if (verbs == "") {
        convert(i)
    } else {
        for (start = i; i <= line_count && lines[i] !~ /^## fsdpctl /; i++) {}
        last = i - 1
        convert(start)
        print ".SH VERBS"
        for (; i <= line_count; i++) {
            if (lines[i] !~ /^## fsdpctl /) continue
            split(lines[i], words, " ")
            print ".TP"
            print "\\fB" escape(substr(lines[i], 12)) "\\fR"
            for (k = i + 1; lines[k] == ""; k++) {}
            print first_sentence(paragraph_at(k)) "."
            print "See \\fBfsdpctl\\-" words[3] "\\fR(1)."
        }
    }
    print ".SH SEE ALSO"
    print see
}
