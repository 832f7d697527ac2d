/*
 * The choice among the algorithms that cuBLASLt proposes for a product, by their times. It is made
 * once per host for a model of device, a version of cuBLASLt and a product, before a run and never
 * for a plan, and kept in a file (docs/fsdpd.md), so that all runs and ranks of a host add in the
 * same order. Where it cannot be kept, or the device is in use, cuBLASLt's first algorithm is
 * taken: its estimate is always the same.
 *
 * A line of the file is a product, the algorithm (NVIDIA documents that its bytes may be stored for
 * the same version), and what people may want to know, separated by tabs. Of two lines for a
 * product the first counts. Lines are appended whole, so reading needs no lock. Who finds no line
 * locks the file until the new line is written; who waits for the lock takes what appears meanwhile,
 * since ranks must not differ, and gives up only if nothing does.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/switches.h"
#include "runtime/cuda/matmul.h"

/* The first round is not counted. */
enum { ROUNDS = 4, TIMES = 3, LOCK_TRIES = 3000, LOCK_PAUSE_NS = 10000000 };
/* An algorithm replaces the first one if it takes at most that part of its time: noise must not
 * decide. */
#define CLEARLY_FASTER 0.98

int cuda_matmul_candidates(void)
{
    const long long number = switch_number("FSDPD_CUDA_CANDIDATES");
    return number >= 1 && number <= CUDA_CANDIDATES_MAX ? (int)number : (int)CUDA_CANDIDATES_MAX;
}

/* ---- the file ---- */

/* "...": the directory's first part in a list of directories. */
static char *file_in(const char *directory, const char *middle)
{
    return mem_printf("%.*s%s/cuda-products", (int)strcspn(directory, ":"), directory, middle);
}

/* NULL: there is none. Caller frees. */
static char *path_of_choices(void)
{
    static const struct {
        const char *variable, *middle;
    } places[] = {{"CACHE_DIRECTORY", ""}, /* of systemd */
                  {"XDG_CACHE_HOME", "/fsdpd"},
                  {"HOME", "/.cache/fsdpd"}};
    const char *set = switch_get("FSDPD_CUDA_CHOICES");
    if (set != NULL) return set[0] == '/' ? mem_printf("%s", set) : NULL;
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const char *directory = getenv(places[i].variable);
        if (directory != NULL && directory[0] == '/') return file_in(directory, places[i].middle);
    }
    return NULL;
}

/* Those that lead to the file. An error shows when it is opened. */
static void make_directories(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
}

/* The file; -1 if that is impossible. */
static int open_choices(void)
{
    char *path = path_of_choices();
    if (path == NULL) return -1;
    make_directories(path);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    free(path);
    return file;
}

static char *key_of(const struct cuda_matmul *matmul, uint64_t most)
{
    const struct matmul_shape *s = &matmul->shape;
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, matmul->device->number) != cudaSuccess) return NULL;
    return mem_printf("%s, %d multiprocessors, cuBLASLt %zu: (%" PRId64 ", %" PRId64 ") (%" PRId64
                      ", %" PRId64 ") of %s to %s%s%s, strides %" PRId64 " %" PRId64 " %" PRId64
                      ", epilogue %d%s%s%s, at most %" PRIu64 " bytes",
                      properties.name, matmul->device->processors, cublasLtGetVersion(), s->m, s->k,
                      s->k, s->n, dtype_name(s->in), dtype_name(s->out),
                      s->a_transposed ? ", A transposed" : "",
                      s->b_transposed ? ", B transposed" : "", s->a_stride, s->b_stride,
                      s->d_stride, (int)s->epilogue, s->accumulate ? ", added" : "",
                      matmul->device->tf32 && s->in == DTYPE_F32 ? ", tf32" : "",
                      cuda_is_switched("FSDPD_CUDA_REDUCTIONS", "all") ? ", any reduction" : "",
                      most);
}

static bool read_algorithm(const char *text, cublasLtMatmulAlgo_t *algorithm)
{
    for (size_t i = 0; i < COUNT_OF(algorithm->data); i++) {
        if (sscanf(text, "%16" SCNx64, &algorithm->data[i]) != 1) return false;
        text += 16;
    }
    return *text == '\t';
}

/* Whether there is a line for the product. */
static bool find_line(int file, const char *key, cublasLtMatmulAlgo_t *algorithm)
{
    FILE *lines = fdopen(dup(file), "r");
    char *line = NULL;
    size_t capacity = 0, length = strlen(key);
    bool found = false;
    if (lines == NULL) return false;
    rewind(lines);
    while (!found && getline(&line, &capacity, lines) > 0)
        found = strncmp(line, key, length) == 0 && line[length] == '\t' &&
                read_algorithm(line + length + 1, algorithm);
    free(line);
    fclose(lines);
    return found;
}

/* Whether what was stored can run here. */
static bool is_possible(const struct cuda_matmul *matmul, const cublasLtMatmulAlgo_t *algorithm,
                        uint64_t workspace)
{
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof result);
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(matmul->device->blas, matmul->operation, matmul->a, matmul->b,
                                matmul->d, matmul->d, algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace;
}

static int64_t size_of(int file)
{
    struct stat found;
    return fstat(file, &found) == 0 ? (int64_t)found.st_size : 0;
}

enum choice { CHOICE_FOUND, CHOICE_LOCKED, CHOICE_NONE };

/* Finds the product's line, or locks the file, in which there is none that can be used. */
static enum choice find_or_lock(int file, const char *key, const struct cuda_matmul *matmul,
                                uint64_t workspace, cublasLtMatmulAlgo_t *algorithm)
{
    int64_t read = -1;
    for (int i = 0; i < LOCK_TRIES; i++) {
        bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
        if (!locked && errno != EWOULDBLOCK && errno != EINTR) return CHOICE_NONE;
        int64_t size = size_of(file);
        if (size != read && find_line(file, key, algorithm) &&
            is_possible(matmul, algorithm, workspace))
            return CHOICE_FOUND;
        if (locked) return CHOICE_LOCKED;
        if (size != read) i = 0;
        read = size;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    return CHOICE_NONE;
}

static bool add_line(int file, const char *key, const cublasLtMatmulAlgo_t *algorithm,
                     const char *said)
{
    char bytes[COUNT_OF(algorithm->data) * 16 + 1], about[CUDA_ALGORITHM_BYTES];
    for (size_t i = 0; i < COUNT_OF(algorithm->data); i++)
        snprintf(bytes + i * 16, 17, "%016" PRIx64, algorithm->data[i]);
    char *line = mem_printf("%s\t%s\t%s; %s\n", key, bytes,
                            cuda_matmul_describe_algorithm(algorithm, about), said);
    size_t length = strlen(line);
    bool written = write(file, line, length) == (ssize_t)length;
    free(line);
    return written;
}

/* ---- times ---- */

/* Memory for a product, at multiples of 256 bytes. */
struct matmul_operands {
    char *memory, *a, *b, *d, *workspace;
    struct matmul_extras extras;
    size_t bytes;
};

static size_t take(struct matmul_operands *operands, uint64_t bytes)
{
    size_t at = operands->bytes;
    operands->bytes += round_up(bytes, 256);
    return at;
}

/* Bytes of a matrix that is stored as (rows, columns) or transposed. */
static uint64_t bytes_of(enum dtype dtype, int64_t rows, int64_t columns, bool transposed,
                         int64_t stride)
{
    int64_t high = transposed ? columns : rows, wide = transposed ? rows : columns;
    return (uint64_t)((stride > 0 ? stride : high) * wide) * dtype_size(dtype);
}

/* Numbers of about 0.01 in both types: zeros would let the device run faster. */
static status_t make_operands(const struct cuda_matmul *matmul, uint64_t workspace,
                              cudaStream_t stream, struct matmul_operands *operands)
{
    enum { ABOUT_A_HUNDREDTH = 0x3c };
    const struct matmul_shape *s = &matmul->shape;
    int64_t longest = s->m > s->n ? s->m : s->n;
    size_t a = take(operands, bytes_of(s->in, s->m, s->k, s->a_transposed, s->a_stride));
    size_t b = take(operands, bytes_of(s->in, s->k, s->n, s->b_transposed, s->b_stride));
    size_t d = take(operands, bytes_of(s->out, s->m, s->n, false, s->d_stride));
    size_t kept = take(operands, bytes_of(s->out, s->m, s->n, false, 0));
    size_t bias = take(operands, (uint64_t)longest * sizeof(float));
    size_t scratch = take(operands, workspace);
    TRY_CUDA(cudaMalloc((void **)&operands->memory, operands->bytes));
    operands->a = operands->memory + a, operands->b = operands->memory + b;
    operands->d = operands->memory + d, operands->workspace = operands->memory + scratch;
    operands->extras.kept = operands->memory + kept;
    operands->extras.bias = operands->memory + bias;
    TRY_CUDA(cudaMemsetAsync(operands->memory, ABOUT_A_HUNDREDTH, operands->bytes, stream));
    return NULL;
}

/* Of a candidate, in milliseconds; negative: it does not run. */
static float time_of(struct cuda_matmul *matmul, const cublasLtMatmulAlgo_t *algorithm,
                     const struct matmul_operands *o, uint64_t workspace, cudaStream_t stream,
                     cudaEvent_t begun, cudaEvent_t ended)
{
    float ms = 0;
    if (cudaEventRecord(begun, stream) != cudaSuccess) return -1;
    for (int i = 0; i < TIMES; i++)
        if (cuda_matmul_enqueue(matmul, algorithm, o->a, o->b, o->d, o->workspace, workspace,
                                stream) != CUBLAS_STATUS_SUCCESS)
            return -1;
    if (cudaEventRecord(ended, stream) != cudaSuccess ||
        cudaEventSynchronize(ended) != cudaSuccess ||
        cudaEventElapsedTime(&ms, begun, ended) != cudaSuccess)
        return -1;
    return ms / TIMES;
}

struct timing {
    struct cuda_matmul *matmul;
    const cublasLtMatmulHeuristicResult_t *candidates;
    int count;
    uint64_t workspace;            /* bytes, of any of them */
    float ms[CUDA_CANDIDATES_MAX]; /* of the best round; negative: it does not run */
};

static status_t time_all_on(struct timing *timing, cudaStream_t stream, cudaEvent_t begun,
                            cudaEvent_t ended, struct matmul_operands *operands)
{
    TRY(make_operands(timing->matmul, timing->workspace, stream, operands));
    TRY(cuda_matmul_set_extras(timing->matmul, &operands->extras));
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < timing->count; i++) {
            if (timing->ms[i] < 0) continue;
            float ms = time_of(timing->matmul, &timing->candidates[i].algo, operands,
                               timing->workspace, stream, begun, ended);
            if (ms < 0 || round <= 1 || ms < timing->ms[i]) timing->ms[i] = ms;
        }
    TRY_CUDA(cudaStreamSynchronize(stream));
    return NULL;
}

static status_t make_event(cudaEvent_t *event)
{
    TRY_CUDA(cudaEventCreateWithFlags(event, cudaEventDefault));
    return NULL;
}

static status_t time_all(struct timing *timing)
{
    struct matmul_operands operands = {0};
    cudaStream_t stream = NULL;
    cudaEvent_t begun = NULL, ended = NULL;
    status_t status =
        cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    if (status == NULL) status = make_event(&begun);
    if (status == NULL) status = make_event(&ended);
    if (status == NULL) status = time_all_on(timing, stream, begun, ended, &operands);
    if (stream != NULL) cudaStreamSynchronize(stream);
    if (operands.memory != NULL) cudaFree(operands.memory);
    if (begun != NULL) cudaEventDestroy(begun);
    if (ended != NULL) cudaEventDestroy(ended);
    if (stream != NULL) cudaStreamDestroy(stream);
    cudaGetLastError(); /* of algorithms that could not be timed */
    return status;
}

static int best_of(const struct timing *timing)
{
    int best = 0;
    for (int i = 1; i < timing->count; i++)
        if (timing->ms[i] >= 0 && (timing->ms[best] < 0 || timing->ms[i] < timing->ms[best]))
            best = i;
    bool clear = timing->ms[0] < 0 || timing->ms[best] < CLEARLY_FASTER * (double)timing->ms[0];
    return clear ? best : 0;
}

/* ---- the choice ---- */

/* Whether this process, as far as it knows, has the device for itself. */
static bool is_idle(struct device *device)
{
    pthread_mutex_lock(&device->lock);
    bool idle = device->allocated == 0 && device->sharers <= 1;
    pthread_mutex_unlock(&device->lock);
    return idle;
}

static status_t choose_by_time(struct cuda_matmul *matmul,
                               const cublasLtMatmulHeuristicResult_t *candidates, int count,
                               uint64_t workspace, int file, const char *key,
                               cublasLtMatmulAlgo_t *algorithm)
{
    struct timing timing = {.matmul = matmul,
                            .candidates = candidates,
                            .count = count,
                            .workspace = workspace};
    TRY(time_all(&timing));
    int best = best_of(&timing);
    char *said = mem_printf("number %d of %d, %.4f ms, the first %.4f ms", best + 1, count,
                            (double)timing.ms[best], (double)timing.ms[0]);
    bool kept = add_line(file, key, &candidates[best].algo, said);
    free(said);
    if (!kept) return status_new(STATUS_UNAVAILABLE, "the file of choices cannot be written");
    *algorithm = candidates[best].algo;
    return NULL;
}

void cuda_matmul_choose(struct cuda_matmul *matmul,
                        const cublasLtMatmulHeuristicResult_t *candidates, int count,
                        uint64_t workspace, cublasLtMatmulAlgo_t *algorithm)
{
    *algorithm = candidates[0].algo;
    if (count < 2 || !matmul->device->base.may_time) return;
    cublasLtMatmulAlgo_t stored;
    status_t status = NULL;
    int file = open_choices();
    char *key = file >= 0 ? key_of(matmul, workspace) : NULL;
    enum choice found =
        key != NULL ? find_or_lock(file, key, matmul, workspace, &stored) : CHOICE_NONE;
    if (found == CHOICE_NONE)
        status = status_new(STATUS_UNAVAILABLE, "there is no file to keep the choice in%s",
                            key != NULL ? ", as another process holds it" : "");
    else if (found == CHOICE_FOUND) *algorithm = stored;
    else if (!is_idle(&matmul->device->base))
        status = status_new(STATUS_UNAVAILABLE, "the device is in use");
    else status = choose_by_time(matmul, candidates, count, workspace, file, key, algorithm);
    free(key);
    if (file >= 0) close(file);
    if (status != NULL)
        cuda_note(matmul->device,
                  "cuBLASLt's first algorithms are taken, without timing others: %s",
                  status_message(status));
    status_free(status);
}
