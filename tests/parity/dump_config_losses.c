/*
 * dump_config_losses < CONFIGS: for each line, a config.json, its loss with the weights of
 * tests/unit/config_loss.c and what is noted: "LOSS|NOTE|NOTE", or "refused|WHY". For
 * tests/parity/make_config_numbers.py.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../unit/config_loss.h"

static void put(const char *text)
{
    for (; *text != '\0'; text++) putchar(*text == '\n' ? '|' : *text);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        struct buf notes = {0};
        double loss = 0;
        status_t status = config_loss(line, &notes, &loss);
        if (status == NULL) printf("%.9g|", loss);
        else fputs("refused|", stdout);
        put(status == NULL ? buf_text(&notes) : status_message(status));
        putchar('\n');
        fflush(stdout);
        status_free(status);
        buf_deinit(&notes);
    }
    free(line);
    return 0;
}
