/* Connections; see connections.h. The kernel's tables have all sockets of the network namespace, so
 * the process's own descriptors select from them. */
#include "base/connections.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

enum { ESTABLISHED = 1, SYN_SENT = 2 };

struct inodes {
    unsigned long *of;
    int count, capacity;
};

static int compare(const void *a, const void *b)
{
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return (x > y) - (x < y);
}

static struct inodes own_sockets(void)
{
    struct inodes own = {0};
    DIR *descriptors = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (descriptors != NULL && (entry = readdir(descriptors)) != NULL) {
        char target[64];
        unsigned long inode;
        ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = '\0';
        if (sscanf(target, "socket:[%lu]", &inode) != 1) continue;
        MEM_GROW(own.of, own.count, own.capacity);
        own.of[own.count++] = inode;
    }
    if (descriptors != NULL) closedir(descriptors);
    if (own.count > 0) qsort(own.of, (size_t)own.count, sizeof *own.of, compare);
    return own;
}

/* From the table's form: 32-bit words in hexadecimal, each as the host stores it. */
static void write_address(const char *hex, unsigned port, char text[static CONNECTION_TEXT])
{
    unsigned char address[16] = {0};
    char name[INET6_ADDRSTRLEN] = "?";
    size_t words = strlen(hex) / 8;
    for (size_t i = 0; i < words && i < 4; i++) {
        unsigned word = 0;
        sscanf(hex + 8 * i, "%8x", &word);
        memcpy(address + 4 * i, &word, 4);
    }
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    bool four = words == 1 || memcmp(address, mapped, sizeof mapped) == 0;
    inet_ntop(four ? AF_INET : AF_INET6, words > 1 && four ? address + 12 : address, name,
              sizeof name);
    snprintf(text, CONNECTION_TEXT, four ? "%s:%u" : "[%s]:%u", name, port);
}

static bool parse(const char *line, const struct inodes *own, struct connection *connection)
{
    char local[33], peer[33];
    unsigned local_port, peer_port, state, sent, received, timer, retransmissions, probes;
    unsigned long when, inode;
    if (sscanf(line, " %*d: %32[0-9A-F]:%x %32[0-9A-F]:%x %x %x:%x %x:%lx %x %*u %u %lu", local,
               &local_port, peer, &peer_port, &state, &sent, &received, &timer, &when,
               &retransmissions, &probes, &inode) != 12)
        return false;
    if (state != ESTABLISHED && state != SYN_SENT) return false;
    if (bsearch(&inode, own->of, (size_t)own->count, sizeof *own->of, compare) == NULL)
        return false;
    write_address(local, local_port, connection->local);
    write_address(peer, peer_port, connection->peer);
    connection->unsent_bytes = sent;
    /* What could not be sent at all, as this host's link was down, is only probed for. */
    connection->retransmissions = retransmissions > probes ? retransmissions : probes;
    return true;
}

static int read_table(const char *path, const struct inodes *own, struct connection *connections,
                      int count)
{
    char line[512];
    FILE *table = fopen(path, "re");
    while (table != NULL && count < CONNECTIONS_MAX && fgets(line, sizeof line, table) != NULL)
        count += parse(line, own, &connections[count]);
    if (table != NULL) fclose(table);
    return count;
}

int connections_look(struct connection **connections)
{
    struct inodes own = own_sockets();
    *connections = mem_alloc_array(CONNECTIONS_MAX, sizeof **connections);
    int count = 0;
    if (own.count > 0) {
        count = read_table("/proc/self/net/tcp", &own, *connections, count);
        count = read_table("/proc/self/net/tcp6", &own, *connections, count);
    }
    free(own.of);
    return count;
}
