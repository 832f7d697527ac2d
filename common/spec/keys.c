/* The table of keys; see spec.h. The order is that of the documentation. */
#include "base/array.h"
#include "ops/optimizers.h"
#include "spec/queue.h"
#include "spec/spec.h"

#define LARGEST_SEED 9007199254740991.0 /* 2^53 - 1: exact in every JSON reader */

#define REQUIRED .fallback = NULL
#define DEFAULT(text) .fallback = (text)
#define RANGE(low, high) .min = (low), .max = (high)
#define WORDS(...) .choices = {__VA_ARGS__}
/* In the order of the enum's values, from 1. */
#define CHOICES(name, ...) .values = &fsdpd__v1__##name##__descriptor, .choices = {__VA_ARGS__}
#define UNIT(name) .unit = (name)
#define FIELD(path) .field = (path)
#define WITH(key, ...) .with_key = (key), .with_values = {__VA_ARGS__}
#define ADADELTA WITH("optimizer.type", "adadelta")
#define SGD WITH("optimizer.type", "sgd")
#define ADAM WITH("optimizer.type", "adam")
#define ADAMW WITH("optimizer.type", "adamw")
#define ADAMS WITH("optimizer.type", "adam", "adamw", "radam")
#define LION WITH("optimizer.type", "lion")
#define ADAGRAD WITH("optimizer.type", "adagrad")
#define ENDS "linear", "cosine", "cosine_with_restarts", "polynomial", "wsd"
#define CYCLE WITH("schedule.type", "one_cycle")
#define WSD WITH("schedule.type", "wsd")
#define MUON WITH("optimizer.type", "muon")
#define ADAFACTOR WITH("optimizer.type", "adafactor")
#define OTHERS(...) WITH("optimizer.others.type", __VA_ARGS__)
#define OPTIMIZER_WORD(KIND, name, ...) #name,
#define OPTIMIZER_TYPES CHOICES(optimizer_type, OPTIMIZERS(OPTIMIZER_WORD))
#define STEP WITH("schedule.type", "step")
#define IMAGES WITH("data.format", "idx", "images")
#define FILES WITH("data.format", "tokens", "text")
#define DATASET WITH("data.format", "dataset")
#define TOKENS WITH("data.format", "tokens", "text", "dataset")
#define MASKED WITH("data.objective", "masked")
#define DPO WITH("data.objective", "dpo")
#define HYBRID WITH("fsdp.strategy", "hybrid_shard")
#define SIZE WITH("fsdp.wrap.policy", "size")
#define TYPE WITH("fsdp.wrap.policy", "type")
#define MATCH WITH("fsdp.wrap.policy", "match")
#define UNITS WITH("fsdp.wrap.policy", "units")
#define EARLY WITH("train.early_stop.patience", NULL)
#define BEST WITH("checkpoint.best.metric", NULL)
#define EMA WITH("train.ema.decay", NULL)
#define PROMPTS WITH("train.sample.prompts", NULL)
#define ARRAY WITH("array.indices", NULL)
#define LORA WITH("model.lora.rank", NULL)
#define TEACHER WITH("model.teacher.hf", NULL)

#define OPTIMIZER_VALUE(KIND, ...)                                                                 \
    _Static_assert(FSDPD__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_##KIND == OPTIMIZER_##KIND + 1,       \
                   "OptimizerType has the rows of ops/optimizers.h, in their order");
OPTIMIZERS(OPTIMIZER_VALUE)

/* clang-format off */
const struct spec_key spec_keys[] = {
    {"name", SPEC_NAME, REQUIRED},
    {"model.file", SPEC_MODEL, DEFAULT(""), FIELD("model.file_name")},
    {"model.args", SPEC_ARGUMENTS, DEFAULT("")},
    {"model.hf", SPEC_TEXT, DEFAULT("")},
    {"model.head", SPEC_TEXT, DEFAULT("")},
    {"model.weights", SPEC_TEXT, DEFAULT("")},
    {"model.weights.job", SPEC_TEXT, DEFAULT(""), FIELD("model.weights_from.job"), .absent = true},
    {"model.weights.checkpoint", SPEC_CHOICE, DEFAULT(""), WORDS("latest", "best"),
     RANGE(1, 4294967295.0), UNIT("steps"), FIELD("model.weights_from.checkpoint"),
     WITH("model.weights.job", NULL), .or_ranks = true, .absent = true},
    {"model.ignore", SPEC_GLOBS, DEFAULT("")},
    {"model.freeze", SPEC_GLOBS, DEFAULT("")},
    {"model.adapter", SPEC_TEXT, DEFAULT("")},
    {"model.adapter.job", SPEC_TEXT, DEFAULT(""), FIELD("model.adapter_from.job"), .absent = true},
    {"model.adapter.checkpoint", SPEC_CHOICE, DEFAULT(""), WORDS("latest", "best"),
     RANGE(1, 4294967295.0), UNIT("steps"), FIELD("model.adapter_from.checkpoint"),
     WITH("model.adapter.job", NULL), .or_ranks = true, .absent = true},
    {"model.teacher.hf", SPEC_TEXT, DEFAULT(""), .absent = true},
    {"model.teacher.temperature", SPEC_NUMBER, DEFAULT("2"), RANGE(0.001, 1000), FIELD("distill.temperature"), TEACHER},
    {"model.teacher.weight", SPEC_NUMBER, DEFAULT("0.5"), RANGE(1e-6, 0.999999), FIELD("distill.weight"), TEACHER},
    {"model.base_dtype", SPEC_CHOICE, DEFAULT(""), /* see spec_complete_base */
     CHOICES(base_dtype, "f32", "bf16", "int8", "nf4", "file")},
    {"model.job", SPEC_TEXT, DEFAULT("")},
    {"model.checkpoint", SPEC_INTEGER, DEFAULT(""), RANGE(0, 1e12), UNIT("steps"),
     WITH("model.job", NULL)},
    {"model.lora.rank", SPEC_INTEGER, DEFAULT(""), RANGE(1, 65536)},
    {"model.lora.alpha", SPEC_NUMBER, DEFAULT("8"), RANGE(1e-6, 1e6), LORA},
    {"model.lora.dropout", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 0.999999), LORA},
    {"model.lora.rslora", SPEC_BOOLEAN, DEFAULT("false"), LORA},
    {"model.lora.targets", SPEC_GLOBS, DEFAULT(""), LORA},
    {"model.lora.exclude", SPEC_GLOBS, DEFAULT(""), LORA},
    {"model.lora.layers", SPEC_GLOBS, DEFAULT(""), LORA},
    {"model.lora.modules_to_save", SPEC_GLOBS, DEFAULT(""), LORA},
    {"model.lora.rank_pattern", SPEC_RULES, DEFAULT(""), RANGE(1, 65536), LORA},
    {"model.lora.alpha_pattern", SPEC_RULES, DEFAULT(""), RANGE(1e-6, 1e6), LORA},

    {"data.format", SPEC_CHOICE, DEFAULT("idx"),
     CHOICES(data_format, "idx", "images", "tokens", "text", "dataset")},
    {"data.dir", SPEC_TEXT, REQUIRED, IMAGES},
    {"data.normalize.mean", SPEC_NUMBER, DEFAULT("0"), RANGE(-1e6, 1e6),
     FIELD("data.normalize_mean"), IMAGES},
    {"data.normalize.std", SPEC_NUMBER, DEFAULT("1"), RANGE(1e-6, 1e6),
     FIELD("data.normalize_std"), IMAGES},
    {"data.resize.height", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1 << 14), UNIT("pixels"),
     FIELD("data.resize_height"), IMAGES},
    {"data.resize.width", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1 << 14), UNIT("pixels"),
     FIELD("data.resize_width"), IMAGES},
    {"data.augment.crop_padding", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1 << 14), UNIT("pixels"),
     FIELD("data.crop_padding"), IMAGES},
    {"data.augment.flip", SPEC_BOOLEAN, DEFAULT("false"), FIELD("data.flip"), IMAGES},
    {"data.path", SPEC_TEXT, REQUIRED, FILES},
    {"data.path", SPEC_TEXT, DEFAULT(""), DATASET},
    {"data.sources", SPEC_SOURCES, DEFAULT(""), DATASET},
    {"data.windows", SPEC_CHOICE, DEFAULT("continuous"),
     CHOICES(window_kind, "continuous", "document", "packed"), DATASET},
    {"data.validation_path", SPEC_TEXT, DEFAULT(""), FILES},
    {"data.validation_fraction", SPEC_NUMBER, DEFAULT("0.1"), RANGE(0, 0.99), FILES},
    {"data.validation", SPEC_HELD_OUT, DEFAULT(""), TOKENS},
    {"data.context", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1 << 24), UNIT("tokens"), TOKENS},
    {"data.encoding", SPEC_CHOICE, DEFAULT("auto"), CHOICES(token_encoding, "auto", "llm.c", "uint16", "uint32"),
     WITH("data.format", "tokens")},
    {"data.tokenizer", SPEC_CHOICE, DEFAULT("bytes"), CHOICES(tokenizer, "bytes"),
     WITH("data.format", "text")},
    {"data.objective", SPEC_CHOICE, DEFAULT("causal"), CHOICES(objective, "causal", "masked", "dpo", "reward"), TOKENS},
    {"data.mask_probability", SPEC_NUMBER, DEFAULT("0.15"), RANGE(0.001, 1), MASKED},
    {"data.mask_token", SPEC_INTEGER, REQUIRED, RANGE(0, 2147483647.0), MASKED},

    {"dpo.loss", SPEC_CHOICE, DEFAULT("sigmoid"), CHOICES(dpo_loss, "sigmoid", "ipo", "hinge"), DPO},
    {"dpo.beta", SPEC_NUMBER, DEFAULT("0.1"), RANGE(1e-6, 1e6), DPO},
    {"dpo.label_smoothing", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 0.499999), DPO},
    {"dpo.reference", SPEC_CHOICE, DEFAULT("adapter"), CHOICES(dpo_reference, "adapter", "copy", "precomputed"), DPO},

    {"train.epochs", SPEC_INTEGER, DEFAULT("10"), RANGE(1, 1e6), UNIT("epochs"), IMAGES},
    {"train.epochs", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e6), UNIT("epochs"), TOKENS},
    {"train.batch_size", SPEC_INTEGER, DEFAULT("64"), RANGE(1, 1 << 20), UNIT("samples per rank")},
    {"train.global_batch", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e12), UNIT("samples")},
    {"train.batch_tokens", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e15), UNIT("tokens"), TOKENS},
    {"train.test_batch_size", SPEC_INTEGER, DEFAULT("1000"), RANGE(1, 1 << 20),
     UNIT("samples per rank"), IMAGES},
    {"train.seed", SPEC_INTEGER, DEFAULT("1"), RANGE(0, LARGEST_SEED)},
    {"train.log_interval", SPEC_INTEGER, DEFAULT("10"), RANGE(1, 1e6), UNIT("steps")},
    {"train.trace_interval", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e6), UNIT("steps")},
    {"train.max_steps", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e12), UNIT("steps")},
    {"train.accumulation_steps", SPEC_INTEGER, DEFAULT("1"), RANGE(1, 1e6), UNIT("batches")},
    {"train.no_sync", SPEC_BOOLEAN, DEFAULT("false")},
    {"train.clip_grad_norm.max_norm", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e30),
     FIELD("train.clip_grad_max_norm")},
    {"train.clip_grad_norm.norm_type", SPEC_CHOICE, DEFAULT("2"), CHOICES(norm_type, "2", "inf"),
     FIELD("train.clip_grad_norm_type")},
    {"train.non_finite", SPEC_CHOICE, DEFAULT("fail"), CHOICES(non_finite, "fail", "skip")},
    {"train.dropout", SPEC_BOOLEAN, DEFAULT("true")},
    {"train.shuffle", SPEC_BOOLEAN, DEFAULT("true")},
    {"train.evaluate", SPEC_BOOLEAN, DEFAULT("true")},
    {"train.only_evaluate", SPEC_BOOLEAN, DEFAULT("false")},
    {"train.evaluate_interval", SPEC_INTEGER, DEFAULT("500"), RANGE(0, 1e12), UNIT("steps"),
     TOKENS},
    {"train.evaluate_batches", SPEC_INTEGER, DEFAULT("100"), RANGE(0, 1e9), UNIT("batches"),
     TOKENS},

    {"train.early_stop.patience", SPEC_INTEGER, DEFAULT(""), RANGE(1, 1e6), UNIT("evaluations")},
    {"train.early_stop.metric", SPEC_CHOICE, DEFAULT("loss"),
     CHOICES(early_stop_metric, "loss", "accuracy"), EARLY, .set = "train.early_stop.set"},
    {"train.early_stop.min_delta", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6), EARLY},
    {"train.ema.decay", SPEC_NUMBER, DEFAULT(""), RANGE(0, 0.9999999)},
    {"train.ema.evaluate", SPEC_BOOLEAN, DEFAULT("false"), EMA},
    {"train.sample.prompts", SPEC_GLOBS, DEFAULT(""), UNIT("prompt")},
    {"train.sample.every_steps", SPEC_INTEGER, DEFAULT("500"), RANGE(0, 1e12), UNIT("steps"), PROMPTS},
    {"train.sample.max_tokens", SPEC_INTEGER, DEFAULT("32"), RANGE(1, 65536), UNIT("tokens"), PROMPTS},
    {"train.sample.temperature", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6), PROMPTS},
    {"train.sample.top_k", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e9), UNIT("tokens"), PROMPTS},
    {"train.sample.top_p", SPEC_NUMBER, DEFAULT("1"), RANGE(1e-6, 1), PROMPTS},
    {"train.sample.min_p", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1), PROMPTS},
    {"train.sample.repetition_penalty", SPEC_NUMBER, DEFAULT("1"), RANGE(1e-6, 1e6), PROMPTS},
    {"train.sample.stop", SPEC_GLOBS, DEFAULT(""), UNIT("token"), PROMPTS},
    {"train.sample.seed", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 4294967295.0), PROMPTS},

    {"optimizer.type", SPEC_CHOICE, DEFAULT("adadelta"),
     OPTIMIZER_TYPES},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("1"), RANGE(0, 1e6), ADADELTA},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("0.01"), RANGE(0, 1e6), SGD},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("0.001"), RANGE(0, 1e6), ADAMS},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("0.0001"), RANGE(0, 1e6), LION},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("0.01"), RANGE(0, 1e6), ADAGRAD},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("0.001"), RANGE(0, 1e6), MUON},
    {"optimizer.lr", SPEC_NUMBER, DEFAULT("0.01"), RANGE(0, 1e6), ADAFACTOR},
    {"optimizer.beta2_decay", SPEC_NUMBER, DEFAULT("-0.8"), RANGE(-100, 0), ADAFACTOR},
    {"optimizer.eps1", SPEC_NUMBER, DEFAULT("1.1920928955078125e-07"), RANGE(0, 1), ADAFACTOR},
    {"optimizer.eps2", SPEC_NUMBER, DEFAULT("0.001"), RANGE(0, 1e6), ADAFACTOR},
    {"optimizer.d", SPEC_NUMBER, DEFAULT("1"), RANGE(1, 1e6), ADAFACTOR},
    {"optimizer.lr_decay", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6), ADAGRAD},
    {"optimizer.rho", SPEC_NUMBER, DEFAULT("0.9"), RANGE(0, 1), ADADELTA},
    {"optimizer.eps", SPEC_NUMBER, DEFAULT("1e-06"), RANGE(1e-30, 1), ADADELTA},
    {"optimizer.beta1", SPEC_NUMBER, DEFAULT("0.9"), RANGE(0, 0.999999), ADAMS},
    {"optimizer.beta1", SPEC_NUMBER, DEFAULT("0.9"), RANGE(0, 0.999999), LION},
    {"optimizer.beta2", SPEC_NUMBER, DEFAULT("0.999"), RANGE(0, 0.999999), ADAMS},
    {"optimizer.beta2", SPEC_NUMBER, DEFAULT("0.99"), RANGE(0, 0.999999), LION},
    {"optimizer.eps", SPEC_NUMBER, DEFAULT("1e-08"), RANGE(1e-30, 1), ADAMS},
    {"optimizer.eps", SPEC_NUMBER, DEFAULT("1e-10"), RANGE(1e-30, 1), ADAGRAD},
    {"optimizer.weight_decay", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6),
     WITH("optimizer.type", "adadelta", "sgd", "adagrad", "radam")},
    {"optimizer.weight_decay", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6), ADAM},
    {"optimizer.weight_decay", SPEC_NUMBER, DEFAULT("0.01"), RANGE(0, 1e6), ADAMW},
    {"optimizer.weight_decay", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6), LION},
    {"optimizer.weight_decay", SPEC_NUMBER, DEFAULT("0.1"), RANGE(0, 1e6), MUON},
    {"optimizer.weight_decay", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6), ADAFACTOR},
    {"optimizer.state_dtype", SPEC_CHOICE, DEFAULT("f32"), CHOICES(state_dtype, "f32", "int8", "bf16"), ADAMW},
    {"optimizer.weight_decay_exclude", SPEC_CHOICE, DEFAULT("none"),
     CHOICES(decay_exclusion, "none", "auto")},
    {"optimizer.momentum", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1), SGD},
    {"optimizer.momentum", SPEC_NUMBER, DEFAULT("0.95"), RANGE(0, 1), MUON},
    {"optimizer.dampening", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1), SGD},
    {"optimizer.nesterov", SPEC_BOOLEAN, DEFAULT("false"), SGD},
    {"optimizer.nesterov", SPEC_BOOLEAN, DEFAULT("true"), MUON},
    {"optimizer.ns_steps", SPEC_INTEGER, DEFAULT("5"), RANGE(1, 99), UNIT("iterations"), MUON},
    {"optimizer.adjust_lr_fn", SPEC_CHOICE, DEFAULT("original"),
     CHOICES(adjust_lr_fn, "original", "match_rms_adamw"), MUON},
    {"optimizer.others.type", SPEC_CHOICE, DEFAULT("adamw"), OPTIMIZER_TYPES, MUON},
    {"optimizer.others.lr", SPEC_NUMBER, DEFAULT("0.001"), RANGE(0, 1e6), OTHERS("adam", "adamw")},
    {"optimizer.others.lr", SPEC_NUMBER, DEFAULT("0.0001"), RANGE(0, 1e6), OTHERS("lion")},
    {"optimizer.others.beta1", SPEC_NUMBER, DEFAULT("0.9"), RANGE(0, 0.999999),
     OTHERS("adam", "adamw", "lion")},
    {"optimizer.others.beta2", SPEC_NUMBER, DEFAULT("0.999"), RANGE(0, 0.999999),
     OTHERS("adam", "adamw")},
    {"optimizer.others.beta2", SPEC_NUMBER, DEFAULT("0.99"), RANGE(0, 0.999999), OTHERS("lion")},
    {"optimizer.others.eps", SPEC_NUMBER, DEFAULT("1e-08"), RANGE(1e-30, 1),
     OTHERS("adam", "adamw")},
    {"optimizer.others.weight_decay", SPEC_NUMBER, DEFAULT("0.01"), RANGE(0, 1e6), OTHERS("adamw")},
    {"optimizer.others.weight_decay", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1e6),
     OTHERS("adam", "lion")},
    {"optimizer.groups", SPEC_GROUPS, DEFAULT("")},

    {"schedule.type", SPEC_CHOICE, DEFAULT("constant"),
     CHOICES(schedule_type, "constant", "step", "linear", "cosine", "cosine_with_restarts",
             "polynomial", "inverse_sqrt", "wsd", "one_cycle", "phases")},
    {"schedule.step_size", SPEC_INTEGER, DEFAULT("1"), RANGE(1, 1e6), UNIT("epochs"), STEP},
    {"schedule.gamma", SPEC_NUMBER, DEFAULT("0.1"), RANGE(0, 10), STEP},
    {"schedule.end_factor", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1),
     WITH("schedule.type", ENDS, "inverse_sqrt")},
    {"schedule.total_steps", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e12), UNIT("steps"),
     WITH("schedule.type", ENDS, "one_cycle")},
    {"schedule.num_cycles", SPEC_INTEGER, DEFAULT("1"), RANGE(1, 1e6),
     WITH("schedule.type", "cosine_with_restarts")},
    {"schedule.power", SPEC_NUMBER, DEFAULT("1"), RANGE(0.001, 1000),
     WITH("schedule.type", "polynomial")},
    {"schedule.timescale", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e12), UNIT("steps"),
     WITH("schedule.type", "inverse_sqrt")},
    {"schedule.decay_steps", SPEC_INTEGER, REQUIRED, RANGE(1, 1e12), UNIT("steps"), WSD},
    {"schedule.decay_type", SPEC_CHOICE, DEFAULT("cosine"),
     CHOICES(decay_type, "linear", "cosine", "1-sqrt"), WSD},
    {"schedule.pct_start", SPEC_NUMBER, DEFAULT("0.3"), RANGE(0, 1), CYCLE},
    {"schedule.div_factor", SPEC_NUMBER, DEFAULT("25"), RANGE(1, 1e12), CYCLE},
    {"schedule.final_div_factor", SPEC_NUMBER, DEFAULT("10000"), RANGE(1e-12, 1e12), CYCLE},
    {"schedule.anneal_strategy", SPEC_CHOICE, DEFAULT("cos"),
     CHOICES(anneal_strategy, "cos", "linear"), CYCLE},
    {"schedule.three_phase", SPEC_BOOLEAN, DEFAULT("false"), CYCLE},
    {"schedule.phases", SPEC_PHASES, REQUIRED, FIELD("schedule_phases"),
     WITH("schedule.type", "phases")},
    {"schedule.warmup_steps", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e12), UNIT("steps")},
    {"schedule.warmup_start_factor", SPEC_NUMBER, DEFAULT("0"), RANGE(0, 1)},

    {"fsdp.auto", SPEC_BOOLEAN, DEFAULT("false"), FIELD("fsdp.choose")},
    {"fsdp.tune", SPEC_BOOLEAN, DEFAULT("false")},
    {"fsdp.strategy", SPEC_CHOICE, DEFAULT("full_shard"),
     CHOICES(strategy, "full_shard", "shard_grad_op", "hybrid_shard", "no_shard")},
    {"fsdp.shard_size", SPEC_INTEGER, REQUIRED, RANGE(1, SPEC_WORKERS_MAX), UNIT("ranks"), HYBRID},
    {"fsdp.reshard_after_forward", SPEC_CHOICE, DEFAULT(""), WORDS("true", "false"),
     RANGE(1, SPEC_WORKERS_MAX), .or_ranks = true},
    {"fsdp.bucket_bytes", SPEC_INTEGER, DEFAULT("26214400"), RANGE(0, 1e15), UNIT("bytes")},
    {"fsdp.wrap.policy", SPEC_CHOICE, DEFAULT("auto"),
     CHOICES(wrap_policy, "auto", "none", "size", "type", "match", "units")},
    {"fsdp.wrap.min_num_params", SPEC_INTEGER, DEFAULT("100000000"), RANGE(1, 1e15),
     UNIT("elements"), SIZE},
    {"fsdp.wrap.force_leaf", SPEC_TYPES, DEFAULT("MultiheadAttention"),
     FIELD("fsdp.wrap.force_leaf.types"), SIZE},
    {"fsdp.wrap.exclude", SPEC_TYPES, DEFAULT("ModuleList, ModuleDict"),
     FIELD("fsdp.wrap.exclude.types"), SIZE},
    {"fsdp.wrap.types", SPEC_TYPES, REQUIRED, TYPE},
    {"fsdp.wrap.modules", SPEC_GLOBS, REQUIRED, MATCH},
    {"fsdp.wrap.units", SPEC_UNITS, REQUIRED, UNITS},
    {"fsdp.backward_prefetch", SPEC_CHOICE, DEFAULT("pre"), CHOICES(prefetch, "pre", "post", "none")},
    {"fsdp.forward_prefetch", SPEC_BOOLEAN, DEFAULT("false")},
    {"fsdp.gathered_limit", SPEC_INTEGER, DEFAULT("2"), RANGE(0, 1e6), UNIT("units")},
    {"fsdp.activation_checkpointing", SPEC_GLOBS, DEFAULT("")},
    {"fsdp.recompute", SPEC_CHOICE, DEFAULT("all"), CHOICES(recompute, "all", "cheap")},

    {"fsdp.cpu_offload", SPEC_BOOLEAN, DEFAULT("false")},
    {"fsdp.keep_frozen", SPEC_BOOLEAN, DEFAULT("false")},
    {"fsdp.register_buffers", SPEC_BOOLEAN, DEFAULT("false")},
    {"fsdp.transport", SPEC_CHOICE, DEFAULT(""), CHOICES(transport, "gloo")},

    {"precision.param_dtype", SPEC_CHOICE, DEFAULT("f32"), CHOICES(dtype, "f32", "bf16")},
    {"precision.master_dtype", SPEC_CHOICE, DEFAULT("f32"), CHOICES(dtype, "f32", "bf16")},
    {"precision.reduce_dtype", SPEC_CHOICE, DEFAULT("f32"), CHOICES(dtype, "f32", "bf16")},

    {"checkpoint.directory", SPEC_TEXT, DEFAULT("")},
    {"checkpoint.every_steps", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e12), UNIT("steps")},
    {"checkpoint.every_epochs", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e6), UNIT("epochs")},
    {"checkpoint.keep", SPEC_INTEGER, DEFAULT("3"), RANGE(0, 1e6), UNIT("checkpoints")},
    {"checkpoint.best.metric", SPEC_CHOICE, DEFAULT(""),
     CHOICES(early_stop_metric, "loss", "accuracy"), .set = "checkpoint.best.set", .absent = true},
    {"checkpoint.best.mode", SPEC_CHOICE, DEFAULT("auto"),
     CHOICES(best_mode, "auto", "min", "max"), BEST},

    {"retry.failures", SPEC_INTEGER, DEFAULT("0"), RANGE(0, 1e6), UNIT("attempts")},
    {"retry.machine_failures", SPEC_INTEGER, DEFAULT("3"), RANGE(0, 1e6), UNIT("attempts")},

    {"elastic.min_workers", SPEC_INTEGER, DEFAULT("0"), RANGE(0, SPEC_WORKERS_MAX), UNIT("workers")},
    {"elastic.max_workers", SPEC_INTEGER, DEFAULT("0"), RANGE(0, SPEC_WORKERS_MAX), UNIT("workers")},
    {"elastic.redundancy", SPEC_CHOICE, DEFAULT("none"),
     CHOICES(redundancy, "none", "replica", "mirror", "parity")},
    {"elastic.every_steps", SPEC_INTEGER, DEFAULT("1"), RANGE(1, 1e12), UNIT("steps")},
    {"elastic.parity_group", SPEC_INTEGER, DEFAULT("4"), RANGE(2, SPEC_WORKERS_MAX),
     UNIT("workers")},

    {"workers", SPEC_INTEGER, DEFAULT("1"), RANGE(1, SPEC_WORKERS_MAX), UNIT("workers")},
    {"device", SPEC_CHOICE, DEFAULT(""), WORDS("cpu", "cuda")},
    {"save_model", SPEC_BOOLEAN, DEFAULT("true")},
    {"tensorboard", SPEC_BOOLEAN, DEFAULT("false")},
    {"sample.reserve.context", SPEC_INTEGER, DEFAULT(""), RANGE(1, 1e9), UNIT("tokens")},
    {"sample.reserve.sequences", SPEC_INTEGER, DEFAULT("1"), RANGE(1, 64), UNIT("sequences"),
     WITH("sample.reserve.context", NULL)},

    {"priority", SPEC_INTEGER, DEFAULT("0"), RANGE(-SPEC_PRIORITY_MAX, SPEC_PRIORITY_MAX)},
    {"after", SPEC_JOBS, DEFAULT("")},
    {"after_any", SPEC_JOBS, DEFAULT("")},
    {"start.at", SPEC_TIME, DEFAULT("")},
    {"deadline.start", SPEC_TIME, DEFAULT("")},
    {"deadline.finish", SPEC_TIME, DEFAULT("")},
    {"labels", SPEC_LABELS, DEFAULT("")},
    {"notify.to", SPEC_NAME, DEFAULT("")},
    {"notify.on", SPEC_WORDS, DEFAULT(""), WORDS("end", "failure", "stall", "preemption"),
     WITH("notify.to", NULL)},
    {"array.indices", SPEC_INDICES, DEFAULT("")},
    {"array.at_once", SPEC_INTEGER, DEFAULT("0"), RANGE(0, SPEC_ARRAY_MAX), UNIT("jobs"), ARRAY},
};
/* clang-format on */

const size_t spec_key_count = COUNT_OF(spec_keys);
