/* See scores.h. */
#include "scores.h"

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
