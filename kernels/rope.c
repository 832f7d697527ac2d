/* Frequencies of rotary positions; see rope.h. Every step is rounded to f32, as tensors are. */
#include "kernels/rope.h"

#include <math.h>

/* "llama3": low frequencies are divided by the factor, high ones kept, those between blended. */
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

void rope_frequencies(const struct op_desc *desc, float *frequencies)
{
    int64_t head = desc->attrs.rope.head_dim;
    for (int64_t i = 0; i < head / 2; i++) {
        float exponent = (float)(2 * i) / (float)head;
        float frequency = 1 / (float)pow((float)desc->attrs.rope.theta, exponent);
        if (desc->attrs.rope.scaling == ROPE_SCALING_LINEAR)
            frequency /= (float)desc->attrs.rope.factor;
        else if (desc->attrs.rope.scaling == ROPE_SCALING_LLAMA3)
            frequency = scale_llama3(desc, frequency);
        frequencies[i] = frequency;
    }
}
