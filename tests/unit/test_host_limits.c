/* What control groups of both versions leave a process: nested, changing, and seen from inside a
 * container. */
#include <check.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/mem.h"
#include "tests/testing.h"

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNTS(top)                                                                             \
    "31 30 0:27 " top " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"            \
    "32 30 0:28 " top " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                      \
    "33 30 0:29 " top " /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"

static char root[64];

static void write_text(const char *name, const char *text)
{
    char *path = file_path_join(root, name), *directory = file_path_directory(path);
    ck_assert_ptr_null(file_make_directory(directory, 0700));
    ck_assert_ptr_null(file_write_atomic(path, text, strlen(text), 0600));
    free(directory);
    free(path);
}

static void setup(void)
{
    strcpy(root, "/tmp/test_host_limits.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    setenv("FSDPD_HOST_ROOT", root, 1);
    write_text("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n");
}

static void teardown(void)
{
    char *command = mem_printf("rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

static int usable(void)
{
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

TESTS_BELOW(.set_up = setup, .tear_down = teardown);

TEST(without_control_groups_the_host_counts)
{
    ck_assert_uint_eq(host_memory_available(), UINT64_C(8192000000));
    ck_assert_uint_eq(host_memory_most(), UINT64_C(9216000000));
    ck_assert_int_eq(host_processors(), usable());
}

TEST(page_cache_of_a_group_is_available)
{
    write_text("proc/self/cgroup", "1:cpu:/\n0::/system.slice/fsdpd.service\n");
    write_text("proc/self/mountinfo", V2_MOUNT);
    ck_assert_uint_eq(host_memory_available(), UINT64_C(8192000000));
#define GROUP "sys/fs/cgroup/system.slice/fsdpd.service/"
    write_text(GROUP "memory.max", "max\n");
    write_text(GROUP "memory.current", "5000000000\n");
    ck_assert_uint_eq(host_memory_available(), UINT64_C(8192000000));
    write_text(GROUP "memory.max", "6000000000\n");
    ck_assert_uint_eq(host_memory_available(), UINT64_C(1000000000));
    ck_assert_uint_eq(host_memory_most(), UINT64_C(6000000000));
    write_text(GROUP "memory.stat",
               "anon 700000000\nfile 4200000000\nactive_file 1100000000\n"
               "inactive_file 3000000000\nslab_reclaimable 50000000\nworkingset_refault_file 7\n");
    ck_assert_uint_eq(host_memory_available(), UINT64_C(5150000000));
    write_text(GROUP "memory.stat", "inactive_file 9000000000\n"); /* never more than the limit */
    ck_assert_uint_eq(host_memory_available(), UINT64_C(6000000000));
    write_text(GROUP "memory.high", "5500000000\n");
    ck_assert_uint_eq(host_memory_available(), UINT64_C(5500000000));
}

TEST(the_least_of_all_groups_counts_and_changes_do_at_once)
{
    write_text("proc/self/cgroup", "0::/a/b/c\n");
    write_text("proc/self/mountinfo", V2_MOUNT);
    write_text("sys/fs/cgroup/a/b/c/memory.max", "5000\n");
    write_text("sys/fs/cgroup/a/b/c/memory.current", "1000\n");
    write_text("sys/fs/cgroup/a/memory.max", "8000\n");
    write_text("sys/fs/cgroup/a/memory.current", "7000\n"); /* others' */
    write_text("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
    write_text("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    ck_assert_uint_eq(host_memory_available(), 1000);
    ck_assert_uint_eq(host_memory_most(), 5000);
    ck_assert_int_eq(host_processors(), 1);
    write_text("sys/fs/cgroup/a/memory.max", "3000\n"); /* below what is used */
    ck_assert_uint_eq(host_memory_available(), 0);
    ck_assert_uint_eq(host_memory_most(), 3000);
    write_text("sys/fs/cgroup/a/memory.max", "max\n");
    write_text("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    ck_assert_uint_eq(host_memory_available(), 4000);
    ck_assert_int_eq(host_processors(), smaller(2, usable())); /* rounded up */
    write_text("sys/fs/cgroup/a/b/c/cpu.max", "20000 100000\n");
    ck_assert_int_eq(host_processors(), 1);            /* never 0 */
    write_text("proc/self/cgroup", "0::/elsewhere\n"); /* it was moved */
    ck_assert_uint_eq(host_memory_available(), UINT64_C(8192000000));
    ck_assert_int_eq(host_processors(), usable());
}

TEST(version_1_has_a_hierarchy_for_each_controller)
{
    write_text(
        "proc/self/cgroup",
        "9:name=systemd:/s\n5:memory:/slurm/job\n3:cpuset:/\n2:cpu,cpuacct:/slurm/cpu\n0::/u\n");
    write_text("proc/self/mountinfo",
               "1 0 8:1 / / rw - ext4 /dev/sda rw\n" V1_MOUNTS(
                   "/") "34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
#define MEMORY "sys/fs/cgroup/memory/"
    write_text(MEMORY "memory.limit_in_bytes", "9223372036854771712\n");
    write_text(MEMORY "memory.usage_in_bytes", "7000000000\n");
    write_text(MEMORY "slurm/job/memory.limit_in_bytes", "4000\n");
    write_text(MEMORY "slurm/job/memory.usage_in_bytes", "3000\n");
    ck_assert_uint_eq(host_memory_available(), 1000);
    ck_assert_uint_eq(host_memory_most(), 4000);
    write_text(MEMORY "slurm/job/memory.stat",
               "inactive_file 400\nactive_file 1\ntotal_inactive_file 500\ntotal_active_file 20\n");
    ck_assert_uint_eq(host_memory_available(), 1520);
    write_text(MEMORY "slurm/memory.limit_in_bytes", "2000\n");
    write_text(MEMORY "slurm/memory.usage_in_bytes", "1900\n");
    ck_assert_uint_eq(host_memory_available(), 100);
    ck_assert_uint_eq(host_memory_most(), 2000);
#define CPU "sys/fs/cgroup/cpu,cpuacct/slurm/cpu/"
    write_text(CPU "cpu.cfs_quota_us", "-1\n");
    write_text(CPU "cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(host_processors(), usable());
    write_text(CPU "cpu.cfs_quota_us", "100000\n");
    ck_assert_int_eq(host_processors(), 1);
}

/* A container of version 1 sees its own group as the top of what is mounted. */
TEST(a_mount_may_show_a_hierarchy_from_the_middle)
{
    write_text("proc/self/cgroup", "5:memory:/docker/0abc/inner\n2:cpu,cpuacct:/docker/0abc\n");
    write_text("proc/self/mountinfo", V1_MOUNTS("/docker/0abc"));
    write_text(MEMORY "inner/memory.limit_in_bytes", "6000\n");
    write_text(MEMORY "inner/memory.usage_in_bytes", "1000\n");
    ck_assert_uint_eq(host_memory_available(), 5000);
    write_text(MEMORY "memory.limit_in_bytes", "3000\n");
    write_text(MEMORY "memory.usage_in_bytes", "1000\n");
    ck_assert_uint_eq(host_memory_available(), 2000);
    write_text("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    write_text("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(host_processors(), 1);
    write_text("proc/self/cgroup", "5:memory:/docker/0abcd\n"); /* another's: only the top counts */
    ck_assert_uint_eq(host_memory_available(), 2000);
    write_text("proc/self/cgroup", "0::/../other\n");
    write_text("proc/self/mountinfo", V2_MOUNT);
    write_text("sys/fs/cgroup/memory.max", "700\n");
    write_text("sys/fs/cgroup/memory.current", "200\n");
    ck_assert_uint_eq(host_memory_available(), 500);
}

TEST(lists_of_groups_start_with_the_innermost)
{
    struct cgroups groups;
    write_text("proc/self/cgroup", "0::/a/b\n");
    write_text("proc/self/mountinfo", V2_MOUNT "no mount\n\n1 2 3\n - \n4 5 6 7 8 - cgroup\n");
    cgroups_find("memory", &groups);
    static const char *const expected[] = {"/a/b", "/a", ""};
    ck_assert_int_eq(groups.count, 3);
    for (int i = 0; i < groups.count; i++) {
        char *path = mem_printf("%s/sys/fs/cgroup%s", root, expected[i]);
        ck_assert_str_eq(groups.directories[i], path);
        free(path);
    }
    cgroups_deinit(&groups);
}
