/* Learning rates over epochs and steps; see schedule.h. Pure functions; any thread. */
#include "train/schedule.h"

#include <math.h>

#include "base/must.h"

/* get_inverse_sqrt_schedule's timescale without a warm-up. */
#define DEFAULT_TIMESCALE 10000.0

/* Where a step is in its schedule. */
struct curve_at {
    const struct train_schedule *of;
    uint64_t step;
    double place, places;
    double done; /* the part of what follows the warm-up; 0 in warm-up */
    bool over;
};

double schedule_next_rate(const struct train_schedule *schedule, uint32_t epoch, double rate)
{
    if (schedule->kind != SCHEDULE_STEP) return rate;
    return epoch % schedule->step_size == 0 ? rate * schedule->gamma : rate;
}

/* From 1 to the end factor. */
static double toward_end(const struct curve_at *at, double left)
{
    double end = at->of->end_factor;
    return at->over ? end : end + (1 - end) * left;
}

static double cosine_left(double done)
{
    return (1 + cos(M_PI * done)) / 2;
}

/* The rest of 1 after the part `done`. */
static double left_of(enum schedule_shape shape, double done)
{
    switch (shape) {
    case SHAPE_LINEAR: return 1 - done;
    case SHAPE_COSINE: return cosine_left(done);
    case SHAPE_1_SQRT: return 1 - sqrt(done);
    }
    MUST(false);
}

static double constant(const struct curve_at *at)
{
    (void)at;
    return 1;
}

static double linear(const struct curve_at *at)
{
    double end = at->of->end_factor;
    return at->over ? end : 1 + (end - 1) * at->done;
}

static double cosine(const struct curve_at *at)
{
    return toward_end(at, cosine_left(at->done));
}

static double restarts(const struct curve_at *at)
{
    return toward_end(at, cosine_left(fmod(at->of->cycles * at->done, 1)));
}

static double polynomial(const struct curve_at *at)
{
    return toward_end(at, pow(1 - at->done, at->of->power));
}

static double inverse_sqrt(const struct curve_at *at)
{
    double warmup = (double)at->of->warmup_steps, scale = (double)at->of->timescale;
    if (scale == 0) scale = warmup > 0 ? warmup : DEFAULT_TIMESCALE;
    return fmax(at->of->end_factor, 1 / sqrt(((double)at->step - warmup + scale) / scale));
}

static double wsd(const struct curve_at *at)
{
    double decay = (double)at->of->decay_steps, into = at->place - (at->places - decay);
    return into < 0 ? 1 : toward_end(at, at->over ? 0 : left_of(at->of->shape, into / decay));
}

/* torch's OneCycleLR: a stage ends one step before the next, which begins with its rate. */
static double one_cycle(const struct curve_at *at)
{
    const struct train_schedule *of = at->of;
    double first = 1 / of->div_factor, least = first / of->final_div_factor;
    double up = of->pct_start * at->places;
    const struct {
        double end, from, to;
    } two[] = {{up - 1, first, 1}, {at->places - 1, 1, least}},
      three[] = {{up - 1, first, 1}, {2 * up - 2, 1, first}, {at->places - 1, first, least}},
      *stages = of->three_phase ? three : two;
    double begin = 0;
    for (int s = 0; s < (of->three_phase ? 3 : 2); s++) {
        if (at->place <= stages[s].end) {
            double length = stages[s].end - begin;
            double done = length > 0 ? (at->place - begin) / length : 1;
            return stages[s].to + (stages[s].from - stages[s].to) * left_of(of->shape, done);
        }
        begin = stages[s].end;
    }
    return least;
}

/* A phase begins at its own step 0, as a schedule of PyTorch's SequentialLR does. */
static double phases(const struct curve_at *at)
{
    uint64_t begin = 0;
    const struct train_schedule *phase = at->of->phases;
    for (int p = 0; p + 1 < at->of->phase_count && at->step - begin >= phase->steps; p++)
        begin += phase++->steps;
    uint64_t step = at->step - begin;
    bool rest = phase->steps == 0;
    return phase->factor *
           schedule_factor(phase, step, rest ? at->place - (double)begin : (double)step,
                           rest ? at->places - (double)begin : (double)phase->steps);
}

double schedule_factor(const struct train_schedule *schedule, uint64_t step, double place,
                       double places)
{
#define CURVE(KIND, curve) [SCHEDULE_##KIND] = curve,
    static double (*const curves[SCHEDULE_COUNT])(const struct curve_at *at) = {SCHEDULES(CURVE)};
#undef CURVE
    uint64_t warmup = schedule->warmup_steps;
    double start = schedule->warmup_start_factor, begin = (double)warmup;
    if (step < warmup) return start + (1 - start) * ((double)step / begin);
    if (schedule->total_steps > 0) {
        place = (double)step;
        places = (double)schedule->total_steps;
    }
    return curves[schedule->kind](&(struct curve_at){
        .of = schedule,
        .step = step,
        .place = place,
        .places = places,
        .done = place > begin && place < places ? (place - begin) / (places - begin) : 0,
        .over = place >= places});
}
