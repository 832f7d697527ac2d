/* main of fsdpctl. */
#include "client.h"

int main(int count, char **words)
{
    return client_main(count - 1, words + 1);
}
