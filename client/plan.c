/* plan: what a job would do, without queueing the job. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static status_t set_dump(struct verb_options *options, const char *value)
{
    (void)value;
    options->dump = true;
    return NULL;
}

static status_t set_choose(struct verb_options *options, const char *value)
{
    (void)value;
    options->choose = true;
    return NULL;
}

static status_t set_memory(struct verb_options *options, const char *value)
{
    if (text_parse_bytes(value, &options->memory_bytes) && options->memory_bytes > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected bytes above 0, such as 80GB or 512MiB, found '%s'", value);
}

const struct verb_option plan_options[] = {
    {"set", 0, "KEY=VALUE", "override a key of the job file; may be repeated", option_set},
    {"dump", 0, NULL, "every instruction and buffer of the plan, too", set_dump},
    {"auto", 0, NULL, "choose units, strategy, recomputation, offload and batches", set_choose},
    {"memory", 0, "BYTES", "as if a device had at most that, such as 24GB", set_memory},
    {0},
};

static void print_plan(const struct client *client, const Fsdpd__V1__Plan *plan)
{
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_message(&text, &plan->base, 0);
        buf_add_char(&text, '\n');
    } else {
        report_plan(plan, client_view(client).width, &text);
    }
    output_print(&text);
}

/* The job file with the best settings. */
static status_t print_chosen(const struct client *client, const Fsdpd__V1__JobFile *file,
                             const Fsdpd__V1__Plan *plan)
{
    const struct verb_options *options = &client->options;
    const Fsdpd__V1__PlanChoice *choice = plan->choices[0];
    size_t count = 0;
    struct spec_override *sets =
        mem_alloc_array((size_t)options->set_count + choice->n_settings + 2, sizeof *sets);
    for (int i = 0; i < options->set_count; i++) sets[count++] = options->sets[i];
    for (size_t i = 0; i < choice->n_settings; i++)
        sets[count++] = (struct spec_override){.text = choice->settings[i]};
    sets[count++] = (struct spec_override){.text = "fsdp.auto=false"};
    Fsdpd__V1__JobSpec *spec = NULL;
    status_t status =
        spec_read_text(file->text, strlen(file->text), file->name, sets, (int)count, &spec);
    free(sets);
    if (status != NULL) return status_wrap(status, "the chosen settings");
    struct buf text = {0};
    buf_add_text(&text, "\nThe job file with these settings:\n\n");
    spec_to_yaml(spec, &text);
    output_print(&text);
    spec_free(spec);
    return NULL;
}

int verb_plan(struct client *client)
{
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    int code = EXIT_DONE;
    if (!client_read_spec(client, &request.job_file, &code)) return code;
    request.dump = client->options.dump;
    request.choose = client->options.choose;
    request.memory_bytes = client->options.memory_bytes;
    if (client_call(client, &control_plan_job, &request.base, &response, &code)) {
        const Fsdpd__V1__Plan *plan = (const Fsdpd__V1__Plan *)(const void *)response;
        print_plan(client, plan);
        status_t status = NULL;
        if (plan->n_choices > 0 && client->options.format != FORMAT_JSON)
            status = print_chosen(client, request.job_file, plan);
        if (status != NULL) code = output_error(status);
        protobuf_c_message_free_unpacked(response, NULL);
    }
    fsdpd__v1__job_file__free_unpacked(request.job_file, NULL);
    return code;
}
