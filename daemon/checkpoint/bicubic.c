/* Bicubic interpolation; see bicubic.h. */
#include "checkpoint/bicubic.h"

#include <math.h>

/* Keys' kernel at a distance of 0 to 2. */
static double kernel(double distance)
{
    static const double a = -0.75;
    double d = distance;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

struct bicubic bicubic_at(int64_t from, int64_t to, int64_t at)
{
    double place = ((double)at + 0.5) * ((double)from / (double)to) - 0.5;
    double before = floor(place), part = place - before;
    const double distances[] = {1 + part, part, 1 - part, 2 - part};
    struct bicubic made;
    for (int i = 0; i < 4; i++) {
        int64_t index = (int64_t)before - 1 + i;
        made.index[i] = index < 0 ? 0 : index >= from ? from - 1 : index;
        made.weight[i] = kernel(distances[i]);
    }
    return made;
}
