/* main of fsdpctl. */
#include <signal.h>

#include "client.h"

int main(int count, char **words)
{
    signal(SIGXFSZ, SIG_IGN); /* a file at `ulimit -f`: EFBIG */
    return client_main(count - 1, words + 1);
}
