/* See model_files.h. */
#include "model_files.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

struct buf mnist;

void load_mnist(void)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root ? root : ".", "examples/mnist/net.yaml");
    status_t status = file_read(path, 1 << 20, &mnist);
    ck_assert_msg(!status, "%s", status_message(status));
    free(path);
}

void unload_mnist(void)
{
    buf_deinit(&mnist);
}

struct model *parse(const char *text)
{
    struct model *model = NULL;
    status_t status = model_parse(text, strlen(text), "net.yaml", &model);
    ck_assert_msg(!status, "%s", status_message(status));
    return model;
}

void assert_refused(const char *text, size_t length, const char *message)
{
    struct model *model = NULL;
    status_t status = model_parse(text, length, "net.yaml", &model);
    ck_assert_str_eq(status_message(status), message);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_null(model);
    status_free(status);
}

char *replace(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    ck_assert_msg(at != NULL, "no '%s' in the file", old);
    return mem_printf("%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
}

const char residual[] = "name: Deep\n"
                        "input: [8]\n"
                        "classes: 4\n"
                        "blocks:\n"
                        "  Layer(width, hidden=2 * 4, bias=True):\n"
                        "    modules:\n"
                        "      up: Linear(width, hidden, bias)\n"
                        "      down: Linear(hidden, width)\n"
                        "    forward:\n"
                        "      - output = x + down(relu(up(x)))\n"
                        "  Tower(width, depth):\n"
                        "    modules:\n"
                        "      layers: depth * Layer(width, hidden=4 * width // 2)\n"
                        "    forward:\n"
                        "      - for layer in layers: x = layer(x)\n"
                        "      - output = x\n"
                        "modules:\n"
                        "  first: Sequential(Linear(8, 8), 2 * ReLU(), Layer(8, bias=False))\n"
                        "  towers: ModuleList(Tower(8, 2), Tower(8, depth=1))\n"
                        "  head: Linear(8, 4)\n"
                        "forward:\n"
                        "  - x = self.first(x)\n"
                        "  - for tower in self.towers:\n"
                        "      - y = tower(x)\n"
                        "      - x += y\n"
                        "  - output = head(towers[0].layers[1].up(x))\n"
                        "loss: cross_entropy(output, target)\n";
