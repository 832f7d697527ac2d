/*
 * The C++ between comm_gloo.c and Gloo. No exception leaves this file.
 *
 * Gloo reports a lost connection only to queued transfers, not to the one whose bytes are being
 * sent or received. So every link has a watcher: a thread that waits on a transfer from every peer
 * that never arrives, thereby learns of each lost connection, and wakes the waiting thread.
 *
 * The link owns the Gloo context, whose own thread moves the bytes; buffers are the caller's.
 */
#include "runtime/gloo_link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "base/must.h"
#include "base/signals.h"

namespace
{

using std::chrono::milliseconds;
using clock_type = std::chrono::steady_clock; /* clock_monotonic_ns's clock */

constexpr uint64_t kWatchTag = UINT64_MAX;
constexpr auto kForever = std::chrono::hours(24 * 365);
constexpr milliseconds kConnectTime(20000); /* from when all ranks are there until all are joined */
constexpr milliseconds kNamingTime(2000); /* longer than that: for the rank that knows which peer */
constexpr milliseconds kCheckTime(20); /* how often a connecting rank checks whether to continue */

using bytes_type = std::vector<char>;

int64_t now_ns()
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               clock_type::now().time_since_epoch())
        .count();
}

int64_t to_ns(milliseconds time)
{
    return time.count() * 1000000;
}

milliseconds time_left(int64_t deadline_ns)
{
    return milliseconds(std::max<int64_t>((deadline_ns - now_ns() + 999999) / 1000000, 0));
}

/* Gloo's messages start with a source location. */
std::string plain_message(const std::exception &error)
{
    std::string text = error.what();
    size_t end = text.find("] ");
    if (!text.empty() && text[0] == '[' && end != std::string::npos) text.erase(0, end + 2);
    return text;
}

/* The reason why a rank could not join, with its code. */
struct join_error : std::runtime_error {
    join_error(enum status_code number, const std::string &text, int unreached = -1)
        : std::runtime_error(text), code(number), peer(unreached)
    {
    }
    enum status_code code;
    int peer; /* that it could not reach; -1: it was something else */
};

void check(status_t status)
{
    if (status == nullptr) return;
    join_error error(status_code(status), status_message(status));
    status_free(status);
    throw error;
}

/* Blocks all signals while it exists: threads started meanwhile leave them to the main loop, and a
 * closed connection is an error code instead of SIGPIPE. */
class signals_blocked
{
  public:
    signals_blocked()
    {
        signals_block(&before_);
    }
    ~signals_blocked()
    {
        signals_restore(&before_);
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
    std::shared_ptr<gloo::Context> context;
    std::thread watcher;
    char watched = 0; /* memory of the transfers that never complete */
    struct must_user user = {};

    std::mutex lock; /* guards the members below */
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

    /* Runs on the watcher's thread, until stopped. */
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
                /* Throws if the connection is gone: this distinguishes a lost peer from other
                 * errors. */
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
 * and leaks on an address of another host. */
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

/* Names of a group in the rendezvous store. All ranks perform the same exchanges. */
class meeting
{
  public:
    meeting(const struct rendezvous *store, int rank, int world, std::string group)
        : store_(store), rank_(rank), world_(world), group_(std::move(group))
    {
    }

    /* Tells the peers `own` and learns theirs, (world). */
    std::vector<bytes_type> exchange(const char *what, const bytes_type &own,
                                     int64_t deadline_ns) const
    {
        std::vector<struct rendezvous_value> values(static_cast<size_t>(world_));
        check(rendezvous_meet(store_, group_.c_str(), what, rank_, world_, own.data(), own.size(),
                              deadline_ns, values.data()));
        std::vector<bytes_type> all;
        for (const auto &value : values) {
            auto *data = static_cast<char *>(value.data);
            all.emplace_back(data, data + value.size);
            free(data);
        }
        return all;
    }

    /* Throws if this rank must give up. */
    void check_open() const
    {
        check(rendezvous_still_open(store_));
    }

    void fail(const char *why) const
    {
        rendezvous_give_up(store_, group_.c_str(), why);
    }

  private:
    const struct rendezvous *store_;
    int rank_, world_;
    std::string group_;
};

/*
 * Runs `work` on a thread of its own and waits for it, at most until the deadline, or until this
 * rank must give up. Gloo and the resolver cannot be interrupted: an abandoned thread ends by
 * itself, within kConnectTime or the resolver's timeout. So `work` owns everything that it touches.
 * `late` is the error if it took too long.
 */
template <typename work_function, typename naming_function>
void run_apart(const meeting &peers, int64_t deadline_ns, work_function work, naming_function late)
{
    struct progress {
        std::mutex lock;
        std::condition_variable changed;
        bool done = false;
        std::exception_ptr error;
    };
    auto state = std::make_shared<progress>();
    auto owned = std::make_unique<work_function>(std::move(work));
    std::thread([state, owned = std::move(owned)]() mutable {
        std::exception_ptr error;
        try {
            (*owned)();
        } catch (...) {
            error = std::current_exception();
        }
        owned.reset(); /* before any rank continues */
        std::lock_guard<std::mutex> guard(state->lock);
        state->error = error;
        state->done = true;
        state->changed.notify_all();
    }).detach();
    std::unique_lock<std::mutex> guard(state->lock);
    while (!state->changed.wait_for(guard, kCheckTime, [&] { return state->done; })) {
        peers.check_open();
        if (now_ns() >= deadline_ns) throw late();
    }
    if (state->error != nullptr) std::rethrow_exception(state->error);
}

/*
 * A Gloo context that connects in two halves. Of each pair of ranks one connects to a socket that
 * the other listens on, and Gloo makes the listening rank wait for that, uninterruptibly. This
 * class instead waits at the store, interruptibly, until the peers have connected; then Gloo's wait
 * ends at once.
 */
class mesh : public gloo::Context
{
  public:
    mesh(int own_rank, int world, const std::string &address, milliseconds timeout)
        : gloo::Context(own_rank, world)
    {
        check_address(address.c_str());
        gloo::transport::tcp::attr attributes;
        attributes.hostname = address;
        device_ = gloo::transport::tcp::CreateDevice(attributes);
        transportContext_ = device_->createContext(rank, world);
        /* Gloo waits five times this long for a connection. */
        transportContext_->setTimeout(std::max(timeout / 5, milliseconds(1)));
        for (int peer = 0; peer < world; peer++)
            if (peer != rank)
                own_addresses_[peer] = transportContext_->createPair(peer)->address().bytes();
    }

    /* Where this rank listens for each of its peers, one after the other. */
    bytes_type addresses() const
    {
        bytes_type all;
        for (const auto &own : own_addresses_)
            all.insert(all.end(), own.second.begin(), own.second.end());
        return all;
    }

    /* Runs one of the halves. `theirs` comes from the ranks' addresses(). */
    void connect(const std::vector<bytes_type> &theirs, bool calling)
    {
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank) continue;
            bytes_type address = address_of(theirs, peer);
            if (calls(own_addresses_.at(peer), address) != calling) continue;
            connecting_ = peer;
            try {
                getPair(peer)->connect(address);
            } catch (const std::exception &error) {
                throw no_way(STATUS_UNAVAILABLE, ": " + plain_message(error));
            }
        }
        connecting_ = -1;
    }

    /* "rank 0 cannot reach rank 2", while it connects, or has failed to. */
    join_error no_way(enum status_code code, const std::string &why) const
    {
        int peer = connecting_;
        if (peer < 0) return join_error(code, "the connections took too long");
        return join_error(code,
                          "rank " + std::to_string(rank) + " cannot reach rank " +
                              std::to_string(peer) + why,
                          peer);
    }

  private:
    bytes_type address_of(const std::vector<bytes_type> &theirs, int peer) const
    {
        const bytes_type &all = theirs[static_cast<size_t>(peer)];
        size_t each = own_addresses_.at(peer).size();
        if (all.size() != each * static_cast<size_t>(size - 1))
            throw std::runtime_error("rank " + std::to_string(peer) + " gave no address");
        size_t place = static_cast<size_t>(rank < peer ? rank : rank - 1);
        auto begin = all.begin() + static_cast<ptrdiff_t>(place * each);
        return bytes_type(begin, begin + static_cast<ptrdiff_t>(each));
    }

    /* Whether Gloo's Pair::connect connects or waits: the higher address connects. */
    static bool calls(const bytes_type &own, const bytes_type &other)
    {
        gloo::transport::tcp::Address a(own), b(other);
        const struct sockaddr_storage &sa = a.getSockaddr(), &sb = b.getSockaddr();
        if (sa.ss_family == AF_INET6) {
            auto &x = reinterpret_cast<const struct sockaddr_in6 &>(sa);
            auto &y = reinterpret_cast<const struct sockaddr_in6 &>(sb);
            int order = memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr);
            return order != 0 ? order > 0 : x.sin6_port > y.sin6_port;
        }
        auto &x = reinterpret_cast<const struct sockaddr_in &>(sa);
        auto &y = reinterpret_cast<const struct sockaddr_in &>(sb);
        int order = memcmp(&x.sin_addr, &y.sin_addr, sizeof x.sin_addr);
        return order != 0 ? order > 0 : x.sin_port > y.sin_port;
    }

    std::atomic<int> connecting_{-1}; /* the peer */
    std::map<int, bytes_type> own_addresses_; /* by rank; changes once connected */
};

/* The peers may arrive late, within `join_deadline_ns`; connecting then takes little time. No rank
 * leaves before all are connected, so no rank loses a connection that Gloo is still setting up. */
std::shared_ptr<mesh> join(int rank, int world, const std::string &address, const meeting &peers,
                           int64_t join_deadline_ns)
{
    auto made = std::make_shared<std::shared_ptr<mesh>>();
    milliseconds timeout = std::min(time_left(join_deadline_ns), kConnectTime);
    run_apart(peers, now_ns() + to_ns(timeout),
              [=] { *made = std::make_shared<mesh>(rank, world, address, timeout); },
              [] { return join_error(STATUS_DEADLINE_EXCEEDED, "its address took too long"); });
    std::shared_ptr<mesh> context = *made;
    auto theirs = peers.exchange("address", context->addresses(), join_deadline_ns);
    int64_t deadline_ns = now_ns() + to_ns(timeout);
    int64_t exchange_ns = deadline_ns + to_ns(kNamingTime);
    auto late = [=] { return context->no_way(STATUS_DEADLINE_EXCEEDED, ""); };
    run_apart(peers, deadline_ns, [=] { context->connect(theirs, true); }, late);
    peers.exchange("called", {}, exchange_ns);
    run_apart(peers, deadline_ns, [=] { context->connect(theirs, false); }, late);
    peers.exchange("joined", {}, exchange_ns);
    return context;
}

/* Waits for one transfer; `wait` returns false when it was woken by abortWait*. */
template <typename wait_function>
status_t wait_transfer(struct gloo_buffer *buffer, int64_t deadline_ns, wait_function wait)
{
    struct gloo_link *link = buffer->link;
    MUST_ALONE(&link->user);
    std::string problem;
    for (bool done = false; !done;) {
        bool hopeless;
        {
            std::lock_guard<std::mutex> guard(link->lock);
            if (link->quit) break;
            hopeless = link->lost[buffer->peer];
            link->waiting = buffer;
        }
        /* Messages that a lost peer sent before it failed still count. */
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
        /* A timeout makes Gloo close all connections; the peers did not. */
        if (failed && !hopeless && now_ns() >= deadline_ns)
            return status_new(STATUS_DEADLINE_EXCEEDED, "rank %d did not answer in time",
                              buffer->peer);
        if (failed) link->mark_lost(buffer->peer, problem);
        if (failed) break;
        if (done) return NULL;
    }
    return link->error_of(buffer->peer, problem.c_str());
}

template <typename start_function>
status_t start_transfer(struct gloo_buffer *buffer, start_function start)
{
    MUST_ALONE(&buffer->link->user);
    try {
        start();
        return NULL;
    } catch (const std::exception &error) {
        buffer->link->mark_lost(buffer->peer, plain_message(error));
        return buffer->link->error_of(buffer->peer, error.what());
    }
}

} // namespace

status_t gloo_link_new(int rank, int world, const char *address, const char *group,
                       const struct rendezvous *store, int64_t join_ms, struct gloo_link **result)
{
    meeting peers(store, rank, world, group);
    status_t status;
    try {
        signals_blocked blocked;
        auto link = std::make_unique<gloo_link>();
        link->rank = rank;
        link->world = world;
        link->lost.resize(static_cast<size_t>(world));
        link->context = join(rank, world, address, peers, now_ns() + to_ns(milliseconds(join_ms)));
        link->watcher = std::thread(&gloo_link::watch, link.get());
        pthread_setname_np(link->watcher.native_handle(), "gloo-watcher");
        *result = link.release();
        return NULL;
    } catch (const join_error &error) {
        status = status_new(error.code, "rank %d of %d cannot join group %s at address %s: %s",
                            rank, world, group, address, error.what());
        std::string peer = std::to_string(error.peer);
        if (error.peer >= 0) status = status_with(status, {STATUS_PEER_UNREACHED, peer.c_str(), nullptr, 0});
    } catch (const std::exception &error) {
        status =
            status_new(STATUS_UNAVAILABLE, "rank %d of %d cannot join group %s at address %s: %s",
                       rank, world, group, address, plain_message(error).c_str());
    }
    peers.fail(status_message(status));
    return status;
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
        return NULL;
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
        /* The links close their sockets later. */
    }
}
