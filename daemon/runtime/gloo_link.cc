/*
 * The C++ between comm_gloo.c and Gloo. Nothing throws past this file.
 *
 * Gloo tells only the transfers that are queued of a lost connection, not the one whose bytes are
 * just arriving or leaving. So every link has a watcher: a thread that waits on a transfer from
 * every peer that never comes, hears of each lost connection through it, and wakes the waiting
 * thread.
 *
 * The link owns the Gloo context, whose own thread moves the bytes; buffers are the caller's.
 */
#include "runtime/gloo_link.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace
{

using std::chrono::milliseconds;
using clock_type = std::chrono::steady_clock; /* clock_monotonic_ns's clock */

constexpr uint64_t kWatchTag = UINT64_MAX;
constexpr auto kForever = std::chrono::hours(24 * 365);

int64_t now_ns()
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               clock_type::now().time_since_epoch())
        .count();
}

milliseconds time_left(int64_t deadline_ns)
{
    return milliseconds(std::max<int64_t>((deadline_ns - now_ns() + 999999) / 1000000, 0));
}

/* Gloo's messages start with the place in its source. */
std::string plain_message(const std::exception &error)
{
    std::string text = error.what();
    size_t end = text.find("] ");
    if (!text.empty() && text[0] == '[' && end != std::string::npos) text.erase(0, end + 2);
    return text;
}

/* An error of the store, on its way through Gloo. */
struct store_error : std::runtime_error {
    explicit store_error(status_t status)
        : std::runtime_error(status_message(status)), code(status_code(status))
    {
        status_free(status);
    }
    enum status_code code;
};

/* The group's names in the rendezvous store. */
class prefixed_store : public gloo::rendezvous::Store
{
  public:
    prefixed_store(const struct rendezvous *store, std::string prefix, int64_t deadline_ns)
        : store_(store), prefix_(std::move(prefix)), deadline_ns_(deadline_ns)
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        check(store_->set(store_->user, name(key).c_str(), data.data(), data.size()));
    }

    std::vector<char> get(const std::string &key) override
    {
        auto known = values_.find(key);
        if (known != values_.end()) return known->second;
        void *value = nullptr;
        size_t size = 0;
        check(store_->get(store_->user, name(key).c_str(), time_left(deadline_ns_).count(), &value,
                          &size));
        std::vector<char> data(static_cast<char *>(value), static_cast<char *>(value) + size);
        free(value);
        values_[key] = data;
        return data;
    }

    void wait(const std::vector<std::string> &keys) override
    {
        for (const auto &key : keys) get(key);
    }

    void wait(const std::vector<std::string> &keys, const milliseconds &) override
    {
        wait(keys);
    }

  private:
    std::string name(const std::string &key) const
    {
        return prefix_ + "/" + key;
    }

    static void check(status_t status)
    {
        if (status != nullptr) throw store_error(status);
    }

    const struct rendezvous *store_;
    std::string prefix_;
    int64_t deadline_ns_;
    std::map<std::string, std::vector<char>> values_;
};

/* Blocks all signals for as long as it lives: threads started meanwhile leave them to the main
 * loop, and a closed connection is an error code instead of SIGPIPE. */
class signals_blocked
{
  public:
    signals_blocked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~signals_blocked()
    {
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

  private:
    sigset_t before_;
};

} // namespace

struct gloo_buffer {
    struct gloo_link *link;
    int peer;
    std::unique_ptr<gloo::transport::UnboundBuffer> memory;
};

struct gloo_link {
    int rank, world;
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::thread watcher;
    char watched = 0; /* memory of the transfers that never come */

    std::mutex lock; /* guards what follows */
    bool stopping = false;
    bool quit = false;
    std::vector<bool> lost; /* (world) */
    int first_lost = -1;
    std::string first_reason;
    struct gloo_buffer *waiting = nullptr; /* what the lane's thread waits for */
    gloo::transport::UnboundBuffer *watching = nullptr;

    void wake_waiting()
    {
        if (waiting == nullptr) return;
        waiting->memory->abortWaitRecv();
        waiting->memory->abortWaitSend();
    }

    void mark_lost(int peer, const std::string &reason)
    {
        std::lock_guard<std::mutex> guard(lock);
        if (lost[peer]) return;
        lost[peer] = true;
        if (first_lost < 0) {
            first_lost = peer;
            first_reason = reason;
        }
        if (waiting != nullptr && waiting->peer == peer) wake_waiting();
    }

    status_t error_of(int peer, const char *what)
    {
        std::lock_guard<std::mutex> guard(lock);
        if (quit) return status_new(STATUS_ABORTED, "this rank closed its connections");
        if (lost[peer] && peer == first_lost)
            return status_new(STATUS_UNAVAILABLE, "lost rank %d: %s", peer, first_reason.c_str());
        if (lost[peer])
            return status_new(STATUS_UNAVAILABLE, "lost rank %d: %s (then rank %d too)", first_lost,
                              first_reason.c_str(), peer);
        return status_new(STATUS_UNAVAILABLE, "rank %d: %s", peer, what);
    }

    /* On the watcher's thread, until it is told to stop. */
    void watch()
    {
        for (;;) {
            auto never = context->createUnboundBuffer(&watched, 1);
            bool any = false;
            for (int peer = 0; peer < world; peer++) {
                if (peer == rank) continue;
                {
                    std::lock_guard<std::mutex> guard(lock);
                    if (lost[peer]) continue;
                }
                /* Throws if the connection is gone: this is how a lost peer is told from others. */
                try {
                    never->recv(peer, kWatchTag, 0, 1);
                    any = true;
                } catch (const std::exception &error) {
                    mark_lost(peer, plain_message(error));
                }
            }
            {
                std::lock_guard<std::mutex> guard(lock);
                if (stopping || !any) return;
                watching = never.get();
            }
            bool stopped = false;
            try {
                stopped = !never->waitRecv(nullptr, kForever);
            } catch (const std::exception &) {
                /* A connection was lost; the next round finds out which. */
            }
            std::lock_guard<std::mutex> guard(lock);
            watching = nullptr;
            if (stopped || stopping) return;
        }
    }
};

namespace
{

/* Whether this host can listen on the address. Gloo 0.5 crashes on a name that does not resolve,
 * and leaks on an address that is not this host's. */
void check_address(const char *address)
{
    struct addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(address, nullptr, &hints, &found);
    if (error != 0) throw std::runtime_error(gai_strerror(error));
    bool bound = false;
    for (struct addrinfo *a = found; a != nullptr && !bound; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        bound = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    if (!bound) throw std::runtime_error("it is not an address of this host");
}

std::shared_ptr<gloo::rendezvous::Context> join(int rank, int world, const char *address,
                                                gloo::rendezvous::Store &store, int64_t timeout_ms)
{
    check_address(address);
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
    /* Gloo waits five times as long for a connection to be made. */
    context->setTimeout(milliseconds(std::max<int64_t>(timeout_ms / 5, 1)));
    context->connectFullMesh(store, device);
    return context;
}

/* Waits for one transfer; `wait` returns false when it was woken by abortWait*. */
template <typename wait_function>
status_t wait_transfer(struct gloo_buffer *buffer, int64_t deadline_ns, wait_function wait)
{
    struct gloo_link *link = buffer->link;
    std::string problem;
    for (bool done = false; !done;) {
        bool hopeless;
        {
            std::lock_guard<std::mutex> guard(link->lock);
            if (link->quit) break;
            hopeless = link->lost[buffer->peer];
            link->waiting = buffer;
        }
        /* What a lost peer has sent before it went still counts. */
        bool failed = false;
        try {
            done = wait(hopeless ? milliseconds(0) : time_left(deadline_ns));
        } catch (const std::exception &error) {
            problem = plain_message(error);
            failed = true;
        }
        {
            std::lock_guard<std::mutex> guard(link->lock);
            link->waiting = nullptr;
        }
        /* Running out of time makes Gloo close all connections: not the peers' doing. */
        if (failed && !hopeless && now_ns() >= deadline_ns)
            return status_new(STATUS_DEADLINE_EXCEEDED, "rank %d did not answer in time",
                              buffer->peer);
        if (failed) link->mark_lost(buffer->peer, problem);
        if (failed) break;
        if (done) return STATUS_OKAY;
    }
    return link->error_of(buffer->peer, problem.c_str());
}

template <typename start_function>
status_t start_transfer(struct gloo_buffer *buffer, start_function start)
{
    try {
        start();
        return STATUS_OKAY;
    } catch (const std::exception &error) {
        buffer->link->mark_lost(buffer->peer, plain_message(error));
        return buffer->link->error_of(buffer->peer, error.what());
    }
}

} // namespace

status_t gloo_link_new(int rank, int world, const char *address, const char *prefix,
                       const struct rendezvous *store, int64_t timeout_ms,
                       struct gloo_link **result)
{
    int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
    try {
        signals_blocked blocked;
        auto link = std::make_unique<gloo_link>();
        link->rank = rank;
        link->world = world;
        link->lost.resize(static_cast<size_t>(world));
        prefixed_store names(store, prefix, deadline_ns);
        link->context = join(rank, world, address, names, timeout_ms);
        link->watcher = std::thread(&gloo_link::watch, link.get());
        pthread_setname_np(link->watcher.native_handle(), "gloo-watcher");
        *result = link.release();
        return STATUS_OKAY;
    } catch (const store_error &error) {
        return status_new(error.code, "rank %d of %d cannot join group %s: %s", rank, world, prefix,
                          error.what());
    } catch (const std::exception &error) {
        return status_new(now_ns() >= deadline_ns ? STATUS_DEADLINE_EXCEEDED : STATUS_UNAVAILABLE,
                          "rank %d of %d cannot join group %s at address %s: %s", rank, world,
                          prefix, address, plain_message(error).c_str());
    }
}

void gloo_link_free(struct gloo_link *link)
{
    if (link == nullptr) return;
    {
        std::lock_guard<std::mutex> guard(link->lock);
        link->stopping = true;
        if (link->watching != nullptr) link->watching->abortWaitRecv();
    }
    link->watcher.join();
    delete link;
}

status_t gloo_buffer_new(struct gloo_link *link, int peer, void *memory, size_t bytes,
                         struct gloo_buffer **buffer)
{
    try {
        auto result = std::make_unique<gloo_buffer>();
        result->link = link;
        result->peer = peer;
        result->memory = link->context->createUnboundBuffer(memory, bytes);
        *buffer = result.release();
        return STATUS_OKAY;
    } catch (const std::exception &error) {
        return status_new(STATUS_INTERNAL, "gloo: %s", error.what());
    }
}

void gloo_buffer_free(struct gloo_buffer *buffer)
{
    delete buffer;
}

status_t gloo_send(struct gloo_buffer *buffer, uint64_t tag, size_t offset, size_t bytes)
{
    return start_transfer(buffer, [=] { buffer->memory->send(buffer->peer, tag, offset, bytes); });
}

status_t gloo_receive(struct gloo_buffer *buffer, uint64_t tag, size_t offset, size_t bytes)
{
    return start_transfer(buffer, [=] { buffer->memory->recv(buffer->peer, tag, offset, bytes); });
}

status_t gloo_wait_sent(struct gloo_buffer *buffer, int64_t deadline_ns)
{
    return wait_transfer(buffer, deadline_ns, [=](milliseconds timeout) {
        return buffer->memory->waitSend(nullptr, timeout);
    });
}

status_t gloo_wait_received(struct gloo_buffer *buffer, int64_t deadline_ns)
{
    return wait_transfer(buffer, deadline_ns, [=](milliseconds timeout) {
        return buffer->memory->waitRecv(nullptr, timeout);
    });
}

void gloo_link_quit(struct gloo_link *link)
{
    {
        std::lock_guard<std::mutex> guard(link->lock);
        if (link->quit) return;
        link->quit = true;
        link->wake_waiting();
        if (link->watching != nullptr) link->watching->abortWaitRecv();
    }
    try {
        link->context->closeConnections();
    } catch (const std::exception &) {
        /* They are closed, then. */
    }
}
