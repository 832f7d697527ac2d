/* The timeline of one step on a page: as traced, or as the plan estimates it. */
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "page/html.h"
#include "page/page.h"

enum { WIDTH = 1200, LEFT = 130, ROW = 18, GAP = 8, TOP = 6, RANKS_MAX = 8, BOXES_MAX = 20000 };

static const char *const lanes[] = {"compute", "comm", "copy"};
enum { LANES = COUNT_OF(lanes) };

static int lane_of(const char *name)
{
    for (int i = 0; i < LANES; i++)
        if (strcmp(name, lanes[i]) == 0) return i;
    return 0;
}

static double row_y(int rank, int lane)
{
    return TOP + rank * (LANES * ROW + GAP) + lane * ROW;
}

static void begin_svg(int ranks, struct buf *out)
{
    buf_printf(
        out,
        "<div class=\"wide\"><svg class=\"step\" role=\"img\" viewBox=\"0 0 %d %.0f\"><title>"
        "The lanes of a step</title>\n",
        WIDTH, row_y(ranks, 0) + 20);
}

static void add_row(int rank, int lane, bool named, struct buf *out)
{
    double y = row_y(rank, lane);
    char name[32] = "";
    if (named) snprintf(name, sizeof name, "rank %d ", rank);
    buf_printf(out,
               "<rect class=\"lane\" x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\"/>"
               "<text class=\"y\" x=\"%d\" y=\"%.0f\">%s%s</text>\n",
               LEFT, y, WIDTH - LEFT - 4, ROW - 2, LEFT - 6, y + 12, name, lanes[lane]);
}

/* An instruction that occupies a lane from `begin` for `seconds`, in a step of `total` seconds. */
struct box {
    int rank, lane;
    const char *kind, *name;
    double begin, seconds, total;
};

static void add_box(const struct box *box, struct buf *out)
{
    char text[32];
    double scale = (WIDTH - LEFT - 4) / box->total, width = box->seconds * scale;
    buf_printf(out,
               "<rect class=\"l%d\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"><title>",
               box->lane, LEFT + box->begin * scale, row_y(box->rank, box->lane),
               width > 0.3 ? width : 0.3, ROW - 2);
    html_add(out, box->name);
    if (box->kind[0] != '\0' && strncmp(box->name, box->kind, strlen(box->kind)) != 0) {
        buf_add_text(out, " (");
        html_add(out, box->kind);
        buf_add_char(out, ')');
    }
    buf_printf(out, ": %s</title></rect>\n", text_format_duration(box->seconds, text));
}

static void end_svg(int ranks, double total, struct buf *out)
{
    char text[32];
    for (int i = 0; i <= 4; i++)
        buf_printf(out, "<text class=\"x\" x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                   LEFT + (WIDTH - LEFT - 40) * i / 4.0 + 16, row_y(ranks, 0) + 12,
                   i == 0 ? "0" : text_format_duration(total * i / 4, text));
    buf_add_text(out, "</svg></div>\n");
}

static void keys(struct buf *out)
{
    for (int i = 0; i < LANES; i++)
        buf_printf(out, "<span class=\"key l%d\"></span>%s ", i, lanes[i]);
}

/* ---- traced ---- */

struct step_span {
    int64_t begin_ns, end_ns;
};

/* When the last traced step began and ended, by rank, including its batches. */
static void find_spans(const struct timeline *timeline, struct step_span *spans)
{
    for (int i = 0; i < timeline->chunk_count; i++) {
        const Fsdpd__V1__TraceChunk *chunk = timeline->chunks[i];
        for (size_t s = 0; s < chunk->n_steps; s++) {
            const Fsdpd__V1__TraceStep *step = chunk->steps[s];
            struct step_span *span = &spans[chunk->rank];
            if (step->step != timeline->last_step) continue;
            if (span->begin_ns == 0 || step->begin_ns < span->begin_ns)
                span->begin_ns = step->begin_ns;
            if (step->end_ns > span->end_ns) span->end_ns = step->end_ns;
        }
    }
}

static int add_piece(const struct timeline *timeline, const Fsdpd__V1__TraceStep *step, int rank,
                     int64_t origin_ns, double total, struct buf *out)
{
    bool accumulate = strcmp(step->program, "accumulate") == 0;
    const struct timeline_program *program = accumulate ? &timeline->accumulate : &timeline->train;
    for (size_t k = 0; k < program->count && k < step->n_begins; k++) {
        const Fsdpd__V1__TraceInstruction *instruction = program->instructions[k];
        const struct box box = {.rank = rank,
                                .lane = lane_of(instruction->lane),
                                .kind = instruction->kind,
                                .name = instruction->name,
                                .begin = (double)(step->begin_ns - origin_ns) * 1e-9 +
                                         (double)step->begins[k] * 1e-9,
                                .seconds = (double)step->durations[k] * 1e-9,
                                .total = total};
        add_box(&box, out);
    }
    return (int)program->count;
}

static void add_traced(const struct timeline *timeline, struct buf *out)
{
    AUTO_FREE struct step_span *spans = mem_alloc_array((size_t)timeline->world + 1, sizeof *spans);
    find_spans(timeline, spans);
    int ranks = timeline->world < RANKS_MAX ? timeline->world : RANKS_MAX, boxes = 0;
    bool shared = timeline->host_count <= 1; /* one clock */
    int64_t first = spans[0].begin_ns, total_ns = 0;
    for (int r = 0; r < ranks; r++)
        if (shared && spans[r].begin_ns < first) first = spans[r].begin_ns;
    for (int r = 0; r < ranks; r++) {
        int64_t length = spans[r].end_ns - (shared ? first : spans[r].begin_ns);
        if (length > total_ns) total_ns = length;
    }
    double total = total_ns > 0 ? (double)total_ns * 1e-9 : 1;
    begin_svg(ranks, out);
    for (int r = 0; r < ranks; r++)
        for (int lane = 0; lane < LANES; lane++) add_row(r, lane, true, out);
    for (int i = 0; i < timeline->chunk_count; i++) {
        const Fsdpd__V1__TraceChunk *chunk = timeline->chunks[i];
        int rank = (int)chunk->rank;
        for (size_t s = 0; s < chunk->n_steps && rank < ranks; s++) {
            const Fsdpd__V1__TraceStep *step = chunk->steps[s];
            if (step->step != timeline->last_step || boxes > BOXES_MAX) continue;
            boxes +=
                add_piece(timeline, step, rank, shared ? first : spans[rank].begin_ns, total, out);
        }
    }
    end_svg(ranks, total, out);
    buf_printf(out, "<p>Measured in step %llu. ", (unsigned long long)timeline->last_step);
    keys(out);
    if (ranks < timeline->world)
        buf_printf(out, " Of %d ranks, the first %d are shown.", timeline->world, ranks);
    if (boxes > BOXES_MAX)
        buf_add_text(out, " Not all instructions are shown; fsdpctl trace has all of them.");
    if (!shared) buf_add_text(out, " Each rank's times count from its own start of the step.");
    buf_add_text(out, "</p>\n");
}

/* ---- by the plan ---- */

static void add_planned(const struct page *page, const Fsdpd__V1__PlanProgram *program,
                        struct buf *out)
{
    double total = 0;
    for (size_t i = 0; i < program->n_schedule; i++) {
        double end = program->schedule[i]->start_seconds + program->schedule[i]->seconds;
        if (end > total) total = end;
    }
    if (!(total > 0)) total = 1;
    begin_svg(1, out);
    for (int lane = 0; lane < LANES; lane++) add_row(0, lane, false, out);
    for (size_t i = 0; i < program->n_schedule && i < BOXES_MAX; i++) {
        const Fsdpd__V1__ScheduleLine *line = program->schedule[i];
        const struct box box = {.lane = lane_of(line->lane),
                                .kind = line->kind,
                                .name = line->subject[0] ? line->subject : line->kind,
                                .begin = line->start_seconds,
                                .seconds = line->seconds,
                                .total = total};
        add_box(&box, out);
    }
    end_svg(1, total, out);
    buf_add_text(out, "<p>The plan's schedule of a training step of one rank, with times estimated "
                      "for the device <code>");
    html_add(out, page->schedule->device);
    buf_add_text(out, "</code>: it was not measured. ");
    keys(out);
    if (program->schedule_left_out > 0)
        buf_printf(out, " %u further lines are left out.", program->schedule_left_out);
    buf_add_text(out, "</p>\n");
}

void page_add_step(const struct page *page, struct buf *out)
{
    const Fsdpd__V1__PlanProgram *train = NULL;
    for (size_t i = 0; page->schedule != NULL && i < page->schedule->n_programs; i++)
        if (strcmp(page->schedule->programs[i]->name, "train") == 0 &&
            page->schedule->programs[i]->n_schedule > 0)
            train = page->schedule->programs[i];
    if (page->timeline != NULL) add_traced(page->timeline, out);
    else if (train != NULL) add_planned(page, train, out);
    if (page->no_timeline != NULL) {
        buf_add_text(out, "<p class=\"note\">");
        html_add(out, page->no_timeline);
        buf_add_text(out, "</p>\n");
    } else if (page->timeline == NULL && train == NULL) {
        buf_add_text(out, "<p class=\"none\">There is no schedule.</p>\n");
    }
}
