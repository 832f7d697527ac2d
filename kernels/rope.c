/* Frequencies of rotary positions; see rope.h. Every step rounds to f32, as operations on tensors
 * do. */
#include "kernels/rope.h"

#include <math.h>

/* "llama3" divides low frequencies by the factor, keeps high ones, and blends those between. */
static float scale_llama3(const struct op_desc *desc, float frequency)
{
    float factor = (float)desc->attrs.rope.factor;
    double context = (double)desc->attrs.rope.original_context;
    double low = desc->attrs.rope.low_freq_factor, high = desc->attrs.rope.high_freq_factor;
    float wavelength = (float)(2 * M_PI) / frequency;
    if (wavelength > (float)(context / low)) return frequency / factor;
    if (wavelength < (float)(context / high)) return frequency;
    float smooth = ((float)context / wavelength - (float)low) / (float)(high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

int64_t rope_pairs(const struct op_desc *desc)
{
    int64_t rotary = desc->attrs.rope.rotary_dim;
    return (rotary > 0 ? rotary : desc->attrs.rope.head_dim) / 2;
}

int64_t rope_positions(const struct op_desc *desc)
{
    int64_t positions = desc->attrs.rope.positions;
    return positions > 0 ? positions : desc->inputs[0].dims[1];
}

float rope_magnitude(const struct op_desc *desc)
{
    bool magnified = desc->attrs.rope.scaling >= ROPE_SCALING_YARN;
    return magnified ? (float)desc->attrs.rope.magnitude : 1;
}

/* The pair that turns `rotations` times within the original context. */
static double yarn_pair(const struct op_desc *desc, double rotations)
{
    double context = (double)desc->attrs.rope.original_context,
           columns = 2 * (double)rope_pairs(desc);
    return columns * log(context / (rotations * 2 * M_PI)) / (2 * log(desc->attrs.rope.theta));
}

/* "yarn" divides the frequencies of pairs that turn rarely by the factor, keeps those that turn
 * often, and blends those between along a ramp. */
static float scale_yarn(const struct op_desc *desc, int64_t pair, float power)
{
    double low = floor(yarn_pair(desc, desc->attrs.rope.beta_fast));
    double high = ceil(yarn_pair(desc, desc->attrs.rope.beta_slow));
    low = low > 0 ? low : 0;
    high = high < 2 * (double)rope_pairs(desc) - 1 ? high : 2 * (double)rope_pairs(desc) - 1;
    if (low == high) high += 0.001;
    float ramp = ((float)pair - (float)low) / (float)(high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    float kept = 1 - ramp, divided = 1 / ((float)desc->attrs.rope.factor * power);
    return divided * (1 - kept) + 1 / power * kept;
}

/* "longrope" has two factors for each pair, of which the rows' length chooses one. */
static float longrope_factor(const struct op_desc *desc, int64_t pair)
{
    bool is_long = rope_positions(desc) > desc->attrs.rope.original_context;
    return op_weight(is_long ? &desc->attrs.rope.long_factors : &desc->attrs.rope.short_factors,
                     pair);
}

void rope_frequencies(const struct op_desc *desc, float *frequencies)
{
    int64_t pairs = rope_pairs(desc);
    for (int64_t i = 0; i < pairs; i++) {
        float exponent = (float)(2 * i) / (float)(2 * pairs);
        float power = (float)pow((float)desc->attrs.rope.theta, exponent), frequency = 1 / power;
        if (desc->attrs.rope.scaling == ROPE_SCALING_LINEAR)
            frequency /= (float)desc->attrs.rope.factor;
        else if (desc->attrs.rope.scaling == ROPE_SCALING_LLAMA3)
            frequency = scale_llama3(desc, frequency);
        else if (desc->attrs.rope.scaling == ROPE_SCALING_YARN)
            frequency = scale_yarn(desc, i, power);
        else if (desc->attrs.rope.scaling == ROPE_SCALING_LONGROPE)
            frequency = 1 / (longrope_factor(desc, i) * power);
        frequencies[i] = frequency;
    }
}
