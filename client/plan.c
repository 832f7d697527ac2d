/* plan: what a job would do, without queueing the job. */
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"

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

static status_t set_workers(struct verb_options *options, const char *value)
{
    return worlds_read(value, SPEC_WORKERS_MAX, &options->worlds);
}

const struct verb_option plan_options[] = {
    {"set", 0, "KEY=VALUE", "override a key of the job file; may be repeated", option_set},
    {"dump", 0, NULL, "every instruction and buffer of the plan, too", set_dump},
    {"auto", 0, NULL, "choose units, strategy, recomputation, offload and batches", set_choose},
    {"memory", 0, "BYTES", "as if a device had at most that, such as 24GB", set_memory},
    {"workers", 0, "N|A..B", "for N workers, or compare A, 2A, 4A, ..., B", set_workers},
    {0},
};

static void print_plan(const struct client *client, const Fsdpd__V1__Plan *plan)
{
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) json_add_document(&text, &plan->base);
    else report_plan(plan, client_view(client).width, &text);
    output_print(&text);
}

/* The job file with the best settings. */
static status_t print_chosen(const Fsdpd__V1__JobFile *file, const Fsdpd__V1__Plan *plan)
{
    Fsdpd__V1__JobSpec *spec = NULL;
    TRY(spec_read_sent(file, &spec));
    spec->workers = plan->world;
    struct spec_settings with;
    struct buf text = {0};
    buf_add_text(&text, "\nThe job file with these settings:\n\n");
    spec_to_yaml(spec_settings(spec, plan->choices[0], &with), &text);
    output_print(&text);
    spec_free(spec);
    return NULL;
}

struct plan_question {
    struct session *session;
    Fsdpd__V1__PlanJobRequest *request;
};

static status_t ask(struct plan_question *question, Fsdpd__V1__Plan **plan)
{
    ProtobufCMessage *response;
    TRY(session_call(question->session, &control_plan_job, &question->request->base, false,
                     &response));
    *plan = (Fsdpd__V1__Plan *)(void *)response;
    return NULL;
}

static status_t ask_for_world(void *user, uint32_t workers, Fsdpd__V1__Plan **plan)
{
    struct plan_question *question = user;
    Fsdpd__V1__JobFile *file = question->request->job_file;
    AUTO_FREE char *override = mem_printf("workers=%u", workers);
    file->overrides =
        mem_resize_array(file->overrides, file->n_overrides + 1, sizeof *file->overrides);
    file->overrides[file->n_overrides++] = override;
    status_t status = ask(question, plan);
    file->n_overrides--;
    return status;
}

/* Prints the answer; returns the exit code. */
static int plan_job(struct client *client, struct session *session,
                    Fsdpd__V1__PlanJobRequest *request)
{
    struct plan_question question = {session, request};
    const struct worlds *worlds = &client->options.worlds;
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = worlds->count > 0 ? worlds_plan(worlds, ask_for_world, &question, &plan)
                                        : ask(&question, &plan);
    if (status != NULL) return output_error(status);
    print_plan(client, plan);
    if (plan->n_choices > 0 && client->options.format != FORMAT_JSON)
        status = print_chosen(request->job_file, plan);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    return status != NULL ? output_error(status) : EXIT_DONE;
}

int verb_plan(struct client *client)
{
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    struct session *session = NULL;
    int code = EXIT_DONE;
    if (!client_read_spec(client, &request.job_file, &code)) return code;
    request.dump = client->options.dump;
    request.choose = client->options.choose;
    request.memory_bytes = client->options.memory_bytes;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status == NULL) code = plan_job(client, session, &request);
    else code = output_usage_error(status);
    session_free(session);
    fsdpd__v1__job_file__free_unpacked(request.job_file, NULL);
    return code;
}
