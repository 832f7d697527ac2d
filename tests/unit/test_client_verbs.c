/* client: the verbs against a scripted daemon: their output, the files that they leave, their exit
 * codes. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "client/client.h"
#include "client/download.h"
#include "client/exit.h"
#include "spec/metric_table.h"
#include "test_client_daemon.h"
#include "tests/testing.h"

static char directory[64];

static void write_file(const char *path, const char *text)
{
    status_t status = file_write_atomic(path, text, strlen(text), 0644);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void set_up(void)
{
    strcpy(directory, "/tmp/test_client.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    char address[128];
    snprintf(address, sizeof address, "unix:%s/socket", directory);
    setenv("FSDPD_ADDRESS", address, 1);
    write_file("job.yaml", "name: mnist\nmodel: {file: net.yaml}\ndata: {dir: d}\n");
    write_file("net.yaml", "modules: {}\n");
    ck_assert_int_eq(mkdir("out", 0755), 0);
    memset(&script, 0, sizeof script);
    script.end = FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
    daemon_start(address);
}

static void tear_down(void)
{
    daemon_stop();
    ck_assert_int_eq(chdir("/"), 0);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    ck_assert_int_eq(system(command), 0);
}

/* ---- running the client ---- */

static char out[262144], err[262144]; /* more than a test reads of a file */

static void slurp(const char *path, char *text)
{
    struct buf bytes = {0};
    status_t status = file_read(path, 262000, &bytes);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    memcpy(text, buf_text(&bytes), bytes.length + 1);
    buf_deinit(&bytes);
}

/* Runs a command line; its output is in out and err. */
static int run(const char *line)
{
    static char words[512];
    char *list[24];
    int count = 0;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) list[count++] = word;
    fflush(NULL);
    int saved_out = dup(1), saved_err = dup(2);
    int new_out = open("stdout", O_RDWR | O_CREAT | O_TRUNC, 0600);
    int new_err = open("stderr", O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(new_out, 1);
    dup2(new_err, 2);
    int code = client_main(count, list);
    fflush(NULL);
    dup2(saved_out, 1);
    dup2(saved_err, 2);
    close(saved_out), close(saved_err), close(new_out), close(new_err);
    slurp("stdout", out);
    slurp("stderr", err);
    return code;
}

static void expect(const char *line, int code)
{
    int got = run(line);
    ck_assert_msg(got == code, "%s: exit code %d, expected %d\n%s%s", line, got, code, out, err);
}

static void expect_in(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in:\n%s", part, text);
}

static int files_in(const char *path)
{
    int count = 0;
    DIR *entries = opendir(path);
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

/* ---- pull ---- */

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(pull_whole)
{
    umask(027);
    expect("pull mnist-1 -o out/file", 0);
    struct buf bytes = {0};
    status_t status = file_read("out/file", 1 << 20, &bytes);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_uint_eq(bytes.length, CHUNKS * CHUNK);
    for (size_t i = 0; i < bytes.length; i++)
        ck_assert_int_eq(bytes.data[i], 'a' + (int)(i / CHUNK));
    buf_deinit(&bytes);
    struct stat info;
    ck_assert_int_eq(stat("out/file", &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0640);
    ck_assert_int_eq(files_in("out"), 1);
    ck_assert_str_eq(out, "out/file: 5.00 kB, the weights of mnist-1 after step 938\n");
    ck_assert_str_eq(err, "");

    /* Again, over the old file through a link: the link and the mode stay. */
    ck_assert_int_eq(chmod("out/file", 0604), 0);
    ck_assert_int_eq(symlink("file", "out/link"), 0);
    expect("pull mnist-1 -o out/link --format json", 0);
    expect_in(out, "\"file\": \"out/link\",\n  \"bytes\": 5000,\n  \"step\": 938,");
    ck_assert_int_eq(lstat("out/link", &info), 0);
    ck_assert(S_ISLNK(info.st_mode));
    ck_assert_int_eq(stat("out/file", &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0604);
    ck_assert_int_eq(files_in("out"), 2);

    expect("pull mnist-1 -o -", 0);
    ck_assert_uint_eq(strlen(out), CHUNKS * CHUNK);
    expect_in(err, "5.00 kB");
    expect("pull mnist-1 -o /dev/null", 0);
}

static const struct {
    enum pull_mode mode;
    const char *options;
    int code;
    const char *message;
} broken_pulls[] = {
    {PULL_CUT, "", 1, "fsdpctl: expected a file of 5000 bytes, found the end after 1000\n"},
    {PULL_BREAK, "", 1, "the worker is gone\n"},
    {PULL_MORE, "", 1, "fsdpctl: expected a file of 5000 bytes, found more\n"},
    {PULL_NO_TOTAL, "", 1,
     "fsdpctl: the first chunk: expected the size of the file in it, found none\n"},
    {PULL_STALL, " --timeout 0.3", 7, "fsdpctl: no message from fsdpd for 0.3 s\n"},
    {PULL_INTERRUPT, "", 128 + SIGTERM, "interrupted by Terminated"},
};

/* Whenever a stream breaks: no half file, and an old one stays unchanged. */
LOOP_TEST(pull_broken, 0, COUNT_OF(broken_pulls))
{
    char line[64];
    script.pull = broken_pulls[_i].mode;
    snprintf(line, sizeof line, "pull mnist-1 -o out/file%s", broken_pulls[_i].options);
    expect(line, broken_pulls[_i].code);
    expect_in(err, broken_pulls[_i].message);
    ck_assert_str_eq(out, "");
    ck_assert_int_eq(files_in("out"), 0);
    write_file("out/file", "old");
    expect(line, broken_pulls[_i].code);
    ck_assert_int_eq(files_in("out"), 1);
    char text[32000];
    slurp("out/file", text);
    ck_assert_str_eq(text, "old");
}

static const char gpt2[] = "{\"model_type\": \"gpt2\"}";

TEST(pull_for_transformers)
{
    script.tensors = true;
    script.hf_config = gpt2;
    expect("pull mnist-1 --format hf -o out/gpt2 --dtype bf16", 0);
    ck_assert_str_eq(
        out, "out/gpt2: 2.61 kB in 2 files, the weights of mnist-1 after step 938, as bf16\n");
    expect_in(err, "gpt2, the model of mnist-1, has no tokenizer's files");
    ck_assert_int_eq(files_in("out"), 1);
    ck_assert_int_eq(files_in("out/gpt2"), 2);
    struct buf bytes = {0};
    ck_assert_ptr_null(file_read("out/gpt2/model.safetensors", 1 << 20, &bytes));
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[1200],\"data_offsets\":[0,2400]}}";
    ck_assert_int_eq(memcmp(bytes.data + 8, header, sizeof header - 1), 0);
    for (size_t i = bytes.length - 2400; i < bytes.length; i += 2)
        ck_assert(bytes.data[i] == (char)0x80 && bytes.data[i + 1] == 0x3f);
    ck_assert_ptr_null(file_read("out/gpt2/config.json", 1 << 20, &bytes));
    ck_assert_ptr_nonnull(strstr(buf_text(&bytes), "\"torch_dtype\": \"bfloat16\""));
    buf_deinit(&bytes);

    expect("pull mnist-1 --format hf -o out/json --format json", 0);
    expect_in(out, "\"file\": \"out/json\"");
    expect("pull mnist-1 -o out/half --dtype bf16", 0);
    expect_in(out, "out/half: 2.5");
    expect("pull mnist-1 --format hf -o out/gpt2", 2);
    expect_in(err, "out/gpt2 is not empty");
    expect("pull mnist-1 --format hf -o -", 2);
    expect("pull mnist-1 --format hf", 2);
    expect_in(err, "expected -o DIR");
    expect("pull mnist-1 -o out/x --max-shard-size 1GB", 2);
    expect_in(err, "--max-shard-size belongs to --format hf");
    expect("pull mnist-1 --format hf -o out/x --max-shard-size 0", 2);
    expect("pull mnist-1 -o out/x --original models/gemma3", 2);
    expect_in(err, "--original belongs to --format hf");
    expect("pull mnist-1 --format hf -o out/x --original models/gpt2", 6);
    expect_in(err, "trains a whole model, so there is nothing to copy (--original)");
    expect("pull mnist-1 -o out/x --dtype f16", 2);
    script.hf_config = NULL;
    expect("pull mnist-1 --format hf -o out/x", 6);
    expect_in(err, "does not have a model of Hugging Face's transformers");
    script.hf_config = gpt2;
    script.tensors = false;
    expect("pull mnist-1 --format hf -o out/x", 1);
    expect_in(err, "the state_dict that fsdpd sent: safetensors: a header of");
    ck_assert_int_eq(files_in("out"), 3);
}

TEST(pull_copies_what_is_beside_the_weights)
{
    char text[32000];
    script.tensors = true;
    script.hf_config = gpt2;
    script.beside = "{\"model\": {}}\n";
    expect("pull mnist-1 --format hf -o out/a", 0);
    expect_in(out, " in 3 files");
    ck_assert_str_eq(err, "");
    slurp("out/a/tokenizer.json", text);
    ck_assert_str_eq(text, script.beside);
    script.beside_name = "additional_chat_templates/tools.jinja";
    expect("pull mnist-1 --format hf -o out/b", 0);
    slurp("out/b/additional_chat_templates/tools.jinja", text);
    ck_assert_str_eq(text, script.beside);
    script.tensors = false; /* nothing is left of a pull that fails */
    expect("pull mnist-1 --format hf -o out/c", 1);
    ck_assert_int_eq(files_in("out"), 2);
    script.tensors = true;
    script.beside_name = "../tokenizer.json";
    expect("pull mnist-1 --format hf -o out/d", 0);
    expect_in(err, "the daemon offers '../tokenizer.json' of 14 bytes, which is no file of");
    expect_in(out, " in 2 files");
    script.beside_name = NULL;
    script.beside_changes = true;
    expect("pull mnist-1 --format hf -o out/e", 0);
    expect_in(err, "not copied: tokenizer.json changed while it was read");
    expect_in(out, " in 2 files");
}

/* Whenever a stream breaks, nothing of the directory is left. */
LOOP_TEST(pull_for_transformers_broken, 0, COUNT_OF(broken_pulls))
{
    char line[96];
    script.tensors = true;
    script.hf_config = gpt2;
    script.pull = broken_pulls[_i].mode;
    snprintf(line, sizeof line, "pull mnist-1 --format hf -o out/dir%s", broken_pulls[_i].options);
    expect(line, broken_pulls[_i].code);
    expect_in(err, broken_pulls[_i].message);
    ck_assert_int_eq(files_in("out"), 0);
    snprintf(line, sizeof line, "pull mnist-1 --dtype bf16 -o out/file%s",
             broken_pulls[_i].options);
    expect(line, broken_pulls[_i].code);
    ck_assert_int_eq(files_in("out"), 0);
}

TEST(pull_refused)
{
    expect("pull mnist-1", 2);
    expect_in(err, "pull: expected -o FILE, for example -o mnist-1.safetensors");
    expect("pull mnist-1 -o out", 2);
    expect_in(err, "out is a directory");
    expect("pull mnist-1 -o nowhere/file", EXIT_NOT_FOUND);
    expect_in(err, "cannot write nowhere/file: No such file or directory");
    expect("pull mnist-1 -o /dev/full", 1);
    expect_in(err, "cannot write /dev/full: No space left on device");
    script.refuse = STATUS_FAILED_PRECONDITION;
    expect("pull mnist-1 -o out/file", 6);
    ck_assert_int_eq(files_in("out"), 0);
    expect_in(err, "refused ?[31mas the script says");
}

/* ---- watch and submit ---- */

static const char whole_story[] = "mnist-1 QUEUED: because the script says so\n"
                                  "mnist-1 RUNNING: because the script says so\n"
                                  "step 10/40  loss 0.3333  5,000 samples/s  30.0s left\n"
                                  "step 20/40  loss 0.2500  5,000 samples/s  30.0s left\n"
                                  "Train Epoch: 1 \tLoss: 0.2341\n"
                                  "Test set: Average loss: 0.0573, Accuracy: 9812/10000 (98.12%)\n"
                                  "mnist-1 SUCCEEDED: because the script says so\n";

TEST(watch_to_the_end)
{
    expect("watch mnist-1", 0);
    ck_assert_str_eq(out, whole_story);
    ck_assert_str_eq(err, "next: fsdpctl pull mnist-1 -o mnist-1.safetensors\n");
    expect("watch mnist-1 -o json", 0);
    int lines = 0;
    for (const char *c = out; *c; c++) lines += *c == '\n';
    ck_assert_int_eq(lines, EVENTS);
    ck_assert_int_eq(strncmp(out, "{\"sequence\":1,", 14), 0);
    expect_in(out, "\"epoch\":{\"epoch\":1,\"train_loss\":0.2341,\"test_loss\":0.0573,");
    script.end = FSDPD__V1__JOB_STATE__JOB_STATE_FAILED;
    expect("watch mnist-1", EXIT_JOB_FAILED);
    expect_in(err, "fsdpctl: mnist-1 FAILED: because the script says so\n");
    script.end = FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED;
    expect("watch mnist-1 -o json", EXIT_JOB_CANCELLED);
    expect("watch other", EXIT_NOT_FOUND);
    ck_assert_str_eq(err, "fsdpctl: there is no job 'other'\n");
}

/* The end of an epoch has its own step, never that of another row. */
TEST(ends_of_epochs)
{
    expect("metrics mnist-1 --csv", 0);
    expect_in(out, ",step,460,0,");
    expect_in(out, ",epoch,471,1,");
    for (size_t i = 0; i < metric_count(); i++) expect_in(out, metric_table[i].name);
    expect_in(out, ",epoch,589,1.25,");
    expect("metrics mnist-1", 0);
    ck_assert_str_eq(out, "ATTEMPT  STEP  EPOCH    LOSS  LR  GRAD NORM  STEP TIME  EXPOSED  PER "
                          "SECOND  MEMORY  PEAK\n"
                          "      1   460  0.000  0.0000   0          -          -        -         "
                          "  -     0 B   0 B\n"
                          "      1   471  1.000  0.0000                                            "
                          "                   "
                          "end of epoch\n"
                          "      1   589  1.250  0.0000                                            "
                          "                   "
                          "end of epoch\n");
}

/* A broken stream continues where it stopped: nothing twice, nothing missing. */
LOOP_TEST(watch_reconnects, 0, 2)
{
    script.break_watch_after = _i == 0 ? 3 : 4;
    script.restart = _i == 1;
    expect("watch mnist-1 --timeout 60", 0);
    ck_assert_str_eq(out, whole_story);
    ck_assert_int_eq(script.watches, 2);
    /* A server that goes away may lose what it had not sent yet. */
    if (!script.restart) ck_assert_uint_eq(script.asked_after, 3);
    else ck_assert_uint_le(script.asked_after, 4);
    expect_in(err, "fsdpctl: lost fsdpd (");
}

TEST(watch_gives_up)
{
    script.break_watch_after = 3;
    script.restart = true;
    expect("watch mnist-1 --timeout 0.2", EXIT_UNREACHABLE);
    expect_in(err, "fsdpd did not come back within --timeout");
}

LOOP_TEST(watch_detaches, 0, 2)
{
    script.interrupt_watch = true;
    expect(_i == 0 ? "watch mnist-1" : "submit job.yaml --wait", 128 + SIGINT);
    expect_in(err, "detached; mnist-1 continues: fsdpctl watch mnist-1");
    expect_in(out, "mnist-1 RUNNING");
}

/* A stream without messages may break like any other; if it held for a while, the daemon works. */
TEST(logs_reconnect)
{
    script.break_logs = true;
    expect("logs mnist-1 -f --timeout 60", 0);
    ck_assert_int_eq(script.logs, 3);
    const char *first = strstr(out, "number=1\n");
    ck_assert_ptr_nonnull(first);
    expect_in(first, "number=2\n");
    expect_in(err, "fsdpctl: lost fsdpd (the stream was reset); waiting for it\n");
    /* A client that does not follow gets the error. */
    script.logs = 0;
    expect("logs mnist-1", EXIT_FAILED);
    expect("logs other -f", EXIT_NOT_FOUND);
    expect("logs mnist-1 -f --address unix:nowhere.sock", EXIT_UNREACHABLE);
}

TEST(submit)
{
    expect("submit job.yaml --set train.epochs=3", 0);
    ck_assert_str_eq(out, "mnist-1\n");
    ck_assert_str_eq(err, "next: fsdpctl watch mnist-1\n");
    ck_assert_str_eq(script.id, "");
    ck_assert_uint_eq(script.epochs, 3);
    ck_assert_str_eq(script.data_dir, "d");
    expect("submit job.yaml --id mine -v", 0);
    ck_assert_str_eq(out, "mine\n");
    expect_in(err, "  (fc1): Linear()\n");
    ck_assert_str_eq(script.id, "mine");
    expect("submit job.yaml -o json", 0);
    expect_in(out, "{\n  \"id\": \"mnist-1\",");
    expect_in(out, "\n  \"state\": \"QUEUED\",");

    expect("submit job.yaml --wait", 0);
    expect_in(err, "Net(\n  (fc1): Linear()\n)\n\n0 parameters, full_shard over 2 workers\n");
    expect_in(out, whole_story);
    script.end = FSDPD__V1__JOB_STATE__JOB_STATE_FAILED;
    expect("submit job.yaml --wait -o json", EXIT_JOB_FAILED);
    ck_assert_int_eq(out[0], '{');
    expect_in(err, "fsdpctl: mnist-1 FAILED: because the script says so\n");
}

TEST(submit_refused)
{
    expect("submit missing.yaml", EXIT_NOT_FOUND);
    expect_in(err, "cannot open missing.yaml");
    expect("submit job.yaml --set train.epoch=3", EXIT_USAGE);
    ck_assert_str_eq(err, "fsdpctl: --set train.epoch=3: train.epoch: unknown key; did you mean "
                          "train.epochs?\n");
    expect("plan job.yaml --set workers=0", EXIT_USAGE);
    /* The message names the option as typed, not the key that it overrides. */
    expect("submit job.yaml --priority 5000", EXIT_USAGE);
    expect_in(err, "fsdpctl: --priority 5000: priority: expected an integer");
    expect("submit job.yaml --start-by soon", EXIT_USAGE);
    expect_in(err, "fsdpctl: --start-by soon: deadline.start: ");
    expect("submit job.yaml --set model.file=missing.yaml", EXIT_NOT_FOUND);
    expect_in(err, "--set model.file=missing.yaml: model.file: cannot open missing.yaml");
    static const struct {
        enum status_code refusal;
        int code;
    } cases[] = {
        {STATUS_INVALID_ARGUMENT, 1},    {STATUS_PERMISSION_DENIED, 4},
        {STATUS_NOT_FOUND, 5},           {STATUS_ALREADY_EXISTS, 6},
        {STATUS_RESOURCE_EXHAUSTED, 10}, {STATUS_DEADLINE_EXCEEDED, 7},
        {STATUS_UNAVAILABLE, 1}, /* fsdpd answered */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        script.refuse = cases[i].refusal;
        expect("submit job.yaml", cases[i].code);
        ck_assert_str_eq(err, "fsdpctl: refused ?[31mas the script says\n");
        expect("plan job.yaml", cases[i].code);
        expect("show mnist-1", cases[i].code);
        ck_assert_str_eq(out, "");
    }
}

/* ---- the others ---- */

TEST(other_verbs)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"list", "mnist-1  SUCCEEDED"},
        {"list -o json", "[\n  {\n    \"id\": \"mnist-1\","},
        {"workers", "host/cpu:0"},
        {"workers -o json", "[\n  {\n    \"id\": \"host/cpu:0\","},
        {"status", "daemon      fsdpd 9.8.7 at unix:"},
        {"status", "jobs        1: 1 SUCCEEDED\n"},
        {"status -o json", "\"SUCCEEDED\": 1"},
        {"version", "fsdpd    9.8.7 (API v1)\n"},
        {"version -o json", "\"version\": \"9.8.7\""},
        {"show mnist-1", "reason      because the script says so\n"},
        {"show mnist-1 -o json", "\"steps\": 40,"},
        {"wrap show mnist-1", "  (fc1): Linear()\n"},
        {"wrap show mnist-1 -o json", "\"module_tree\": \"Net(\\n"},
        {"cancel mnist-1", "mnist-1 RUNNING"},
        {"cancel mnist-1 -o json", "\"state\": \"RUNNING\""},
        {"checkpoint mnist-1", "checkpoint of step 20: 1.50 kB in /data/step-20?[0m\n"},
        {"checkpoint mnist-1 -o json", "{\n  \"step\": 20,"},
        {"plan job.yaml", "0 parameters, full_shard over 2 workers"},
        {"plan job.yaml -o json", "\"strategy\": \"full_shard\""},
        {"help submit", "usage: fsdpctl submit FILE"},
        {"completion bash", "complete -o default -F _fsdpctl fsdpctl"},
        {"completion zsh", "#compdef fsdpctl"},
        {"completion fish", "complete -c fsdpctl -f"},
        {"--version", "fsdpctl "},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect(cases[i].line, 0);
        expect_in(out, cases[i].part);
    }
    expect("wrap change mnist-1", EXIT_USAGE);
    expect("completion tcsh", EXIT_USAGE);
    expect("help nothing", EXIT_USAGE);
    expect("", EXIT_USAGE);
    script.refuse = STATUS_PERMISSION_DENIED;
    expect("status", EXIT_NOT_PERMITTED);
    expect("version", EXIT_NOT_PERMITTED);
    expect_in(out, "fsdpctl  ");
}

/* What takes longest comes first, and with its part of its lane's time. */
TEST(trace_of_a_step)
{
    script.trains = true;
    expect("trace mnist-1 --steps 1 -o out/trace.json", EXIT_DONE);
    expect_in(out, "out/trace.json: steps 7 to 7 of mnist-1 on 1 rank; open it in Perfetto\n\n"
                   "WHAT        LANE     PER STEP ");
    expect_in(out, " OF LANE\nlinear      compute         1 ");
    expect_in(out, " 75.0%\nall_gather  comm            1 ");
    expect_in(out, "  100.0%\ngelu        compute         1 ");
    expect_in(out, " 25.0%\n");
    ck_assert_int_eq(files_in("out"), 1);
}

/* A trace that cannot be had leaves no file. */
TEST(trace_refused)
{
    expect("trace mnist-1 -o out/trace.json", EXIT_CONFLICT);
    ck_assert_str_eq(err, "fsdpctl: it does not train\n");
    ck_assert_uint_eq(script.traced, 10); /* by default */
    expect("trace mnist-1 --steps 3 -o out/trace.json", EXIT_CONFLICT);
    ck_assert_uint_eq(script.traced, 3);
    ck_assert_int_eq(files_in("out"), 0);
}

/* After a job that fails the others follow; its code is the result. */
TEST(several_jobs)
{
    expect("cancel mnist-1 gone mnist-2", EXIT_NOT_FOUND);
    ck_assert_str_eq(out, "mnist-1 RUNNING: because the script says so\n"
                          "mnist-2 RUNNING: because the script says so\n");
    ck_assert_str_eq(err, "fsdpctl: gone: there is no such job\n");
    expect("cancel gone mnist-1 -o json", EXIT_NOT_FOUND);
    ck_assert_int_eq(strncmp(out, "[\n  {\n    \"id\": \"mnist-1\",", 24), 0);
    expect_in(out, "\n  }\n]\n");
    ck_assert_ptr_null(strstr(out, "\n  },"));
    expect("cancel gone gone -o json", EXIT_NOT_FOUND);
    ck_assert_str_eq(out, "[]\n");
    expect("forget mnist-1 mnist-2", 0);
    ck_assert_str_eq(out, "mnist-1 forgotten\nmnist-2 forgotten\n");
    expect("forget mnist-1 -o json", 0);
    ck_assert_str_eq(out, "{}\n");

    expect("cancel --label sweep=7", 0);
    ck_assert_str_eq(out, "mnist-1 RUNNING: because the script says so\n");
    ck_assert_str_eq(script.label, "7");
    ck_assert_uint_eq(script.states, 4); /* those that are not over */
    ck_assert_uint_eq(script.limit, 0);  /* all, not as many as a table shows */
    script.no_jobs = true;
    expect("cancel --label sweep=8", EXIT_NOT_FOUND);
    ck_assert_str_eq(err, "fsdpctl: cancel: no job that is active has this label\n");
    expect("cancel mnist-1 --label sweep=7", EXIT_USAGE);
    expect_in(err, "cancel: expected JOB or --label, found both");
    expect("cancel", EXIT_USAGE);
    expect("cancel --label sweep", EXIT_USAGE);
}

/* Files that it names are relative to the working directory. */
TEST(submit_standard_input)
{
    int saved = dup(0), file = open("job.yaml", O_RDONLY);
    dup2(file, 0);
    expect("submit - --set train.epochs=3", 0);
    ck_assert_str_eq(script.data_dir, "d");
    ck_assert_uint_eq(script.epochs, 3);
    write_file("bad.yaml", "nmae: x\n");
    int bad = open("bad.yaml", O_RDONLY);
    dup2(bad, 0);
    expect("plan -", EXIT_USAGE);
    ck_assert_str_eq(err, "fsdpctl: standard input:1: nmae: unknown key; did you mean name?\n");
    dup2(saved, 0);
    close(saved), close(file), close(bad);
}

/* Without a terminal only --color brings colours. */
TEST(colours)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"list", "\033[32mSUCCEEDED\033[0m"},
        {"show mnist-1", "state       \033[1;32mRUNNING\033[0m for "},
        {"cancel mnist-1", "mnist-1 \033[1;32mRUNNING\033[0m: "},
        {"watch mnist-1", "mnist-1 \033[33mQUEUED\033[0m: "},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char line[64];
        snprintf(line, sizeof line, "%s --color always", cases[i].line);
        expect(line, 0);
        expect_in(out, cases[i].part);
        expect(cases[i].line, 0);
        ck_assert_ptr_null(strchr(out, '\033'));
    }
    expect("list --color sometimes", EXIT_USAGE);
    expect_in(err, "--color: expected auto, always or never, found 'sometimes'");
}

/* All pages, in the daemon's order. */
TEST(workers_of_all_pages_are_shown)
{
    static const char *const lines[] = {"workers",           "workers -o json",        "status",
                                        "status -o json",    "top --rounds 1 -o json", "drain host",
                                        "drain host -o json"};
    script.more_workers = true;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        expect(lines[i], 0);
        expect_in(out, "host/cpu:2");
        expect_in(strstr(out, "host/cpu:2"), "host/cpu:10");
    }
}

/* The oldest comes first, though the first page has the newest. */
TEST(jobs_of_all_pages_are_shown)
{
    static const char *const lines[] = {"list", "list -o json", "list -n 2", "list -n 0"};
    script.more_jobs = true;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        expect(lines[i], 0);
        expect_in(out, "mnist-1");
        expect_in(strstr(out, "mnist-1"), "mnist-2");
        ck_assert_ptr_null(strstr(err, "not shown"));
    }
    ck_assert_uint_eq(script.limit, 0);
    expect("list -n 1", 0);
    expect_in(out, "mnist-2");
    ck_assert_ptr_null(strstr(out, "mnist-1"));
    expect_in(err, "1 older job is not shown\n");
    expect("list -n 5", 0);
    ck_assert_uint_eq(script.limit, 4); /* that are left of the 5 */
}

TEST(queue_is_longer_than_shown)
{
    script.queued = 12;
    expect("status", 0);
    expect_in(out, "jobs        13: 12 QUEUED, 1 SUCCEEDED\n");
    expect_in(out, "and 11 more in the queue, submitted earlier\n");
    expect_in(strstr(out, "mnist-1 "), "mnist-9 "); /* the queue comes last */
    expect("top --rounds 1", 0);
    expect_in(out, "1 worker, 0 busy, 11 older jobs not shown, 12 QUEUED\n");
    expect_in(strstr(out, " mnist-1 "), " mnist-9 QUEUED");
    expect("list --limit 1000001", EXIT_USAGE);
    expect_in(err, "--limit: expected 0 to 1000000, found '1000001'");
    expect("priority mnist-1 -1001", EXIT_USAGE);
    expect_in(err, "priority: expected -1000 to 1000, found '-1001'");
}

TEST(unreachable)
{
    expect("list --address unix:nowhere.sock", EXIT_UNREACHABLE);
    expect_in(err, "nowhere.sock: there is no such socket; is fsdpd running?");
    write_file("plain", "");
    expect("list --address unix:plain", EXIT_UNREACHABLE);
    expect_in(err, "no process listens");
    expect("watch mnist-1 --address unix:nowhere.sock", EXIT_UNREACHABLE);
    expect("pull mnist-1 -o out/file --address unix:nowhere.sock", EXIT_UNREACHABLE);
    ck_assert_int_eq(files_in("out"), 0);
    expect("list --address ::::", EXIT_USAGE);
    if (geteuid() == 0) return; /* root may use any socket */
    ck_assert_int_eq(chmod("socket", 0), 0);
    expect("list", EXIT_NOT_PERMITTED);
}

/* On a terminal there is a bar, and it disappears before the lines of an epoch are printed. */
LOOP_TEST(terminal, 0, 2)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(slave, 0);
    struct winsize size = {.ws_row = 24, .ws_col = 60};
    ck_assert_int_eq(ioctl(slave, TIOCSWINSZ, &size), 0);
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C", 1); /* plain characters, in any environment */
    if (_i == 1) setenv("NO_COLOR", "1", 1);
    int saved = dup(2), saved_out = dup(1);
    int file = open("stdout", O_RDWR | O_CREAT | O_TRUNC, 0600);
    fflush(NULL);
    dup2(slave, 2);
    dup2(file, 1);
    char *words[] = {(char *)"watch", (char *)"mnist-1"};
    int code = client_main(2, words);
    fflush(NULL);
    dup2(saved, 2);
    dup2(saved_out, 1);
    ck_assert_int_eq(code, 0);
    /* A terminal passes on the output in pieces, at any time. */
    char text[4096] = "";
    size_t length = 0;
    struct pollfd ready = {.fd = master, .events = POLLIN};
    while (strstr(text, "\r\033[K") == NULL && length + 1 < sizeof text &&
           poll(&ready, 1, 60000) == 1) {
        ssize_t more = read(master, text + length, sizeof text - 1 - length);
        ck_assert_int_gt(more, 0);
        length += (size_t)more;
        text[length] = '\0';
    }
    expect_in(text, _i == 1 ? "\r[==" : "\r[\033[32m==");
    expect_in(text, "10/40  loss 0.3333");
    expect_in(text, "\r\033[K");
    ck_assert_int_eq(strstr(text, "\033[32m") != NULL, _i == 0);
    slurp("stdout", out);
    expect_in(out, "Train Epoch: 1 \tLoss: 0.2341\n");
    ck_assert_ptr_null(strstr(out, "step 10/40")); /* the bar shows it */
    close(master), close(slave), close(saved), close(saved_out), close(file);
}

/* ---- the file of a pull, alone ---- */

TEST(downloads)
{
    struct download download;
    status_t status = download_begin(&download, "out/file");
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(files_in("out"), 1);
    ck_assert_int_ne(access("out/file", F_OK), 0);
    Fsdpd__V1__PullStateDictResponse chunk = FSDPD__V1__PULL_STATE_DICT_RESPONSE__INIT;
    chunk.total_size = 3;
    chunk.data.data = (uint8_t *)"abc";
    chunk.data.len = 2;
    status = download_add(&download, &chunk);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    status = download_finish(&download);
    ck_assert_int_eq(status_code(status), STATUS_DATA_LOSS);
    status_free(status);
    download_deinit(&download);
    download_deinit(&download);
    ck_assert_int_eq(files_in("out"), 0);

    /* A chunk whose size would overflow a sum. */
    status = download_begin(&download, "out/file");
    ck_assert_msg(status == NULL, "%s", status_message(status));
    chunk.total_size = UINT64_MAX;
    status = download_add(&download, &chunk);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    download.total = 2;
    chunk.data.len = 1;
    status = download_add(&download, &chunk);
    ck_assert_int_eq(status_code(status), STATUS_DATA_LOSS);
    status_free(status);
    download_deinit(&download);
    ck_assert_int_eq(files_in("out"), 0);
}
