/* adapter_config.json: what is accepted is within the limits of model.lora, and says the same when
 * it is written and read again. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "hf/peft.h"

static void check_names(const struct peft_names *names, const struct peft_names *again)
{
    FUZZ_CHECK(names->count == again->count, "%d names, then %d", names->count, again->count);
    for (int i = 0; i < names->count; i++)
        FUZZ_CHECK(strcmp(names->items[i], again->items[i]) == 0, "%s", names->items[i]);
}

static void check_rules(const struct peft_rules *rules, const struct peft_rules *again)
{
    FUZZ_CHECK(rules->count == again->count, "%d rules, then %d", rules->count, again->count);
    for (int i = 0; i < rules->count; i++)
        FUZZ_CHECK(rules->items[i].value > 0 && rules->items[i].value <= 1e6 &&
                       strcmp(rules->items[i].match, again->items[i].match) == 0,
                   "%s", rules->items[i].match);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *json = mem_dup(data, size);
    struct buf notes = {0}, out = {0};
    struct peft_config config, again;
    status_t status = peft_config_read(json, size, PEFT_CONFIG, &config, &notes);
    if (status != NULL) {
        fuzz_expect_user_error(status);
    } else {
        FUZZ_CHECK(config.rank >= 1 && config.rank <= 65536 && config.alpha > 0 &&
                       config.dropout >= 0 && config.dropout < 1,
                   "rank %u", config.rank);
        config.base = config.architecture = "";
        peft_config_write(&config, &out);
        status = peft_config_read(buf_text(&out), out.length, PEFT_CONFIG, &again, &notes);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        FUZZ_CHECK(again.rank == config.rank && again.rslora == config.rslora, "rank %u",
                   again.rank);
        check_names(&config.targets, &again.targets);
        check_names(&config.saved, &again.saved);
        check_rules(&config.ranks, &again.ranks);
        check_rules(&config.alphas, &again.alphas);
        peft_config_deinit(&config);
        peft_config_deinit(&again);
    }
    buf_deinit(&notes);
    buf_deinit(&out);
    free(json);
    return 0;
}
