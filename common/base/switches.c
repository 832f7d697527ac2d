/* See switches.h. */
#include "base/switches.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define USER(name, value, help)                                                                    \
    {                                                                                              \
        "FSDPD_" name, value, SWITCH_USER, NULL, help                                              \
    }
#define TEST(name, value, help)                                                                    \
    {                                                                                              \
        "FSDPD_" name, value, SWITCH_TEST, NULL, help                                              \
    }
/* Of the rows of speed in gpu-check.sh, which compares each with the default. */
#define EXPERIMENT(name, value, help)                                                              \
    {                                                                                              \
        "FSDPD_" name, value, SWITCH_EXPERIMENT, "`gpu-check.sh`, choices", help                   \
    }

const struct switch_row switch_rows[] = {
    USER("ADDRESS", "ADDRESS", "Of fsdpctl: the address of fsdpd ([fsdpctl.md](fsdpctl.md))."),
    USER("TLS_CA", "FILE", "Of fsdpctl: the authority that signed fsdpd's certificate."),
    USER("TLS_CERTIFICATE", "FILE", "Of fsdpctl: your certificate."),
    USER("TLS_KEY", "FILE", "Of fsdpctl: its private key."),
    USER("INSECURE_TCP", "true", "Of fsdpctl: allows `HOST:PORT` without TLS."),
    USER("CONFIG", "FILE", "The configuration file; empty: none."),
    USER("BACKEND_DIR", "DIR",
         "The directory of `fsdpd-cuda.so`, if it is neither in `../lib/fsdpd` beside the program "
         "nor where it was installed."),
    TEST("HOST_ROOT", "DIR", "Where the files of cgroups are read, instead of `/`."),
    USER("CUDA_TF32", "1", "f32 products may round their operands to tf32."),
    USER("CUDA_SYNC", "1",
         "Waits for every call, so that an error is reported where it occurred. Slow."),
    EXPERIMENT("CUDA_ATTENTION", "own",
               "Computes attention with fsdpd's own kernels, even where cuDNN could, or where it "
               "fails."),
    USER("CUDA_ATTENTION_SCORES", "N",
         "Bytes of scratch memory for the scores of cuDNN's attention gradient, and for its "
         "dropout; 536870912 (512 MiB) if unset."),
    TEST("CUDA_CONV", "own",
         "Computes convolutions and their gradients with fsdpd's own kernels, even where cuDNN "
         "could. Slow."),
    USER("CUDA_CONV_COPIES", "N",
         "Bytes of copies of a part of a batch that a convolution may need; 201326592 (192 MiB) if "
         "unset."),
    USER("CUDA_COMPARE", "off",
         "Uses cuDNN without comparing its first results of each shape with fsdpd's own kernels "
         "([first use](#first-use))."),
    EXPERIMENT(
        "CUDA_GELU", "own",
        "Computes GELU by tanh, and its gradient, in passes of fsdpd's own kernels, never as "
        "part of a cuBLASLt product."),
    EXPERIMENT("CUDA_BIAS", "own",
               "Computes the gradient of a linear layer's bias in a pass of fsdpd's own kernels."),
    EXPERIMENT(
        "CUDA_REDUCTIONS", "all",
        "Lets cuBLASLt split sums in any way, also in ways that add in another order in every "
        "run."),
    EXPERIMENT(
        "CUDA_CANDIDATES", "N",
        "How many of cuBLASLt's algorithms for a product are timed, 1 to 8; 8 if unset. With 1 "
        "its first one is taken, without timing it."),
    USER("CUDA_CHOICES", "FILE",
         "An absolute path: where the choices are kept. If unset, `cuda-products` in systemd's "
         "cache "
         "directory (`/var/cache/fsdpd`), in `$XDG_CACHE_HOME/fsdpd` or in `~/.cache/fsdpd`. With "
         "`off` nothing is kept, and nothing timed."),
    TEST("CUDA_PRODUCTS", "note", "Notes which of its algorithms cuBLASLt chose for each product."),
    TEST("CUDA_SHARED", "nccl",
         "On all workers of a job: workers that share a device use NCCL, which accepts this if "
         "their `NCCL_HOSTID` differs."),
    USER("CUDA_LOGITS", "N",
         "Bytes of scratch memory for a block of a fused head's logits; if unset a 64th of the "
         "device's memory, but 256 MiB to 4 GiB."),
    EXPERIMENT(
        "CUDA_HEAD", "f32",
        "Computes the logits of a fused head in f32 also where it trains in bf16; their "
        "gradient then has memory of its own, half of theirs. If unset these logits are bf16, "
        "as PyTorch's autocast has them, and their gradient takes their place."),
    EXPERIMENT("CUDA_GRAPHS", "off",
               "Enqueues steps call by call and never captures a graph. With `alone` only those of "
               "one rank are captured, for a host where a group's collectives cannot be. The "
               "results are the same."),
    EXPERIMENT("CUDA_AHEAD", "off",
               "Enqueues a graph's next launch when the running one has ended, not when its "
               "statistics are known. The results are the same."),
    EXPERIMENT(
        "CUDA_BRANCHES", "on",
        "Computes the gradients of a linear layer's weights beside those of its data, on a "
        "stream of their own, in graphs and without. The results are the same, and memory is "
        "planned for it."),
    USER("CUDA_MEMORY", "N",
         "Plans jobs with at most N bytes of the device, even if more are free."),
    USER("CUDA_HOST_MEMORY", "N",
         "Plans them with at most N bytes of host memory for all ranks of the host, even if more "
         "are free."),
    {"NCCL_GRAPH_REGISTER", "1", SWITCH_USER, NULL,
     "NCCL's own; `0` unless you set it. With `1`, ranks communicate while they capture, and a "
     "rank that cannot capture leaves the others waiting. "
     "[`fsdp.register_buffers`](#registered-buffers) "
     "does not need it."},
};
const size_t switch_row_count = COUNT_OF(switch_rows);

const struct switch_row *switch_find(const char *name)
{
    for (size_t i = 0; i < switch_row_count; i++)
        if (strcmp(switch_rows[i].name, name) == 0) return &switch_rows[i];
    return NULL;
}

const char *switch_kind_name(enum switch_kind kind)
{
    switch (kind) {
    case SWITCH_USER: return "user";
    case SWITCH_TEST: return "test";
    case SWITCH_EXPERIMENT: return "experiment";
    }
    return "";
}

const char *switch_get(const char *name)
{
    MUST(switch_find(name) != NULL);
    return getenv(name);
}

bool switch_is(const char *name, const char *value)
{
    const char *set = switch_get(name);
    return set != NULL && strcmp(set, value) == 0;
}

long long switch_number(const char *name)
{
    const char *set = switch_get(name);
    long long number = set != NULL ? atoll(set) : 0;
    return number > 0 ? number : 0;
}

void switches_log(void)
{
    for (size_t i = 0; i < switch_row_count; i++) {
        const char *set = getenv(switch_rows[i].name);
        if (set == NULL) continue;
        AUTO_FREE char *quoted = log_quote(set);
        log_event(LOG_INFO, "switch_set", "name=%s kind=%s value=%s", switch_rows[i].name,
                  switch_kind_name(switch_rows[i].kind), quoted);
    }
}
