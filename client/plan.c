/* plan: what a job would do, without queueing it. */
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static status_t set_dump(struct options *options, const char *value)
{
    (void)value;
    options->dump = true;
    return NULL;
}

const struct option_row plan_options[] = {
    {"set", 0, "KEY=VALUE", "override a key of the job file; may be repeated", option_set},
    {"dump", 0, NULL, "every instruction and buffer of the plan, too", set_dump},
    {0},
};

static void print_plan(const struct client *client, const Fsdpd__V1__Plan *plan)
{
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_message(&text, &plan->base, 0);
        buf_add_char(&text, '\n');
    } else {
        report_plan(plan, client->terminal.out ? client->terminal.width : 0, &text);
    }
    output_print(&text);
}

int verb_plan(struct client *client)
{
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    int code = EXIT_DONE;
    if (!client_read_spec(client, &request.spec, &code)) return code;
    request.dump = client->options.dump;
    if (client_call(client, &control_plan_job, &request.base, &response, &code)) {
        print_plan(client, (const Fsdpd__V1__Plan *)(const void *)response);
        protobuf_c_message_free_unpacked(response, NULL);
    }
    spec_free(request.spec);
    return code;
}
