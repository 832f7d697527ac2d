/* See scores.h. */
#include "print/scores.h"

#include <math.h>
#include <stdio.h>

const char *scores_loss(double loss, char text[static 32])
{
    snprintf(text, 32, isnan(loss) ? "-" : fabs(loss) < 1e15 ? "%.4f" : "%.4g", loss);
    return text;
}

const char *scores_share(double share, char text[static 32])
{
    if (isnan(share)) return "-";
    snprintf(text, 32, "%.2f%%", 100 * share);
    return text;
}

void scores_add_f1(const Fsdpd__V1__Scores *scores, struct buf *out)
{
    if (scores != NULL && scores->_f1_case) buf_printf(out, ", F1 %.4f", scores->f1);
}

void scores_add(const Fsdpd__V1__Scores *scores, struct buf *out)
{
    if (scores == NULL) return;
    if (scores->_accuracy_case) buf_printf(out, ", accuracy %.2f%%", 100 * scores->accuracy);
    scores_add_f1(scores, out);
    if (scores->_perplexity_case) buf_printf(out, ", perplexity %.4g", scores->perplexity);
    if (scores->_pearson_case) buf_printf(out, ", Pearson %.4f", scores->pearson);
    if (scores->_mse_case) buf_printf(out, ", MSE %.4g", scores->mse);
}
