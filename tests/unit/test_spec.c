/* common/spec: valid and invalid job files with their exact messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "spec/internal.h"
#include "spec/queue.h"
#include "spec_fixture.h"
#include "tests/testing.h"

#define NAME_EXPECTED                                                                              \
    "expected 1 to 40 letters a-z, digits and dashes that start with a letter or digit, found "

TESTS_BELOW(.set_up = spec_set_up, .tear_down = spec_tear_down);

TEST(defaults)
{
    Fsdpd__V1__JobSpec *spec = must_read(MINIMAL, NULL);
    ck_assert_str_eq(spec->name, "mnist");
    ck_assert_str_eq(spec->model->file_name, "net.yaml");
    ck_assert_str_eq(spec->model->text, "modules: {}\n");
    ck_assert_int_eq(spec->data->format, FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IDX);
    ck_assert_str_eq(spec->data->dir, "d");
    ck_assert_double_eq(spec->data->normalize_mean, 0);
    ck_assert_double_eq(spec->data->normalize_std, 1);
    ck_assert_uint_eq(spec->train->epochs, 10);
    ck_assert_uint_eq(spec->train->batch_size, 64);
    ck_assert_uint_eq(spec->train->test_batch_size, 1000);
    ck_assert_uint_eq(spec->train->seed, 1);
    ck_assert_uint_eq(spec->train->log_interval, 10);
    ck_assert_uint_eq(spec->train->max_steps, 0);
    ck_assert(spec->train->dropout && spec->train->shuffle && spec->train->evaluate);
    ck_assert_int_eq(spec->optimizer->type, FSDPD__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_ADADELTA);
    ck_assert_double_eq(spec->optimizer->lr, 1.0);
    ck_assert_double_eq(spec->optimizer->rho, 0.9);
    ck_assert_double_eq(spec->optimizer->eps, 1e-6);
    ck_assert_int_eq(spec->schedule->type, FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_CONSTANT);
    ck_assert_uint_eq(spec->schedule->step_size, 0);
    ck_assert_int_eq(spec->fsdp->strategy, FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD);
    ck_assert_int_eq(spec->fsdp->wrap->policy, FSDPD__V1__WRAP_POLICY__WRAP_POLICY_AUTO);
    ck_assert_uint_eq(spec->fsdp->wrap->min_num_params, 0);
    ck_assert_int_eq(spec->fsdp->backward_prefetch, FSDPD__V1__PREFETCH__PREFETCH_PRE);
    ck_assert_uint_eq(spec->workers, 1);
    ck_assert_str_eq(spec->device, "");
    ck_assert(spec->save_model);
    spec_free(spec);
    spec_free(NULL);
}

/* Copies of adapters are made in f32 only; what is given stays. */
TEST(base_of_adapters_in_f32)
{
    static const char *const rest[] = {
        "rank: 4}}\ndata: {dir: d}\n", "rank: 4}, base_dtype: f32}\ndata: {dir: d}\n",
        "rank: 4}}\ndata: {format: dataset, path: p, windows: document, "
        "objective: dpo}\ntrain: {max_steps: 5}\ndpo: {reference: copy}\n"};
    for (int i = 0; i < 3; i++) {
        char *text = mem_printf("name: a\nmodel: {file: net.yaml, lora: {%s", rest[i]);
        Fsdpd__V1__JobSpec *spec = must_read(text, NULL);
        ck_assert_int_eq(spec->model->base_dtype, i == 0 ? FSDPD__V1__BASE_DTYPE__BASE_DTYPE_FILE
                                                         : FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32);
        spec_free(spec);
        free(text);
    }
}

/* The shipped example; its network is another directory's file, so the test reads a stand-in. */
TEST(example)
{
    struct buf text = {0};
    char *path = file_path_join(getenv("srcdir"), "examples/mnist/job.yaml");
    status_t status = file_read(path, SPEC_FILE_MAX, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    Fsdpd__V1__JobSpec *spec = must_read(buf_text(&text), NULL);
    ck_assert_double_eq(spec->data->normalize_mean, 0.1307);
    ck_assert_double_eq(spec->data->normalize_std, 0.3081);
    ck_assert_double_eq(spec->schedule->gamma, 0.7);
    ck_assert_uint_eq(spec->schedule->step_size, 1);
    ck_assert_uint_eq(spec->fsdp->wrap->min_num_params, 20000);
    ck_assert_uint_eq(spec->workers, 2);
    spec_free(spec);
    free(path);
    buf_deinit(&text);
}

/* Good values: an additional line of a job file, and the YAML printed for the spec. */
static const struct {
    const char *text, *set, *printed;
} good[] = {
    {"train: {epochs: 3}", NULL, "  epochs: 3\n"},
    {"train: {epochs: 3}", "train.epochs=4", "  epochs: 4\n"},
    {"", "train.seed=0", "  seed: 0\n"},
    {"", "train.seed=9007199254740991", "  seed: 9007199254740991\n"},
    {"train:\n", "train.dropout=false", "  dropout: false\n"},
    {"train: {epochs: 1e3}", NULL, "  epochs: 1000\n"},
    {"optimizer: {type: sgd}", NULL, "  lr: 0.01\n"},
    {"optimizer: {type: sgd, momentum: 0.9, nesterov: true}", NULL, "  nesterov: true\n"},
    {"optimizer: {lr: .5}", NULL, "  lr: 0.5\n"},
    {"priority: -7", NULL, "\npriority: -7\n"},
    {"priority: -7", "priority=1000", "\npriority: 1000\n"},
    {"after: prepare-1", NULL, "\nafter: [prepare-1]\n"},
    {"after: [a-1, b-2]", "after_any=[c]", "\nafter_any: [c]\n"},
    {"after: []", NULL, "\nafter: []\n"},
    {"deadline: {start: 2h30m}", NULL, "\ndeadline:\n  start: \"2h30m\"\n"},
    {"", "deadline.finish=2026-12-01T08:00:00Z", "  finish: \"2026-12-01T08:00:00Z\"\n"},
    {"", "model.args.width=256", "\n  args: {width: \"256\"}\n"},
    {"", "model.args={act: relu, b: null}", "\n  args: {act: relu, b: \"null\"}\n"},
    {"", "model.lora={rank: 4, targets: [q_proj, 'h.0.*']}",
     "\n  lora:\n    rank: 4\n    alpha: 8\n    dropout: 0\n    rslora: false\n"
     "    targets: [q_proj, \"h.0.*\"]\ndata:\n"},
    {"", "model.lora={rank: 4, rank_pattern: {h.0.fc: 9, fc: 2}, alpha_pattern: {fc: 1.5}}",
     "    rslora: false\n    rank_pattern: {h.0.fc: 9, fc: 2}\n    alpha_pattern: {fc: 1.5}\n"},
    {"", "model.lora={rank: 1e1, alpha: 2.5, layers: [0, 3], modules_to_save: [head]}",
     "    alpha: 2.5\n    dropout: 0\n    rslora: false\n    layers: [\"0\", \"3\"]\n"
     "    modules_to_save: [head]\n"},
    {"", NULL, "model:\n  file: net.yaml\n  base_dtype: f32\ndata:\n"},
    {"", "model.lora.rank=4", "\n  base_dtype: file\n"},
    {"", "model.adapter=/adapter", "\n  base_dtype: file\n"},
    {"", "model.adapter.job=tune-1", "\n  base_dtype: file\n"},
    {"labels: {team: vision, a: 3}", NULL, "\nlabels: {a: \"3\", team: vision}\n"},
    {"notify: {to: ops}", NULL, "\nnotify:\n  to: ops\n"},
    {"", "notify={to: ops, on: [stall, end]}", "\nnotify:\n  to: ops\n  on: [stall, end]\n"},
    {"labels: {team: vision}", "labels.team=nlp", "\nlabels: {team: nlp}\n"},
    {"", "labels.none=", "\nlabels: {none: \"\"}\n"},
    {"optimizer: {type: adam}", NULL, "  eps: 1e-08\n"},
    {"optimizer: {type: adamw}", NULL, "  weight_decay: 0.01\n"},
    {"optimizer: {type: adamw, groups: [{match: '*.bias', weight_decay: 0}, {match: fc1.*}]}", NULL,
     "  groups: [{match: \"*.bias\", weight_decay: 0, lr_scale: 1}, "
     "{match: \"fc1.*\", weight_decay: 0.01, lr_scale: 1}]\n"},
    {"optimizer: {weight_decay_exclude: auto, groups: [{match: a}, {match: b, weight_decay: 0.5}]}",
     NULL, "  groups: [{match: a, lr_scale: 1}, {match: b, weight_decay: 0.5, lr_scale: 1}]\n"},
    {"optimizer: {groups: []}", "optimizer.groups=[{match: a, lr_scale: 0.1}]",
     "  groups: [{match: a, weight_decay: 0, lr_scale: 0.1}]\n"},
    {"train: {max_steps: 5}", "data={format: dataset, path: /d, windows: document}",
     "  windows: document\n"},
    {"train: {max_steps: 5}",
     "data={format: dataset, sources: [{path: /a}, {weight: 0.125, path: b}]}",
     "  sources: [{path: /a, weight: 1}, {path: b, weight: 0.125}]\n"},
    {"train: {max_steps: 5, evaluate_interval: 7, early_stop: {patience: 2, metric: b-2/val_loss}}",
     "data={format: tokens, path: a, validation: [{name: b-2, path: b, batches: 3}]}",
     "  validation: [{name: b-2, path: b, every_steps: 7, batches: 3}]\n"},
    {"train: {max_steps: 5, early_stop: {patience: 2, metric: b/accuracy}}",
     "data={format: text, path: a, validation: [{name: b, path: b}]}", "    metric: b/accuracy\n"},
    {"train: {max_steps: 5, sample: {prompts: [\"5,17\", 3], every_steps: 2}}",
     "data={format: tokens, path: a}", "    prompts: [\"5,17\", \"3\"]\n    every_steps: 2\n"},
    {"train: {max_steps: 5, sample: {prompts: [To be]}}", "data={format: text, path: a}",
     "    max_tokens: 32\n"},
    {"train: {epochs: 2}", "model.weights={job: a-1, checkpoint: best}",
     "  weights:\n    job: a-1\n    checkpoint: best\n"},
    {"train: {epochs: 2}", "model.adapter.job=a-1", "  adapter:\n    job: a-1\n"},
    {"train: {epochs: 2}", "checkpoint.best.metric=accuracy", "    mode: auto\n"},
    {"train: {max_steps: 5}\ncheckpoint: {best: {metric: b/val_loss, mode: max}}",
     "data={format: text, path: a, validation: [{name: b, path: b}]}",
     "  best:\n    metric: b/val_loss\n    mode: max\n"},
    {"train: {only_evaluate: true}\nsave_model: false", "model.job=a-1", "  job: a-1\n"},
    {"train: {only_evaluate: true}\nsave_model: false", "data={format: text, path: a}",
     "  only_evaluate: true\n"}, /* no number of steps */
    {"optimizer: {type: adamw, beta2: 0.95}", NULL, "  lr: 0.001\n"},
    {"optimizer: {type: lion}", NULL, "  beta2: 0.99\n"},
    {"optimizer: {type: radam}", NULL,
     "  lr: 0.001\n  beta1: 0.9\n  beta2: 0.999\n  eps: 1e-08\n  weight_decay: 0\n"},
    {"optimizer: {type: adagrad, lr_decay: 0.01}", NULL,
     "  lr: 0.01\n  lr_decay: 0.01\n  eps: 1e-10\n"},
    {"optimizer: {type: adafactor, d: 2}", NULL,
     "  lr: 0.01\n  beta2_decay: -0.8\n  eps1: 1.1920928955078125e-07\n  eps2: 0.001\n  d: 2\n"},
    {"optimizer: {type: muon, others: {type: lion}, groups: [{match: a, ndim: 2, use: main}]}",
     NULL,
     "  weight_decay: 0.1\n  weight_decay_exclude: none\n  momentum: 0.95\n  nesterov: true\n"
     "  ns_steps: 5\n  adjust_lr_fn: original\n  others:\n    type: lion\n    lr: 0.0001\n"
     "    beta1: 0.9\n    beta2: 0.99\n    weight_decay: 0\n"
     "  groups: [{match: a, lr_scale: 1, use: main, ndim: 2}]\n"},
    {"schedule: {type: cosine, warmup_steps: 1e3}", NULL, "  warmup_steps: 1000\n"},
    {"optimizer: {lr: 2, rho: 0.8}", "optimizer.type=sgd", "  lr: 2\n"},
    {"schedule: {type: step}", NULL, "  step_size: 1\n  gamma: 0.1\n"},
    {"fsdp: {wrap: {policy: size, min_num_params: 1e8}}", NULL, "    min_num_params: 100000000\n"},
    {"fsdp: {wrap: {policy: size, min_num_params: 7}}", "fsdp.wrap.policy=none",
     "    policy: none\n  backward_prefetch: pre\n"},
    {"fsdp: {wrap: {policy: size, exclude: []}}", NULL, "    exclude: []\n"},
    {"fsdp: {wrap: {policy: size}}", NULL,
     "    force_leaf: [MultiheadAttention]\n    exclude: [ModuleList, ModuleDict]\n"},
    {"fsdp: {wrap: {policy: type, types: [Block, Linear]}}", NULL,
     "    policy: type\n    types: [Block, Linear]\n"},
    {"fsdp: {wrap: {policy: match, modules: ['layers.*']}}", NULL,
     "    policy: match\n    modules: [\"layers.*\"]\n"},
    {"fsdp: {wrap: {policy: units, units: [fc1, [conv1, conv2]]}}", NULL,
     "    units: [[fc1], [conv1, conv2]]\n"},
    {"fsdp: {wrap: {policy: units, units: [{modules: [a, b], strategy: hybrid_shard, shard_size: "
     "1, reshard_after_forward: false}, c, {modules: d, reshard_after_forward: true}]}}",
     NULL,
     "    units: [{modules: [a, b], strategy: hybrid_shard, shard_size: 1, "
     "reshard_after_forward: false}, [c], {modules: [d], reshard_after_forward: true}]\n"},
    {"workers: 4\nfsdp: {reshard_after_forward: 2}", NULL, "reshard_after_forward: \"2\"\n"},
    {"workers: 4\nfsdp: {wrap: {policy: units, units: [{modules: a, reshard_after_forward: 2, "
     "param_dtype: bf16, reduce_dtype: f32, cpu_offload: true}]}}",
     NULL,
     "    units: [{modules: [a], reshard_after_forward: 2, param_dtype: bf16, reduce_dtype: f32, "
     "cpu_offload: true}]\n"},
    {"", "fsdp={wrap: {policy: units, units: [a.b]}}", "    units: [[a.b]]\n"},
    {"", NULL, "  activation_checkpointing: []\n"},
    {"fsdp: {activation_checkpointing: ['layers.*', fc1]}", NULL,
     "  activation_checkpointing: [\"layers.*\", fc1]\n"},
    {"", NULL, "  recompute: all\n"},
    {"fsdp: {recompute: cheap, activation_checkpointing: [a]}", NULL, "  recompute: cheap\n"},
    {"fsdp: {recompute: cheap, auto: true}", NULL, "  recompute: cheap\n"},
    {"fsdp: {activation_checkpointing: [a]}", "fsdp.activation_checkpointing=[]",
     "  activation_checkpointing: []\n"},
    {"train: {max_steps: 9}", "data={format: tokens, path: a.bin}",
     "data:\n  format: tokens\n  path: a.bin\n  validation_fraction: 0.1\n  context: 0\n"
     "  encoding: auto\n  objective: causal\ntrain:\n  epochs: 0\n  batch_size: 64\n"
     "  global_batch: 0\n  batch_tokens: 0\n  seed: 1\n"},
    {"train: {max_steps: 9}", "data={format: tokens, path: a, validation_path: b, encoding: llm.c}",
     "  validation_path: b\n"},
    {"train: {epochs: 2, evaluate_interval: 7}", "data={format: text, path: a.txt, context: 64}",
     "  context: 64\n  tokenizer: bytes\n  objective: causal\n"},
    {"train: {epochs: 2, batch_tokens: 1e6}",
     "data={format: text, path: a, objective: masked, mask_token: 103}",
     "  objective: masked\n  mask_probability: 0.15\n  mask_token: 103\n"},
    {"device: cuda", NULL, "device: cuda\n"},
    {"device:", NULL, "workers: 1\nsave_model: true\n"},
    {"device: cuda", "device=", "workers: 1\nsave_model: true\n"},
    {"", "data.dir=a b: \"c\"", NULL},
    {"", "data.dir='a \"b'", "  dir: \"a \\\"b\"\n"},
    {"", "name=007", "name: \"007\"\n"},
};

LOOP_TEST(good_values, 0, COUNT_OF(good))
{
    char text[1024];
    snprintf(text, sizeof text, MINIMAL "%s\n", good[_i].text);
    Fsdpd__V1__JobSpec *spec = NULL;
    if (good[_i].printed == NULL) {
        status_t status = read_with(text, &good[_i].set, 1, &spec);
        ck_assert_ptr_nonnull(status);
        status_free(status);
        return;
    }
    spec = must_read(text, good[_i].set);
    struct buf yaml = {0};
    spec_to_yaml(spec, &yaml);
    ck_assert_msg(strstr(buf_text(&yaml), good[_i].printed) != NULL, "no \"%s\" in\n%s",
                  good[_i].printed, buf_text(&yaml));
    /* The printed text parses to the same message. */
    Fsdpd__V1__JobSpec *again = must_read(buf_text(&yaml), NULL);
    struct buf second = {0};
    spec_to_yaml(again, &second);
    ck_assert_str_eq(buf_text(&yaml), buf_text(&second));
    ck_assert_uint_eq(protobuf_c_message_get_packed_size(&spec->base),
                      protobuf_c_message_get_packed_size(&again->base));
    buf_deinit(&yaml);
    buf_deinit(&second);
    spec_free(spec);
    spec_free(again);
}

#define UNITS_EXPECTED                                                                             \
    "expected a list of modules or lists of modules, such as [fc1, [conv1, conv2]], found "

/* The text after the three lines of MINIMAL, a --set, and the whole message. */
static const struct {
    const char *text, *set, *message;
} bad[] = {
    /* unknown keys */
    {"train: {epoch: 1}", NULL, "job.yaml:4: train.epoch: unknown key; did you mean train.epochs?"},
    {"epochs: 1", NULL, "job.yaml:4: epochs: unknown key; did you mean train.epochs?"},
    {"optimiser: {type: sgd}", NULL, "job.yaml:4: optimiser: unknown key; did you mean optimizer?"},
    {"gpus: 4", NULL, "job.yaml:4: gpus: unknown key"},
    {"learning_rate: 1", NULL,
     "job.yaml:4: learning_rate: unknown key; did you mean optimizer.lr?"},
    {"optimizer: {learning_rate: 1}", NULL,
     "job.yaml:4: optimizer.learning_rate: unknown key; did you mean optimizer.lr?"},
    {"optimizer: {tpye: sgd}", NULL,
     "job.yaml:4: optimizer.tpye: unknown key; did you mean optimizer.type?"},
    {"dtype: bf16", NULL, "job.yaml:4: dtype: unknown key; did you mean precision.param_dtype?"},
    {"", "clip_grad_norm=1",
     "--set clip_grad_norm=1: clip_grad_norm: unknown key; did you mean "
     "train.clip_grad_norm.max_norm?"},
    /* a value for a section */
    {"", "precision=bf16",
     "--set precision=bf16: precision: expected a mapping of keys, found 'bf16'; did you mean "
     "precision.param_dtype?"},
    {"", "optimizer=adamw",
     "--set optimizer=adamw: optimizer: expected a mapping of keys, found 'adamw'; did you mean "
     "optimizer.type?"},
    {"train: {clip_grad_norm: 1}", NULL,
     "job.yaml:4: train.clip_grad_norm: expected a mapping of keys, found '1'; did you mean "
     "train.clip_grad_norm.max_norm?"},
    {"", "data=x", "--set data=x: data: expected a mapping of keys, found 'x'"},
    {"priority: 1001", NULL,
     "job.yaml:4: priority: expected an integer from -1000 to 1000, found 1001"},
    {"after: {a: b}", NULL,
     "job.yaml:4: after: expected a job's id or a list of them, found a mapping"},
    {"after: [a, B]", NULL,
     "job.yaml:4: after: expected a job's id, 1 to 64 of a-z, 0-9 and -, not "
     "beginning with -, found 'B'"},
    {"deadline: {start: 5 minutes}", NULL,
     "job.yaml:4: deadline.start: expected a duration of at most ten "
     "years, such as 90s, 2h30m or 7d, or a time such as 2026-12-01T08:00:00Z, found '5 minutes'"},
    {"deadline: {finish: 2026-13-01T00:00:00Z}", NULL,
     "job.yaml:4: deadline.finish: expected a duration of at most ten "
     "years, such as 90s, 2h30m or 7d, or a time such as 2026-12-01T08:00:00Z, found "
     "'2026-13-01T00:00:00Z'"},
    {"notify: {to: ops, on: [end, success]}", NULL,
     "job.yaml:4: notify.on: expected a list of end, failure, stall and preemption, found "
     "'success'"},
    {"notify: {to: Ops}", NULL,
     "job.yaml:4: notify.to: expected 1 to 40 letters a-z, digits and dashes that start with a "
     "letter or digit, found 'Ops'"},
    {"notify: {on: [end]}", NULL, "job.yaml:4: notify.on: belongs to notify.to, which is missing"},
    {"labels: [a]", NULL,
     "job.yaml:4: labels: expected a mapping of texts, such as {team: vision}, found a list"},
    {"labels: {Team: a}", NULL,
     "job.yaml:4: labels: expected a key of 1 to 40 letters a-z, digits, - and _ that starts "
     "with a letter, found 'Team'"},
    {"labels: {team: a b}", NULL,
     "job.yaml:4: labels: team: expected a value of at most 63 letters, digits and ._-+:/@, "
     "found 'a b'"},
    {"labels: {team: [a]}", NULL, "job.yaml:4: labels: team: expected a text, found a list"},
    {"", "model.args=[8]",
     "--set model.args=[8]: model.args: expected a mapping of values, such as {width: 256}, found "
     "a list"},
    {"", "model.args={kinds: [a]}",
     "--set model.args={kinds: [a]}: model.args: kinds: expected a single value, found a list"},
    {"", "model.args={2x: 3}",
     "--set model.args={2x: 3}: model.args: expected a name of 1 to 64 letters, digits and _, "
     "found '2x'"},
    {"", "model.lora.rank=0",
     "--set model.lora.rank=0: model.lora.rank: expected an integer from 1 to 65536, found 0"},
    {"", "model.lora.alpha=4",
     "--set model.lora.alpha=4: model.lora.alpha: belongs to model.lora.rank, which is missing"},
    {"", "model.lora={}", "--set model.lora={}: model.lora: is empty; expected model.lora.rank"},
    {"train: {ema: {}}", NULL, "job.yaml:4: train.ema: is empty; expected train.ema.decay"},
    {"", "model.lora={rank: 4, dropout: 1}",
     "--set model.lora={rank: 4, dropout: 1}: model.lora.dropout: expected a number from 0 to "
     "0.999999, found 1"},
    {"", "model.lora={rank: 4, use_dora: true}",
     "--set model.lora={rank: 4, use_dora: true}:1: model.lora.use_dora: unknown key; the keys of "
     "model.lora are rank, alpha, dropout, rslora, targets, exclude, layers, modules_to_save, "
     "rank_pattern, alpha_pattern"},
    {"", "model.lora={rank: 4, rank_pattern: {q_proj: 0}}",
     "--set model.lora={rank: 4, rank_pattern: {q_proj: 0}}: model.lora.rank_pattern: q_proj: "
     "expected a number from 1 to 65536, found 0"},
    {"", "model.lora={rank: 4, alpha_pattern: [q_proj]}",
     "--set model.lora={rank: 4, alpha_pattern: [q_proj]}: model.lora.alpha_pattern: expected "
     "numbers by module, such as {q_proj: 16}, found a list"},
    {"dropout: false", NULL, "job.yaml:4: dropout: unknown key; did you mean train.dropout?"},
    {"rank: 4", NULL, "job.yaml:4: rank: unknown key; did you mean model.lora.rank?"},
    {"fsdp:\n  wrap:\n    polcy: size", NULL,
     "job.yaml:6: fsdp.wrap.polcy: unknown key; did you mean fsdp.wrap.policy?"},
    {"", "train.epoch=1",
     "--set train.epoch=1: train.epoch: unknown key; did you mean train.epochs?"},
    {"", "lr=1", "--set lr=1: lr: unknown key; did you mean optimizer.lr?"},
    {"", "batchsize=1",
     "--set batchsize=1: batchsize: unknown key; did you mean train.batch_size?"},
    {"", "=1", "--set =1: expected KEY=VALUE"},
    {"", "epochs", "--set epochs: expected KEY=VALUE"},
    /* wrong types */
    {"train: {epochs: many}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found 'many'"},
    {"train: {epochs: \"3\"}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found the text '3'"},
    {"train: {epochs: [3]}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found a list"},
    {"train: {epochs: {a: 3}}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found a mapping"},
    {"train: {epochs: }", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found nothing"},
    {"train: {epochs: 2.5}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found 2.5"},
    {"train: {shuffle: yes}", NULL,
     "job.yaml:4: train.shuffle: expected true or false, found 'yes'"},
    {"train: 3", NULL, "job.yaml:4: train: expected a mapping of keys, found '3'"},
    {"train: [3]", NULL, "job.yaml:4: train: expected a mapping of keys, found a list"},
    {"device: [cpu]", NULL, "job.yaml:4: device: expected cpu or cuda, found a list"},
    /* out of range */
    {"train: {epochs: 0}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found 0"},
    {"train: {epochs: -1}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found -1"},
    {"train: {epochs: 99999999999999999999}", NULL,
     "job.yaml:4: train.epochs: expected an integer from 1 to 1000000, found "
     "99999999999999999999"},
    {"", "train.epochs=0",
     "--set train.epochs=0: train.epochs: expected an integer from 1 to 1000000, found 0"},
    {"optimizer: {lr: nan}", NULL,
     "job.yaml:4: optimizer.lr: expected a number from 0 to 1000000, found 'nan'"},
    {"optimizer: {lr: -0.1}", NULL,
     "job.yaml:4: optimizer.lr: expected a number from 0 to 1000000, found -0.1"},
    {"workers: 5000", NULL, "job.yaml:4: workers: expected an integer from 1 to 4096, found 5000"},
    {"", "data.normalize.std=0",
     "--set data.normalize.std=0: data.normalize.std: expected a number from 1e-06 to 1000000, "
     "found 0"},
    {"", "name=My Job", "--set name=My Job: name: " NAME_EXPECTED "'My Job'"},
    {"", "name=-a", "--set name=-a: name: " NAME_EXPECTED "'-a'"},
    /* words */
    {"fsdp: {strategy: zero}", NULL,
     "job.yaml:4: fsdp.strategy: expected full_shard, shard_grad_op, hybrid_shard or no_shard, "
     "found 'zero'"},
    {"fsdp: {strategy: hybrid_shard}", NULL,
     "job.yaml: fsdp.shard_size: is missing; expected an integer from 1 to 4096"},
    {"fsdp: {shard_size: 2}", NULL,
     "job.yaml:4: fsdp.shard_size: belongs to fsdp.strategy hybrid_shard, but here it is "
     "full_shard"},
    {"workers: 4\nfsdp: {strategy: hybrid_shard, shard_size: 3}", NULL,
     "job.yaml: fsdp.shard_size: expected a divisor of workers (4), found 3"},
    {"fsdp: {reshard_after_forward: maybe}", NULL,
     "job.yaml:4: fsdp.reshard_after_forward: expected true, false or a number of ranks from 1 to "
     "4096, found 'maybe'"},
    {"fsdp: {reshard_after_forward: 0}", NULL,
     "job.yaml:4: fsdp.reshard_after_forward: expected true, false or a number of ranks from 1 to "
     "4096, found '0'"},
    {"fsdp: {reshard_after_forward: 2.5}", NULL,
     "job.yaml:4: fsdp.reshard_after_forward: expected true, false or a number of ranks from 1 to "
     "4096, found '2.5'"},
    {"workers: 4\nfsdp: {reshard_after_forward: 3}", NULL,
     "job.yaml: fsdp.reshard_after_forward: expected a divisor of workers (4), found 3 ranks"},
    {"workers: 8\nfsdp: {strategy: hybrid_shard, shard_size: 2, reshard_after_forward: 4}", NULL,
     "job.yaml: fsdp.reshard_after_forward: expected a divisor of shard_size (2), found 4 ranks"},
    {"workers: 4\nfsdp: {strategy: no_shard, reshard_after_forward: 2}", NULL,
     "job.yaml: fsdp.reshard_after_forward: expected true or false, as no_shard gathers nothing "
     "that could be resharded; found 2 ranks"},
    {"fsdp: {recompute: cheap}", NULL,
     "job.yaml: fsdp.recompute: cheap: expected modules in fsdp.activation_checkpointing, such as "
     "[layers.*]: without them, nothing is computed again"},
    {"fsdp: {gathered_limit: -1}", NULL,
     "job.yaml:4: fsdp.gathered_limit: expected an integer from 0 to 1000000, found -1"},
    {"fsdp: {limit_all_gathers: true}", NULL,
     "job.yaml:4: fsdp.limit_all_gathers: unknown key; the keys of fsdp are auto, tune, strategy, "
     "shard_size, reshard_after_forward, bucket_bytes, backward_prefetch, forward_prefetch, "
     "gathered_limit, activation_checkpointing, recompute, cpu_offload, keep_frozen, "
     "register_buffers, "
     "transport"},
    {"deadline: {hours: 1}", NULL,
     "job.yaml:4: deadline.hours: unknown key; the keys of deadline are start, finish"},
    {"fsdp: {forward_prefetch: 2}", NULL,
     "job.yaml:4: fsdp.forward_prefetch: expected true or false, found '2'"},
    {"fsdp: {register_buffers: maybe}", NULL,
     "job.yaml:4: fsdp.register_buffers: expected true or false, found 'maybe'"},
    {"fsdp: {transport: carrier pigeon}", NULL,
     "job.yaml:4: fsdp.transport: expected gloo, found 'carrier pigeon'"},
    {"fsdp: {bucket_bytes: 25MB}", NULL,
     "job.yaml:4: fsdp.bucket_bytes: expected an integer from 0 to 1000000000000000, found "
     "'25MB'"},
    {"optimizer: {type: adma}", NULL,
     "job.yaml:4: optimizer.type: expected adadelta, sgd, adam, adamw, lion, adagrad, muon, "
     "adafactor or radam, found "
     "'adma'"},
    {"optimizer: {type: adam, beta1: 1}", NULL,
     "job.yaml:4: optimizer.beta1: expected a number from 0 to 0.999999, found 1"},
    {"optimizer: {beta2: 0.9}", NULL,
     "job.yaml:4: optimizer.beta2: belongs to optimizer.type adam, adamw, radam or lion, but here it is "
     "adadelta"},
    {"optimizer: {type: sgd, eps: 1e-8}", NULL,
     "job.yaml:4: optimizer.eps: belongs to optimizer.type adadelta, adam, adamw, radam or adagrad, "
     "but here it is sgd"},
    {"schedule: {type: linear, warmup_steps: 10, total_steps: 10}", NULL,
     "job.yaml: schedule.total_steps: expected more than schedule.warmup_steps, which are part of "
     "them: 10, found 10"},
    {"schedule: {type: step, end_factor: 0.1}", NULL,
     "job.yaml:4: schedule.end_factor: belongs to schedule.type linear, cosine, "
     "cosine_with_restarts, polynomial, wsd or inverse_sqrt, but here it is "
     "step"},
    {"optimizer: {groups: '*.bias'}", NULL,
     "job.yaml:4: optimizer.groups: expected a list of groups, such as [{match: '*.bias', "
     "weight_decay: 0}], found the text '*.bias'"},
    {"optimizer: {groups: [{match: a}, {match: b, decay: 0}]}", NULL,
     "job.yaml:4: optimizer.groups: group 2: decay: unknown key; expected match, weight_decay, "
     "lr_scale, use or ndim"},
    {"optimizer: {type: adafactor, d: 0.5}", NULL,
     "job.yaml:4: optimizer.d: expected a number from 1 to 1000000, found 0.5"},
    {"optimizer: {type: adafactor, beta2_decay: 0.8}", NULL,
     "job.yaml:4: optimizer.beta2_decay: expected a number from -100 to 0, found 0.8"},
    {"optimizer: {type: muon, groups: [{match: a, use: both}]}", NULL,
     "job.yaml:4: optimizer.groups: group 1: use: expected main or others, found both"},
    {"optimizer: {type: muon, groups: [{match: a, ndim: 9}]}", NULL,
     "job.yaml:4: optimizer.groups: group 1: ndim: expected 1 to 8, found 9"},
    {"optimizer: {groups: [{match: a, use: main}]}", NULL,
     "job.yaml: optimizer.groups: group 1: use: belongs to optimizer.type muon, which has others"},
    {"optimizer: {type: muon, others: {type: sgd}}", NULL,
     "job.yaml: optimizer.others.type: expected a type that optimizer.others.lr belongs to, adam, "
     "adamw or lion, found sgd"},
    {"optimizer: {groups: [{match: a, lr_scale: nan}]}", NULL,
     "job.yaml:4: optimizer.groups: group 1: lr_scale: expected a number, found nan"},
    {"optimizer: {groups: [{match: a, lr_scale: -1}]}", NULL,
     "job.yaml:4: optimizer.groups: group 1: lr_scale: expected a number from 0 to 1000000, found "
     "-1"},
    {"optimizer: {groups: [{lr_scale: 1}]}", NULL,
     "job.yaml:4: optimizer.groups: group 1: match: expected a pattern of 1 to 256 characters, "
     "found 0"},
    {"train: {max_steps: 5}", "data={format: dataset}", "job.yaml: data.path: is missing"},
    {"train: {max_steps: 5}", "data={format: dataset, path: a, sources: [{path: b}]}",
     "job.yaml: data.sources: expected no data.path beside it"},
    {"train: {max_steps: 5}", "data={format: dataset, sources: [{path: b, weight: 0.0001}]}",
     "--set data={format: dataset, sources: [{path: b, weight: 0.0001}]}: data.sources: source 1: "
     "weight: expected a number from 0.001 to 1000000 with at most three decimals, found 0.0001"},
    {"train: {max_steps: 5}", "data={format: dataset, sources: [{path: b, part: 3}]}",
     "--set data={format: dataset, sources: [{path: b, part: 3}]}: data.sources: source 1: part: "
     "unknown key; expected path or weight"},
    {"train: {max_steps: 5}", "data={format: dataset, sources: [b]}",
     "--set data={format: dataset, sources: [b]}: data.sources: expected a list of dataset "
     "directories, such as [{path: chat, weight: 2}], found a list"},
    {"train: {max_steps: 5}", "data={format: text, path: a, validation: [{name: B, path: b}]}",
     "--set data={format: text, path: a, validation: [{name: B, path: b}]}: data.validation: set "
     "1: "
     "name: expected 1 to 40 letters a-z, digits and dashes that start with a letter or digit, "
     "found 'B'"},
    {"train: {max_steps: 5}",
     "data={format: text, path: a, validation: [{name: b, path: b}, {name: b, path: c}]}",
     "--set data={format: text, path: a, validation: [{name: b, path: b}, {name: b, path: c}]}: "
     "data.validation: set 2: name: expected another than 'b', the name of set 1"},
    {"train: {max_steps: 5}", "data={format: text, path: a, validation: [{name: test, path: b}]}",
     "--set data={format: text, path: a, validation: [{name: test, path: b}]}: data.validation: "
     "set 1: name: expected another than 'test', which every job has"},
    {"train: {max_steps: 5}", "data={format: text, path: a, validation: [{name: b, batches: -1}]}",
     "--set data={format: text, path: a, validation: [{name: b, batches: -1}]}: data.validation: "
     "set 1: batches: expected an integer from 0 to 1000000000"},
    {"train: {max_steps: 5, evaluate: false}",
     "data={format: text, path: a, validation: [{name: b, path: b}]}",
     "job.yaml: data.validation: expected train.evaluate: true, as evaluations read it"},
    {"train: {only_evaluate: true}", NULL,
     "job.yaml: save_model: expected false, as train.only_evaluate changes no weights"},
    {"train: {only_evaluate: true, evaluate: false}\nsave_model: false", NULL,
     "job.yaml: train.evaluate: expected true, with train.only_evaluate"},
    {"train: {only_evaluate: true}\nsave_model: false\ncheckpoint: {every_steps: 5}", NULL,
     "job.yaml: checkpoint.directory: expected none, nor checkpoint.every_steps, every_epochs or "
     "best, with train.only_evaluate"},
    {"train: {epochs: 2}", "model.weights={job: a-1, checkpoint: 0}",
     "--set model.weights={job: a-1, checkpoint: 0}: model.weights.checkpoint: expected latest, "
     "best "
     "or a step from 1 to 4294967295, found '0'"},
    {"train: {epochs: 2}", "model.weights.checkpoint=4",
     "--set model.weights.checkpoint=4: model.weights.checkpoint: belongs to model.weights.job, "
     "which "
     "is missing"},
    {"train: {only_evaluate: true}\nsave_model: false", "model.weights.job=a-1",
     "job.yaml: model.weights.job: expected train.only_evaluate: false: model.job evaluates"},
    {"train: {max_steps: 5}\ncheckpoint: {best: {metric: c/val_loss}}",
     "data={format: text, path: a, validation: [{name: b, path: b}]}",
     "job.yaml: checkpoint.best.metric: data.validation has no set 'c'"},
    {"train: {max_steps: 5, evaluate_interval: 0}\ncheckpoint: {best: {metric: loss}}",
     "data={format: text, path: a}",
     "job.yaml: checkpoint.best: expected a train.evaluate_interval above 0, as it compares "
     "evaluations"},
    {"train: {epochs: 2}\ncheckpoint: {best: {mode: min}}", NULL,
     "job.yaml:5: checkpoint.best.mode: belongs to checkpoint.best.metric, which is missing"},
    {"train: {only_evaluate: true}\nsave_model: false\nfsdp: {tune: true}", NULL,
     "job.yaml: fsdp.tune: expected false with train.only_evaluate, as it measures steps"},
    {"train: {only_evaluate: true}\nsave_model: false\narray: {indices: 1-2}",
     "model.job=a-${index}", "job.yaml: array.indices: expected none beside model.job"},
    {"save_model: false", "model.job=a-1",
     "job.yaml: model.job: expected train.only_evaluate: true, as other jobs begin with files "
     "(model.weights)"},
    {"save_model: false", "model.checkpoint=4",
     "--set model.checkpoint=4: model.checkpoint: belongs to model.job, which is missing"},
    {"train: {max_steps: 5, sample: {prompts: [To be]}}", "data={format: tokens, path: a}",
     "job.yaml: train.sample.prompts: expected token ids as in 5,17,3, found 'To be'"},
    {"train: {max_steps: 5, sample: {prompts: [5], stop: ['31,']}}",
     "data={format: tokens, path: a}",
     "job.yaml: train.sample.stop: expected token ids as in 5,17,3, found '31,'"},
    {"train: {max_steps: 5, sample: {every_steps: 2}}", "data={format: tokens, path: a}",
     "job.yaml:4: train.sample.every_steps: belongs to train.sample.prompts, which is missing"},
    {"train: {max_steps: 5, sample: {prompts: [5]}}", NULL,
     "job.yaml: train.sample.prompts: expected none, as the data are no tokens"},
    {"train: {max_steps: 5, early_stop: {patience: 1, metric: c/val_loss}}",
     "data={format: text, path: a, validation: [{name: b, path: b}]}",
     "job.yaml: train.early_stop.metric: data.validation has no set 'c'"},
    {"schedule: {warmup_start_factor: 1.5}", NULL,
     "job.yaml:4: schedule.warmup_start_factor: expected a number from 0 to 1, found 1.5"},
    {"fsdp: {backward_prefetch: before}", NULL,
     "job.yaml:4: fsdp.backward_prefetch: expected pre, post or none, found 'before'"},
    /* of another type */
    {"optimizer: {type: sgd, rho: 0.9}", NULL,
     "job.yaml:4: optimizer.rho: belongs to optimizer.type adadelta, but here it is sgd"},
    {"schedule: {gamma: 0.7}", NULL,
     "job.yaml:4: schedule.gamma: belongs to schedule.type step, but here it is constant"},
    {"optimizer: {type: sgd}", "optimizer.rho=0.9",
     "--set optimizer.rho=0.9: optimizer.rho: belongs to optimizer.type adadelta, but here it is "
     "sgd"},
    {"optimizer: {type: sgd, nesterov: true}", NULL,
     "job.yaml: optimizer.nesterov: expected a momentum above 0 and no dampening with it, found "
     "momentum 0 and dampening 0"},
    {"precision: {master_dtype: bf16}", NULL,
     "job.yaml: precision.master_dtype: expected precision.param_dtype: bf16 beside bf16, found "
     "f32"},
    {"precision: {param_dtype: bf16, master_dtype: bf16}",
     "optimizer={type: adamw, state_dtype: int8}",
     "job.yaml: precision.master_dtype: expected optimizer.state_dtype: f32 or bf16 beside bf16, "
     "found int8"},
    {"precision: {param_dtype: bf16, master_dtype: bf16}", "train.ema.decay=0.9",
     "job.yaml: precision.master_dtype: expected f32 beside train.ema, found bf16"},
    {"optimizer: {type: adam}", "optimizer.state_dtype=bf16",
     "--set optimizer.state_dtype=bf16: optimizer.state_dtype: belongs to optimizer.type adamw, "
     "but "
     "here it is adam"},
    /* units */
    {"fsdp: {wrap: {policy: type}}", NULL,
     "job.yaml: fsdp.wrap.types: is missing; expected a list of module types, such as [Block, "
     "Linear]"},
    {"fsdp: {wrap: {policy: type, types: []}}", NULL,
     "job.yaml:4: fsdp.wrap.types: expected at least one type, found none"},
    {"fsdp: {wrap: {policy: type, types: Block}}", NULL,
     "job.yaml:4: fsdp.wrap.types: expected a list of module types, such as [Block, Linear], found "
     "'Block'"},
    {"fsdp: {wrap: {policy: match, types: [Block], modules: [a]}}", NULL,
     "job.yaml:4: fsdp.wrap.types: belongs to fsdp.wrap.policy type, but here it is match"},
    {"fsdp: {wrap: {policy: match, modules: []}}", NULL,
     "job.yaml:4: fsdp.wrap.modules: expected at least one pattern, found none"},
    {"fsdp: {wrap: {policy: typ}}", NULL,
     "job.yaml:4: fsdp.wrap.policy: expected auto, none, size, type, match or units, found 'typ'"},
    {"fsdp: {wrap: {policy: units}}", NULL,
     "job.yaml: fsdp.wrap.units: is missing; expected a list of modules or lists of modules, such "
     "as [fc1, [conv1, conv2]]"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, strategy: zero}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: strategy: expected full_shard, shard_grad_op, "
     "hybrid_shard or no_shard, found 'zero'"},
    {"fsdp: {wrap: {policy: units, units: [b, {modules: a, shard_size: 2}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 2: shard_size: belongs to the strategy hybrid_shard, but "
     "here it is the job's"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, strategy: hybrid_shard}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: shard_size: hybrid_shard needs an integer from 1 to "
     "4096, found 0"},
    {"workers: 4\nfsdp: {wrap: {policy: units, units: [{modules: a, strategy: hybrid_shard, "
     "shard_size: 3}]}}",
     NULL,
     "job.yaml: fsdp.wrap.units: unit 1: shard_size: expected a divisor of workers (4), found 3"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, strategy: }]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: strategy: expected a word, found nothing"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, shard_size: two}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: shard_size: expected an integer from 1 to 4096"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, reshard_after_forward: 2}]}}", NULL,
     "job.yaml: fsdp.wrap.units: unit 1: reshard_after_forward: expected a divisor of "
     "workers (1), found 2 ranks"},
    {"workers: 8\nfsdp: {wrap: {policy: units, units: [b, {modules: a, strategy: hybrid_shard, "
     "shard_size: 4, reshard_after_forward: 8}]}}",
     NULL,
     "job.yaml: fsdp.wrap.units: unit 2: reshard_after_forward: expected a divisor of shard_size "
     "(4), found 8 ranks"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, param_dtype: fp16}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: param_dtype: expected f32 or bf16, found 'fp16'"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, reduce_dtype: [bf16]}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: reduce_dtype: expected a word, found a list or mapping"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, cpu_offload: yes}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: cpu_offload: expected true or false, found 'yes'"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, mixed_precision: bf16}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: mixed_precision: unknown key; did you mean "
     "param_dtype?"},
    {"fsdp: {wrap: {policy: units, units: [{modules: a, stratgy: no_shard}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: stratgy: unknown key; did you mean strategy?"},
    {"fsdp: {wrap: {policy: units, units: [{strategy: no_shard}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: expected at least one module in unit 1, found none"},
    {"fsdp: {wrap: {policy: units, units: [{modules: {a: b}}]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: unit 1: modules: expected a module or a list of modules"},
    {"fsdp: {wrap: {policy: units, units: fc1}}", NULL,
     "job.yaml:4: fsdp.wrap.units: " UNITS_EXPECTED "'fc1'"},
    {"fsdp: {wrap: {policy: units, units: [[a, [b]]]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: " UNITS_EXPECTED "a list"},
    {"fsdp: {wrap: {policy: units, units: []}}", NULL,
     "job.yaml:4: fsdp.wrap.units: expected at least one unit, found none; use "
     "fsdp.wrap.policy: none for no units"},
    {"fsdp: {wrap: {policy: units, units: [a, []]}}", NULL,
     "job.yaml:4: fsdp.wrap.units: expected at least one module in unit 2, found none"},
    /* patterns */
    {"fsdp: {activation_checkpointing: fc1}", NULL,
     "job.yaml:4: fsdp.activation_checkpointing: expected a list of patterns of modules, such as "
     "[layers.*], found 'fc1'"},
    {"fsdp: {activation_checkpointing: [[fc1]]}", NULL,
     "job.yaml:4: fsdp.activation_checkpointing: expected a list of patterns of modules, such as "
     "[layers.*], found a list"},
    {"fsdp: {activation_checkpointing: [a, '']}", NULL,
     "job.yaml:4: fsdp.activation_checkpointing: expected 1 to 256 characters in pattern 2, found "
     "0"},
    {"fsdp: {activation_checkpointin: [a]}", NULL,
     "job.yaml:4: fsdp.activation_checkpointin: unknown key; did you mean "
     "fsdp.activation_checkpointing?"},
    /* tokens */
    {"", "data={format: token, path: a}",
     "--set data={format: token, path: a}: data.format: expected idx, images, tokens, text or "
     "dataset, "
     "found "
     "'token'"},
    {"", "data={format: tokens}", "job.yaml: data.path: is missing; expected a path"},
    {"", "data.path=a",
     "--set data.path=a: data.path: belongs to data.format tokens, text or dataset, but here "
     "it is idx"},
    {"", "data={format: tokens, path: a, tokenizer: bytes}",
     "--set data={format: tokens, path: a, tokenizer: bytes}: data.tokenizer: belongs to "
     "data.format text, but here it is tokens"},
    {"", "data={format: text, path: a, tokenizer: gpt2}",
     "--set data={format: text, path: a, tokenizer: gpt2}: data.tokenizer: expected bytes, found "
     "'gpt2'"},
    {"", "data={format: text, path: a}",
     "job.yaml: train.max_steps: is missing; it or train.epochs must limit "
     "training on tokens"},
    {"train: {epochs: 1, batch_tokens: 8, global_batch: 2}", "data={format: text, path: a}",
     "job.yaml: train.global_batch: expected no train.batch_tokens beside it, found 8"},
    {"train: {global_batch: 8, accumulation_steps: 2}", NULL,
     "job.yaml: train.global_batch: it (8) and train.batch_size say how many "
     "train.accumulation_steps there are; expected 1, found 2"},
    {"train: {global_batch: 8}\nelastic: {min_workers: 3, max_workers: 2}\nworkers: 2", NULL,
     "job.yaml: elastic: expected min_workers of at least 1 and at most 64 numbers of workers up "
     "to "
     "max_workers, found 3 to 2"},
    {"train: {global_batch: 80}\nelastic: {min_workers: 1, max_workers: 65}", NULL,
     "job.yaml: elastic: expected min_workers of at least 1 and at most 64 numbers of workers up "
     "to "
     "max_workers, found 1 to 65"},
    {"train: {global_batch: 8}\nelastic: {min_workers: 2, max_workers: 4}\nworkers: 5", NULL,
     "job.yaml: workers: expected elastic.min_workers (2) to elastic.max_workers (4), found 5"},
    {"elastic: {redundancy: mirror}", NULL,
     "job.yaml: elastic.redundancy: needs elastic.min_workers and elastic.max_workers"},
    {"train: {global_batch: 8}\nelastic: {min_workers: 1, max_workers: 2, redundancy: replica}",
     NULL,
     "job.yaml: elastic.redundancy: replica needs fsdp.strategy no_shard or hybrid_shard, as other "
     "strategies keep one copy; expected mirror or parity"},
    {"train: {global_batch: 8}\nworkers: 2\n"
     "elastic: {min_workers: 1, max_workers: 2, redundancy: replica}\n"
     "fsdp: {strategy: no_shard, wrap: {policy: units, units: [a, {modules: b, strategy: "
     "full_shard}]}}",
     NULL,
     "job.yaml: elastic.redundancy: replica needs no_shard or hybrid_shard, but unit 2 of "
     "fsdp.wrap.units has full_shard, which keeps one copy; expected mirror or parity"},
    {"elastic: {min_workers: 2, max_workers: 4}\nworkers: 2", NULL,
     "job.yaml: elastic: expected a train.global_batch of at least a sample for each of 4 workers, "
     "found 0"},
    {"train: {global_batch: 3}\nworkers: 4", NULL,
     "job.yaml: train.global_batch: expected at least a sample for each of 4 workers, found 3"},
    {"train: {epochs: 1, batch_tokens: 8, accumulation_steps: 2}", "data={format: text, path: a}",
     "job.yaml: train.accumulation_steps: train.batch_tokens (8) says how many there are; expected "
     "1, found 2"},
    {"train: {epochs: 1}", "data={format: text, path: a, objective: masked}",
     "job.yaml: data.mask_token: is missing; expected an integer from 0 to 2147483647"},
    {"train: {epochs: 1}", "data={format: text, path: a, mask_token: 3}",
     "--set data={format: text, path: a, mask_token: 3}: data.mask_token: belongs to "
     "data.objective masked, but here it is causal"},
    {"train: {evaluate_intervall: 1}", NULL,
     "job.yaml:4: train.evaluate_intervall: unknown key; did you mean train.evaluate_interval?"},
    /* files */
    {"", "model.file=missing.yaml",
     "--set model.file=missing.yaml: model.file: cannot open missing.yaml: No such file or "
     "directory"},
};

LOOP_TEST(bad_values, 0, COUNT_OF(bad))
{
    char text[1024];
    snprintf(text, sizeof text, MINIMAL "%s\n", bad[_i].text);
    Fsdpd__V1__JobSpec *spec = NULL;
    status_t status = read_with(text, &bad[_i].set, bad[_i].set != NULL, &spec);
    ck_assert_ptr_null(spec);
    ck_assert_str_eq(status_message(status), bad[_i].message);
    /* A missing file is not an error of the line that names it. */
    bool missing = strstr(bad[_i].message, "No such file") != NULL;
    ck_assert_int_eq(status_code(status), missing ? STATUS_NOT_FOUND : STATUS_INVALID_ARGUMENT);
    status_free(status);
}

TEST(bad_documents)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"model: {file: net.yaml}\ndata: {dir: d}\n",
         "job.yaml: name: is missing; expected 1 to 40 letters a-z, digits and dashes that start "
         "with a letter or digit"},
        {"name: a\ndata: {dir: d}\n",
         "job.yaml: model.file: is missing; expected the path of a model file, or model.hf"},
        {"name: a\nmodel: {file: net.yaml}\ndata: {format: text, path: a}\n"
         "train: {max_steps: 1, test_batch_size: 8}\n",
         "job.yaml:4: train.test_batch_size: belongs to data.format idx or images, but here it is "
         "text"},
        {"name: a\nmodel: {file: , hf: }\ndata: {dir: d}\n",
         "job.yaml: model.file: is missing; expected the path of a model file, or model.hf"},
        {"name: a\nmodel:\n  file: net.yaml\n  hf: b\ndata: {dir: d}\n",
         "job.yaml:4: model: expected exactly one of model.file and model.hf, found both"},
        {"name: a\nmodel: {file: net.yaml}\n", "job.yaml: data.dir: is missing; expected a path"},
        {"name: Net\nmodules:\n  a: Linear(1, 1)\nforward:\n  - output = a(x)\n",
         "job.yaml: this is a model file; submit a job file that names it: model: {file: "
         "job.yaml}"},
        {"just text\n", "job.yaml:1: expected a mapping of keys, as docs/job-file.md has it"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fsdpd__V1__JobSpec *spec = NULL;
        status_t status = read_with(cases[i].text, NULL, 0, &spec);
        ck_assert_str_eq(status_message(status), cases[i].message);
        status_free(status);
    }
    /* YAML's own errors name the line too. */
    static const char *const broken[] = {"", "name: [\n", "name: a\nname: b\n", "a: *b\n", "\xff"};
    for (size_t i = 0; i < COUNT_OF(broken); i++) {
        Fsdpd__V1__JobSpec *spec = NULL;
        status_t status = read_with(broken[i], NULL, 0, &spec);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_msg(strncmp(status_message(status), "job.yaml", 8) == 0, "%s",
                      status_message(status));
        status_free(status);
    }
}
