/*
 * NCCL for tests: ranks are threads, collectives meet in memory. Every rank leaves a copy of its
 * data, and continues when all have; sums are in rank order. A collective that waits lets other
 * streams run. An aborted communicator's work ends at once. nccl_memory_stub.cc handles
 * registration.
 *
 * As NCCL does for communicators that do not block, a thread of its own launches a collective into
 * a captured stream, and sometimes into another one: until it has, the communicator is in progress.
 * An abort joins it, and leaves the communicator until no graph refers to it.
 */
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <thread>
#include <vector>

#include "cuda_stub.h"
#include "nccl_memory_stub.h"

namespace
{

/* One collective: every rank's data. */
struct meeting {
    std::vector<std::vector<char>> brought;
    std::vector<bool> there;
    int count = 0;
};

/* What one rank sent to another, and this has not received yet. Only the two of them meet. */
struct channel {
    std::deque<std::vector<char>> sent;
    uint64_t given = 0, taken = 0; /* messages */
};

struct group {
    std::mutex lock;
    int world = 0, joined = 0;
    std::map<uint64_t, std::shared_ptr<meeting>> meetings;
    std::map<std::pair<int, int>, channel> channels;                  /* by sender and receiver */
    std::map<std::pair<uint64_t, int>, std::shared_ptr<group>> parts; /* by split and color */
    std::map<uint64_t, int> asked; /* ranks that have split so far, by split */
    std::map<std::vector<int>, std::shared_ptr<group>> shrunk; /* by the ranks that are left out */
    std::shared_ptr<group> grown;            /* that its ranks grow to; null: none is known yet */
    bool has_id = false, root_began = false; /* of such one: the rank that has its id has called */
    stub_needs_peers exchanges;
    int destroyed = 0, aborted = 0; /* ranks' */
};

struct all_groups {
    std::mutex lock;
    uint64_t ids = 0;
    std::map<uint64_t, std::shared_ptr<group>> groups;
};

all_groups &everything()
{
    static all_groups a;
    return a;
}

struct transfer {
    bool sends;
    char *memory;
    size_t bytes;
    int peer;
};

} // namespace

namespace
{

/* The thread that launches a group of calls. */
struct group_job {
    std::thread thread;
    std::atomic<bool> done{false}, aborted{false};
    int error = 0;
};

} // namespace

struct ncclComm {
    std::unique_ptr<group_job> job;
    std::shared_ptr<group> members;
    int rank, world;              /* 0: unknown before all ranks have split */
    std::shared_ptr<group> whole; /* of a part */
    uint64_t split = 0;
    int whole_world = 0;
    uint64_t sequence = 0, splits = 0;
    std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
    std::shared_ptr<int> graphs = std::make_shared<int>(0); /* with its collectives */
    bool shares = false; /* with its parts: splitShare */
    bool revoked = false;
    std::shared_ptr<group> forming; /* a group that its ranks shrink or grow to */
    std::shared_ptr<bool> broken = std::make_shared<bool>(false); /* a call has failed */
    /* A capture with its collectives has failed: the next one does. */
    std::shared_ptr<bool> poisoned = std::make_shared<bool>(false);
    int64_t to_take = CUDA_STUB_NCCL, taken = 0; /* memory, at the first collective */
    int questions = 0;   /* number of queries still answered with "in progress" */
    ncclResult_t failure = ncclSuccess;
    stub_registrations registrations;
};

namespace
{

struct open_group {
    bool open = false;
    ncclComm_t comm = nullptr;
    void *stream = nullptr;
    std::vector<transfer> transfers;
};

thread_local open_group mine;

size_t size_of(ncclDataType_t type)
{
    return type == ncclFloat ? 4 : type == ncclBfloat16 ? 2 : 1;
}

std::atomic<int> until_hang{0}; /* captured collectives */
std::atomic<int> owners{0};     /* communicators with buffers and threads of their own */

struct unfreed_comms {
    std::mutex lock;
    std::vector<ncclComm_t> comms;
};

unfreed_comms &unfreed()
{
    static unfreed_comms u;
    return u;
}

/* Of a capture or a graph. */
struct graph_use : stub_held {
    std::shared_ptr<int> graphs;
    std::shared_ptr<bool> poisoned;
    explicit graph_use(ncclComm_t comm) : graphs(comm->graphs), poisoned(comm->poisoned)
    {
        ++*graphs;
    }
    ~graph_use() override
    {
        --*graphs;
    }
    void capture_failed() override
    {
        *poisoned = true;
    }
};

/* Enqueues work of the communicator. A collective is numbered when it begins: a graph's again at
 * every launch. Graphs are counted, as a communicator cannot end before them. */
int launch(ncclComm_t comm, void *stream, bool numbered,
           std::function<std::function<int()>(uint64_t)> make)
{
    return stub_enqueue(
        stream, [=] { return make(numbered ? comm->sequence++ : 0); },
        std::make_shared<graph_use>(comm));
}

/* In progress if a thread does it; the caller must wait for that before it does anything else. */
ncclResult_t enqueue(ncclComm_t comm, void *stream, bool numbered,
                     std::function<std::function<int()>(uint64_t)> make)
{
    if (!stub_take_outside(comm->to_take)) return ncclUnhandledCudaError;
    comm->taken += comm->to_take;
    comm->to_take = 0;
    std::shared_ptr<void> capture = stub_join_capture(stream);
    if (comm->job != nullptr) return ncclInvalidArgument; /* used before it was ready */
    if (capture == nullptr && stub_random() % 4 != 0)
        return launch(comm, stream, numbered, make) == 0 ? ncclSuccess : ncclUnhandledCudaError;
    bool hangs = capture != nullptr && until_hang > 0 && --until_hang == 0;
    comm->job.reset(new group_job);
    group_job *job = comm->job.get();
    job->thread = std::thread([=]() mutable {
        std::this_thread::yield();
        while (hangs && !job->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (!job->aborted) job->error = launch(comm, stream, numbered, make);
        capture.reset();
        job->done = true;
    });
    return ncclInProgress;
}

/* Whether no thread is left; what it met is the communicator's error. */
bool is_launched(ncclComm_t comm)
{
    if (comm->job == nullptr) return true;
    if (!comm->job->done) return false;
    comm->job->thread.join();
    if (comm->job->error != 0) comm->failure = ncclUnhandledCudaError;
    comm->job = nullptr;
    return true;
}

void abort_job(ncclComm_t comm)
{
    if (comm->job == nullptr) return;
    comm->job->aborted = true;
    comm->job->thread.join();
    comm->job = nullptr;
}

void check_graphs(ncclComm_t comm)
{
    if (*comm->graphs == 0) return;
    fprintf(stderr, "nccl_stub: a communicator ends, and waits for its graphs without end\n");
    abort();
}

/* The caller has an error of the communicator. */
ncclResult_t fails(ncclComm_t comm, int error)
{
    if (error != 0) *comm->broken = true;
    return (ncclResult_t)error;
}

/* The same of a collective: an error in a capture shows at the next one. */
ncclResult_t collective_fails(ncclComm_t comm, int error)
{
    if (comm->revoked) return ncclInvalidUsage;
    if (error == 0 && *comm->poisoned) error = ncclUnhandledCudaError;
    if (error != 0 && stub_is_capturing()) *comm->poisoned = true;
    return fails(comm, error);
}

/* Nothing but an abort may end it. */
void check_intact(ncclComm_t comm, const char *call)
{
    if (!*comm->broken && !*comm->aborted) return;
    fprintf(stderr, "nccl_stub: %s after a failure: only ncclCommAbort may end the group\n", call);
    abort();
}

/* Contributes `in`; when all ranks have, `finish` gets their data. */
ncclResult_t meet(ncclComm_t comm, const char *name, void *stream, const void *in, size_t bytes,
                  const void *out, size_t out_bytes, int compares,
                  std::function<void(const meeting &)> finish)
{
    stub_count_launch("(nccl)");
    ncclResult_t failed = collective_fails(comm, stub_note(name, stream));
    if (failed != ncclSuccess) return failed;
    if (!stub_is_of_device(in) || !stub_is_of_device(out)) return ncclInvalidArgument;
    const std::vector<stub_registered> used = {comm->registrations.find(in, bytes),
                                               comm->registrations.find(out, out_bytes)};
    auto make = [=](uint64_t number) -> std::function<int()> {
        const std::vector<stub_registered> in_use = used;
        std::shared_ptr<group> members = comm->members;
        std::shared_ptr<bool> aborted = comm->aborted;
        int rank = comm->rank, world = comm->world;
        bool brought = false;
        return [=]() mutable {
            (void)in_use;
            std::lock_guard<std::mutex> guard(members->lock);
            if (*aborted) return 0;
            std::shared_ptr<meeting> &m = members->meetings[number];
            if (m == nullptr) {
                m = std::make_shared<meeting>();
                m->brought.resize((size_t)world);
            }
            if (!brought) {
                const char *bytes_of = (const char *)in;
                m->brought[(size_t)rank].assign(bytes_of, bytes_of + bytes);
                m->count++;
                brought = true;
            }
            if (m->count < world) return (int)STUB_NOT_YET;
            finish(*m);
            return 0;
        };
    };
    ncclResult_t launched = enqueue(comm, stream, true, make);
    if (launched != ncclSuccess && launched != ncclInProgress) return launched;
    std::lock_guard<std::mutex> guard(comm->members->lock);
    return stub_exchange_begins(&comm->registrations, &comm->members->exchanges, compares, in,
                                bytes, out, out_bytes)
               ? ncclInProgress
               : launched;
}

ncclComm_t new_comm(std::shared_ptr<group> members, int rank, int world)
{
    ncclComm_t comm = new ncclComm;
    comm->members = members;
    comm->rank = rank, comm->world = world;
    comm->questions = 2;
    return comm;
}

void add(float *sum, const meeting &m, size_t from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float total = ((const float *)m.brought[0].data())[from + i];
        for (size_t r = 1; r < m.brought.size(); r++)
            total += ((const float *)m.brought[r].data())[from + i];
        sum[i] = total;
    }
}

/* A rank's part in a group of sends and receives. Those between two ranks match in their order. */
struct exchange {
    std::shared_ptr<group> members;
    int rank;
    std::vector<transfer> transfers;
    std::vector<uint64_t> numbers; /* of a transfer's message in its channel, from 1; 0: none yet */

    bool send(size_t i)
    {
        const transfer &t = transfers[i];
        channel &to = members->channels[{rank, t.peer}];
        if (numbers[i] == 0) {
            to.sent.emplace_back(t.memory, t.memory + t.bytes);
            numbers[i] = ++to.given;
        }
        return to.taken >= numbers[i];
    }
    bool receive(size_t i)
    {
        const transfer &t = transfers[i];
        channel &from = members->channels[{t.peer, rank}];
        if (numbers[i] != 0) return true;
        if (from.sent.empty()) return false;
        const std::vector<char> &sent = from.sent.front();
        if (sent.size() != t.bytes && !sent.empty() && t.bytes > 0) {
            fprintf(stderr, "nccl_stub: rank %d expects %zu bytes of rank %d, which sends %zu\n",
                    rank, t.bytes, t.peer, sent.size());
            abort();
        }
        if (sent.size() == t.bytes) memcpy(t.memory, sent.data(), t.bytes);
        from.sent.pop_front();
        numbers[i] = ++from.taken;
        return true;
    }
    /* Whether all are done; all messages are sent before the first is received. */
    bool proceed()
    {
        bool done = true;
        for (size_t i = 0; i < transfers.size(); i++)
            if (transfers[i].sends) done = send(i) && done;
        for (size_t i = 0; i < transfers.size(); i++)
            if (!transfers[i].sends) done = receive(i) && done;
        return done;
    }
};

} // namespace

extern "C" {

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "unhandled error";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    all_groups &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    memset(id, 0, sizeof *id);
    uint64_t number = ++all.ids;
    memcpy(id, &number, sizeof number);
    return (ncclResult_t)stub_note("ncclGetUniqueId", nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    int error = stub_note("ncclCommInitRankConfig", nullptr);
    if (error != 0) return (ncclResult_t)error;
    if (config->blocking != 0) return ncclInvalidArgument; /* it must have a deadline */
    all_groups &all = everything();
    std::lock_guard<std::mutex> guard(all.lock);
    uint64_t number;
    memcpy(&number, &id, sizeof number);
    std::shared_ptr<group> &members = all.groups[number];
    if (members == nullptr) members = std::make_shared<group>();
    *comm = new_comm(members, rank, world);
    (*comm)->shares = config->splitShare == 1;
    owners++;
    return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t whole, int color, int key, ncclComm_t *part,
                           ncclConfig_t *config)
{
    int error = stub_note("ncclCommSplit", nullptr);
    if (error != 0) return fails(whole, error);
    std::lock_guard<std::mutex> guard(whole->members->lock);
    if (config->blocking != 0) return ncclInvalidArgument;
    std::shared_ptr<group> &members = whole->members->parts[{whole->splits, color}];
    if (members == nullptr) members = std::make_shared<group>();
    members->world++;
    whole->members->asked[whole->splits]++;
    *part = new_comm(members, key, 0);
    (*part)->whole = whole->members;
    (*part)->split = whole->splits++;
    (*part)->whole_world = whole->world;
    (*part)->shares = config->splitShare == 1;
    if (!whole->shares) owners++;
    else { /* a failure or an abort of one is one of all */
        (*part)->aborted = whole->aborted;
        (*part)->broken = whole->broken;
        (*part)->poisoned = whole->poisoned;
        (*part)->to_take = 0;
    }
    return ncclInProgress;
}

/* Peers that wait for a rank to enqueue learn that it is lost; in their streams, that it aborted.
 * Groups without registered memory learn it only by their deadlines. */
static bool lost_peer(ncclComm_t comm)
{
    if (comm->registrations.all.empty()) return false;
    std::lock_guard<std::mutex> guard(comm->members->lock);
    return comm->members->aborted > 0 ||
           (comm->registrations.talking && comm->members->destroyed > 0);
}

/* Non-blocking operations complete at the third query; a part's size is known when all ranks have
 * split. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    int error = stub_note("ncclCommGetAsyncError", nullptr);
    if (error != 0) comm->failure = (ncclResult_t)error;
    if (!is_launched(comm)) {
        *result = ncclInProgress;
        return ncclSuccess;
    }
    bool ready = comm->questions-- <= 0;
    if (comm->forming != nullptr) {
        std::lock_guard<std::mutex> guard(comm->forming->lock);
        ready = comm->forming->joined == comm->forming->world;
    }
    if (ready) comm->forming = nullptr;
    if (comm->registrations.talking) {
        stub_proceed(); /* its peers may need that to get here */
        std::lock_guard<std::mutex> guard(comm->members->lock);
        comm->registrations.talking =
            !stub_exchange_is_over(&comm->registrations, comm->members->exchanges, comm->world);
        ready = !comm->registrations.talking;
    }
    if (lost_peer(comm)) {
        comm->failure = ncclRemoteError;
        ready = true;
    }
    if (comm->world == 0) {
        std::lock_guard<std::mutex> guard(comm->whole->lock);
        ready = comm->whole->asked[comm->split] == comm->whole_world;
        if (ready) comm->world = comm->members->world;
    }
    *result = ready ? comm->failure : ncclInProgress;
    if (ready) fails(comm, comm->failure);
    return ncclSuccess;
}

/* Ends what is in flight; a second time it is invalid, and while NCCL connects an error of its own
 * (as measured with 2.31.2). Then the state is no error any more. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    int error = stub_note("ncclCommRevoke", nullptr);
    if (error != 0) return fails(comm, error);
    if (flags != 0 || comm->revoked) return ncclInvalidArgument;
    if (!is_launched(comm) || comm->world == 0) return fails(comm, ncclInternalError);
    comm->revoked = true;
    *comm->aborted = true;
    *comm->broken = true; /* a finalization is invalid */
    comm->failure = ncclSuccess;
    comm->questions = 2;
    return ncclInProgress;
}

/* A rank of a group that others shrink or grow to. */
static ncclComm_t join_new(std::shared_ptr<group> members, int rank, int world,
                           const ncclConfig_t *config)
{
    std::lock_guard<std::mutex> guard(members->lock);
    members->world = world;
    members->joined++;
    ncclComm_t comm = new_comm(members, rank, world);
    comm->shares = config->splitShare == 1;
    comm->forming = members;
    owners++;
    return comm;
}

/* The ranks keep their order. Without the abort flag nothing may have failed. */
ncclResult_t ncclCommShrink(ncclComm_t whole, int *left_out, int count, ncclComm_t *made,
                            ncclConfig_t *config, int flags)
{
    int error =
        stub_note(flags == NCCL_SHRINK_ABORT ? "ncclCommShrink abort" : "ncclCommShrink", nullptr);
    if (error != 0) return fails(whole, error);
    if (config->blocking != 0 || count < 1 || count >= whole->world) return ncclInvalidArgument;
    if (!is_launched(whole) || *whole->graphs > 0) return ncclInvalidUsage;
    bool failed = *whole->broken || *whole->poisoned || *whole->aborted;
    if (failed && flags != NCCL_SHRINK_ABORT) return ncclInvalidUsage;
    if (failed && !whole->revoked) return ncclInvalidUsage; /* its work would stay in flight */
    int rank = whole->rank;
    for (int i = 0; i < count; i++) {
        if (left_out[i] < 0 || left_out[i] >= whole->world) return ncclInvalidArgument;
        if (left_out[i] == whole->rank) return ncclInvalidArgument;
        rank -= left_out[i] < whole->rank;
    }
    std::shared_ptr<group> members;
    {
        std::lock_guard<std::mutex> guard(whole->members->lock);
        auto &at = whole->members->shrunk[std::vector<int>(left_out, left_out + count)];
        if (at == nullptr) at = std::make_shared<group>();
        members = at;
    }
    *made = join_new(members, rank, whole->world - count, config);
    whole->forming = members;
    return ncclInProgress;
}

static std::shared_ptr<group> grown_of(ncclComm_t comm)
{
    std::lock_guard<std::mutex> guard(comm->members->lock);
    if (comm->members->grown == nullptr) comm->members->grown = std::make_shared<group>();
    return comm->members->grown;
}

/* One rank's, for one growth. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
    int error = stub_note("ncclCommGetUniqueId", nullptr);
    if (error != 0) return fails(comm, error);
    if (!is_launched(comm) || *comm->broken || *comm->aborted) return ncclInvalidUsage;
    ncclResult_t made = ncclGetUniqueId(id);
    std::shared_ptr<group> grown = grown_of(comm);
    if (grown->has_id) return ncclInvalidUsage;
    grown->has_id = true;
    uint64_t number;
    memcpy(&number, id, sizeof number);
    std::lock_guard<std::mutex> all_guard(everything().lock);
    everything().groups[number] = grown;
    return made;
}

/* The old ranks keep their numbers, and the one that has the id calls first. */
ncclResult_t ncclCommGrow(ncclComm_t old, int world, const ncclUniqueId *id, int rank,
                          ncclComm_t *made, ncclConfig_t *config)
{
    int error = stub_note("ncclCommGrow", nullptr);
    if (error != 0) return old != nullptr ? fails(old, error) : (ncclResult_t)error;
    std::shared_ptr<group> members;
    if (config->blocking != 0) return ncclInvalidArgument;
    if (old == nullptr) {
        uint64_t number;
        if (id == nullptr || rank < 0 || rank >= world) return ncclInvalidArgument;
        memcpy(&number, id, sizeof number);
        std::lock_guard<std::mutex> guard(everything().lock);
        members = everything().groups[number];
        if (members == nullptr || !members->root_began) return ncclInternalError;
        *made = join_new(members, rank, world, config);
        return ncclInProgress;
    }
    if (rank != -1 || world <= old->world) return ncclInvalidArgument;
    if (!is_launched(old) || *old->broken || *old->poisoned || *old->aborted)
        return ncclInvalidUsage;
    members = grown_of(old);
    if (id != nullptr) members->root_began = true;
    *made = join_new(members, old->rank, world, config);
    old->forming = members;
    return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    check_intact(comm, "ncclCommFinalize");
    comm->questions = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    check_intact(comm, "ncclCommDestroy");
    abort_job(comm);
    check_graphs(comm);
    stub_registrations_end(&comm->registrations, false);
    stub_take_outside(-comm->taken);
    {
        std::lock_guard<std::mutex> guard(comm->members->lock);
        comm->members->destroyed++;
    }
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    return fails(comm, stub_register(&comm->registrations, memory, bytes, handle, false));
}

/* All ranks register the same sizes. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                    ncclWindow_t *window, int flags)
{
    if (flags != NCCL_WIN_COLL_SYMMETRIC) return ncclInvalidArgument;
    ncclResult_t made =
        fails(comm, stub_register(&comm->registrations, memory, bytes, (void **)window, true));
    if (made != ncclSuccess) return made;
    std::lock_guard<std::mutex> guard(comm->members->lock);
    stub_exchange_begins(&comm->registrations, &comm->members->exchanges, STUB_COMPARES_IN, memory,
                         bytes, memory, bytes);
    return ncclInProgress;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    return fails(comm, stub_deregister(&comm->registrations, window));
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return fails(comm, stub_deregister(&comm->registrations, handle));
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    stub_note("ncclCommAbort", nullptr);
    abort_job(comm);
    if (!stub_is_capturing()) check_graphs(comm);
    {
        std::lock_guard<std::mutex> guard(comm->members->lock);
        comm->members->aborted++;
    }
    *comm->aborted = true;
    stub_take_outside(-comm->taken);
    stub_registrations_end(&comm->registrations, true);
    if (*comm->graphs > 0) { /* of the capture */
        std::lock_guard<std::mutex> guard(unfreed().lock);
        unfreed().comms.push_back(comm);
        return ncclSuccess;
    }
    delete comm;
    return ncclSuccess;
}

int nccl_stub_owners(void)
{
    return owners.exchange(0);
}

void nccl_stub_hang(int number)
{
    until_hang = number;
}

int nccl_stub_unfreed(void)
{
    std::lock_guard<std::mutex> guard(unfreed().lock);
    std::vector<ncclComm_t> left;
    for (ncclComm_t comm : unfreed().comms)
        if (*comm->graphs > 0) left.push_back(comm);
        else delete comm;
    unfreed().comms = left;
    return (int)left.size();
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    size_t bytes = count * size_of(type);
    return meet(comm, "ncclAllGather", stream, in, bytes, out, bytes * (size_t)comm->world,
                STUB_COMPARES_OUT, [=](const meeting &m) {
                    for (size_t r = 0; r < m.brought.size(); r++)
                        memcpy((char *)out + r * bytes, m.brought[r].data(), bytes);
                });
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat || op != ncclSum) return ncclInvalidArgument;
    size_t rank = (size_t)comm->rank, all = count * (size_t)comm->world;
    return meet(comm, "ncclReduceScatter", stream, in, all * 4, out, count * 4, STUB_COMPARES_IN,
                [=](const meeting &m) { add((float *)out, m, rank * count, count); });
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat || op != ncclSum) return ncclInvalidArgument;
    return meet(comm, "ncclAllReduce", stream, in, count * 4, out, count * 4,
                STUB_COMPARES_IN | STUB_COMPARES_OUT,
                [=](const meeting &m) { add((float *)out, m, 0, count); });
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    size_t bytes = count * size_of(type);
    return meet(comm, "ncclBroadcast", stream, in, bytes, out, bytes, 0,
                [=](const meeting &m) { memcpy(out, m.brought[(size_t)root].data(), bytes); });
}

ncclResult_t ncclGroupStart(void)
{
    mine = open_group();
    mine.open = true;
    return ncclSuccess;
}

static ncclResult_t add_transfer(bool sends, void *memory, size_t count, ncclDataType_t type,
                                 int peer, ncclComm_t comm, cudaStream_t stream)
{
    int error = stub_note(sends ? "ncclSend" : "ncclRecv", stream);
    if (comm->revoked) return ncclInvalidUsage;
    fails(comm, error);
    if (!mine.open) return ncclInvalidUsage;
    if (!stub_is_of_device(memory) || peer < 0 || peer >= comm->world) return ncclInvalidArgument;
    mine.comm = comm;
    mine.stream = stream;
    /* A failed one moves nothing, and the group continues without it; the peer does not wait for
     * its deadline then, so that tests end sooner. */
    mine.transfers.push_back({sends, (char *)memory, error == 0 ? count * size_of(type) : 0, peer});
    return (ncclResult_t)error;
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add_transfer(true, (void *)in, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add_transfer(false, out, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupEnd(void)
{
    open_group done = mine;
    mine = open_group();
    if (!done.open) return ncclInvalidUsage;
    if (done.transfers.empty()) return ncclSuccess;
    ncclComm_t comm = done.comm;
    ncclResult_t failed = collective_fails(comm, stub_note("ncclGroupEnd", done.stream));
    if (failed != ncclSuccess) return failed;
    std::vector<stub_registered> used;
    for (const transfer &t : done.transfers) {
        used.push_back(comm->registrations.find(t.memory, t.bytes));
        stub_exchange_begins(&comm->registrations, nullptr, 0, t.memory, t.bytes, t.memory,
                             t.bytes);
    }
    return enqueue(comm, done.stream, false, [=](uint64_t) -> std::function<int()> {
        const std::vector<stub_registered> in_use = used;
        std::shared_ptr<bool> aborted = comm->aborted;
        exchange part = {comm->members, comm->rank, done.transfers,
                         std::vector<uint64_t>(done.transfers.size())};
        return [=]() mutable {
            (void)in_use;
            std::lock_guard<std::mutex> guard(part.members->lock);
            return *aborted || part.proceed() ? 0 : (int)STUB_NOT_YET;
        };
    });
}

} /* extern "C" */
