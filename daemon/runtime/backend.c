/* Loads the CUDA module; see backend.h. */
#include "runtime/backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/switches.h"
#include "config.h"

#define MODULE_NAME "fsdpd-cuda.so"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct backend_table *loaded;

/* ../lib/fsdpd relative to the program, for installations that can be moved. */
static char *beside_program(void)
{
    AUTO_FREE char *program = realpath("/proc/self/exe", NULL);
    char *slash = program != NULL ? strrchr(program, '/') : NULL;
    if (slash != NULL) *slash = '\0';
    return mem_printf("%s/../lib/fsdpd/%s", slash != NULL ? program : "", MODULE_NAME);
}

static char *find_module(void)
{
    const char *directory = switch_get("FSDPD_BACKEND_DIR");
    if (directory != NULL && directory[0] != '\0') return file_path_join(directory, MODULE_NAME);
    char *path = beside_program();
    if (access(path, F_OK) == 0) return path;
    free(path);
    return file_path_join(PKGLIBDIR, MODULE_NAME);
}

static status_t check(const struct backend_table *table, const char *path)
{
    if (table != NULL && table->version == BACKEND_VERSION &&
        strcmp(table->package, PACKAGE_STRING) == 0)
        return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "%s is of another build of fsdpd (%s, interface %u; expected %s, interface "
                      "%d)",
                      path, table != NULL ? table->package : "?",
                      table != NULL ? table->version : 0, PACKAGE_STRING, BACKEND_VERSION);
}

static status_t load(const char *path)
{
    if (access(path, F_OK) != 0)
        return status_new(
            STATUS_UNIMPLEMENTED,
            "this fsdpd has no CUDA backend (there is no %s); use cpu, or install the "
            "backend",
            path);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL)
        return status_new(STATUS_UNAVAILABLE, "the CUDA backend cannot be loaded: %s", dlerror());
    backend_function *function = NULL;
    *(void **)&function = dlsym(module, BACKEND_SYMBOL);
    if (function == NULL)
        return status_new(STATUS_FAILED_PRECONDITION, "%s is not a backend of fsdpd", path);
    const struct backend_table *table = function();
    TRY(check(table, path));
    loaded = table;
    return NULL;
}

status_t backend_load(const struct backend_table **table)
{
    status_t status = NULL;
    pthread_mutex_lock(&lock);
    if (loaded == NULL) {
        AUTO_FREE char *path = find_module();
        status = load(path);
    }
    if (status == NULL) *table = loaded;
    pthread_mutex_unlock(&lock);
    return status;
}
