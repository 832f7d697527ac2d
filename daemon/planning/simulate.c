/* See cluster.h. No state; any thread. */
#include "planning/cluster.h"

#include "setup/session.h"

static status_t check(const struct cluster *cluster)
{
    int world = cluster->hosts * cluster->devices;
    for (int i = 0; i < cluster->rank_count; i++)
        if (cluster->ranks[i].index >= world)
            return status_new(STATUS_INVALID_ARGUMENT, "slow rank %d: the ranks are 0 to %d",
                              cluster->ranks[i].index, world - 1);
    for (int i = 0; i < cluster->link_count; i++)
        if (cluster->links[i].index >= cluster->hosts)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "slow link of host %d: the hosts are 0 to %d",
                              cluster->links[i].index, cluster->hosts - 1);
    return NULL;
}

static void add(const struct plan_estimate *program, double times, struct plan_estimate *sum)
{
    sum->step_seconds += times * program->step_seconds;
    sum->compute_seconds += times * program->compute_seconds;
    sum->communication_seconds += times * program->communication_seconds;
    sum->exposed_seconds += times * program->exposed_seconds;
    sum->flops += times * program->flops;
}

static void run(const struct cluster *cluster, const struct plan *plan,
                const struct plan_rates *rates, struct plan_estimate *sum, int *kinds)
{
    struct plan_estimate program;
    *sum = (struct plan_estimate){0};
    cluster_simulate(cluster, plan, &plan->train, rates, &program, kinds);
    add(&program, 1, sum);
    if (plan->options.accumulation == ACCUMULATION_NONE) return;
    cluster_simulate(cluster, plan, &plan->accumulate, rates, &program, kinds);
    add(&program, (double)plan->options.micro_steps - 1, sum);
}

static void describe(const struct train_session *session, const struct plan *plan,
                     const struct profile *profile, struct simulated *simulated)
{
    const struct graph *graph = plan->train.graph;
    const struct tensor_type *input = &graph->values[graph->input].type;
    bool half = plan->options.gathered_dtype == DTYPE_BF16;
    double peak = half ? profile->peak_flops_bf16 : profile->peak_flops_f32;
    double samples = (double)graph_samples(graph) * plan->options.world;
    simulated->micro_steps = train_session_micro_steps(session);
    simulated->has_tokens = plan->model->tokens;
    simulated->tokens =
        samples * simulated->micro_steps *
        (simulated->has_tokens ? (double)(input->dims[1] * graph->model->texts) : 1);
    simulated->model_flops = train_session_step_flops(session);
    simulated->mfu =
        simulated->model_flops / (peak * plan->options.world * simulated->step.step_seconds);
}

static status_t simulate(const struct train_job *job, struct device *device,
                         const struct profile *profile, const struct cluster *cluster,
                         struct simulated *simulated)
{
    struct train_session *session = NULL;
    struct unit_set *units = NULL;
    struct plan *plan = NULL;
    TRY(train_session_new_unplanned(job, device, &session));
    status_t status = train_session_sketch(session, job, &units, &plan);
    if (status == NULL) {
        const struct cluster healthy = {.hosts = cluster->hosts, .devices = cluster->devices};
        run(&healthy, plan, &profile->rates, &simulated->step, &simulated->kinds);
        simulated->undisturbed = simulated->step.step_seconds;
        if (cluster->rank_count + cluster->link_count > 0)
            run(cluster, plan, &profile->rates, &simulated->step, &simulated->kinds);
        describe(session, plan, profile, simulated);
        plan_free(plan);
        units_free(units);
    }
    train_session_free(session);
    return status;
}

status_t planning_simulate(const struct train_job *job, const struct profile *profile,
                           const struct cluster *cluster, struct simulated *simulated)
{
    struct train_job settings = *job;
    struct device *device = NULL;
    TRY(check(cluster));
    TRY(device_open("null", 1, &device));
    settings.world = cluster->hosts * cluster->devices;
    settings.weights = NULL;
    settings.evaluate = false;
    status_t status = simulate(&settings, device, profile, cluster, simulated);
    device_close(device);
    return status;
}
