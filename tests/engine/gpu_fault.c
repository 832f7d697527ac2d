/*
 * Preloaded by a worker of scripts/gpu-check.sh (LD_PRELOAD): its second launch of a graph is
 * followed by a kernel that writes where no memory is, as a faulty kernel of ours would. The file
 * that FSDPD_STUB_FAIL names must be there, and is removed by the first process that takes it.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char kernel[] = ".version 7.0\n"
                             ".target sm_80\n"
                             ".address_size 64\n"
                             ".visible .entry fault()\n"
                             "{\n"
                             "  .reg .u64 %address;\n"
                             "  .reg .u32 %value;\n"
                             "  mov.u64 %address, 64;\n"
                             "  mov.u32 %value, 1;\n"
                             "  st.global.u32 [%address], %value;\n"
                             "  ret;\n"
                             "}\n";

typedef int launch_graph(void *graph, void *stream);
typedef int load_module(void **module, const void *image);
typedef int get_function(void **function, void *module, const char *name);
typedef int launch_kernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **arguments, void **more);

static void *find(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle != NULL ? dlsym(handle, name) : NULL;
}

static void fault(void *stream)
{
    load_module *load = (load_module *)find("libcuda.so.1", "cuModuleLoadData");
    get_function *get = (get_function *)find("libcuda.so.1", "cuModuleGetFunction");
    launch_kernel *launch = (launch_kernel *)find("libcuda.so.1", "cuLaunchKernel");
    void *module = NULL, *function = NULL;
    int error = load == NULL || get == NULL || launch == NULL ? -1 : load(&module, kernel);
    if (error == 0) error = get(&function, module, "fault");
    if (error == 0) error = launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    fprintf(stderr, "gpu_fault: a write to address 64: %d\n", error);
}

int cudaGraphLaunch(void *graph, void *stream);

int cudaGraphLaunch(void *graph, void *stream)
{
    static int launches;
    const char *path = getenv("FSDPD_STUB_FAIL");
    launch_graph *launch = (launch_graph *)find("libcudart.so.13", "cudaGraphLaunch");
    if (launch == NULL) launch = (launch_graph *)find("libcudart.so.12", "cudaGraphLaunch");
    if (launch == NULL) abort();
    int error = launch(graph, stream);
    if (++launches == 2 && path != NULL && unlink(path) == 0) fault(stream);
    return error;
}
