/* The safetensors format and adapter_config.json: round trips, and what is inconsistent. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "hf/peft.h"
#include "hf/safetensors.h"
#include "tests/testing.h"

static uint64_t length_of(const struct buf *file)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | (unsigned char)file->data[i];
    return length;
}

TESTS_BELOW(.timeout = 60);

TEST(round_trip)
{
    char f32[] = "F32", u8[] = "U8", f64[] = "F64";
    struct safetensors_entry entries[] = {
        {.name = mem_strdup("fc1.weight"), .dtype = f32, .dim_count = 2, .dims = {3, 5}},
        {.name = mem_strdup("a \"quoted\\\" \n name \xc3\xa9"),
         .dtype = u8,
         .dim_count = 1,
         .dims = {7}},
        {.name = mem_strdup("empty"), .dtype = f32, .dim_count = 2, .dims = {0, 4}},
        {.name = mem_strdup("scalar"), .dtype = f64, .dim_count = 0},
    };
    const struct safetensors_metadata metadata[] = {{"format", "pt"}, {"step", "12"}};
    struct buf file = {0};
    safetensors_write_header(&file, entries, 4, metadata, 2);
    ck_assert_uint_eq(file.length % 8, 0);
    ck_assert_uint_eq(length_of(&file) + 8, file.length);
    ck_assert_int_eq(file.data[8], '{');
    const uint64_t data = 60 + 7 + 0 + 8;

    struct safetensors_header header;
    uint64_t needed = 0;
    ck_assert_ptr_null(
        safetensors_read_header(file.data, file.length, file.length + data, &header, &needed));
    ck_assert_int_eq(header.count, 4);
    ck_assert_uint_eq(header.data_offset, file.length);
    uint64_t end = 0;
    for (int i = 0; i < 4; i++) {
        ck_assert_str_eq(header.entries[i].dtype, entries[i].dtype);
        ck_assert_int_eq(header.entries[i].dim_count, entries[i].dim_count);
        ck_assert_mem_eq(header.entries[i].dims, entries[i].dims, sizeof entries[i].dims);
        ck_assert_uint_eq(header.entries[i].begin, end);
        ck_assert_uint_eq(entries[i].begin, end);
        ck_assert_uint_eq(header.entries[i].end, entries[i].end);
        end = header.entries[i].end;
    }
    /* An empty tensor and the one after it begin at the same byte. */
    ck_assert_str_eq(header.entries[0].name, entries[0].name);
    ck_assert_str_eq(header.entries[1].name, entries[1].name);
    ck_assert_str_eq(header.entries[2].name, "empty");
    ck_assert_uint_eq(end, data);
    safetensors_header_deinit(&header);

    json_t *root = json_loadb(file.data + 8, file.length - 8, 0, NULL);
    json_t *pairs = json_object_get(root, "__metadata__");
    ck_assert_str_eq(json_string_value(json_object_get(pairs, "format")), "pt");
    ck_assert_str_eq(json_string_value(json_object_get(pairs, "step")), "12");
    json_decref(root);
    for (int i = 0; i < 4; i++) free(entries[i].name);
    buf_deinit(&file);
}

TEST(nothing_at_all)
{
    struct buf file = {0};
    safetensors_write_header(&file, NULL, 0, NULL, 0);
    struct safetensors_header header;
    uint64_t needed;
    ck_assert_ptr_null(
        safetensors_read_header(file.data, file.length, file.length, &header, &needed));
    ck_assert_int_eq(header.count, 0);
    safetensors_header_deinit(&header);
    buf_deinit(&file);
}

static struct buf file_of(const char *json)
{
    struct buf file = {0};
    uint64_t length = strlen(json);
    for (int i = 0; i < 8; i++) buf_add_char(&file, (char)(length >> 8 * i));
    buf_add_text(&file, json);
    return file;
}

TEST(requests_the_bytes_it_needs)
{
    struct buf file = file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}");
    for (size_t size = 0; size <= file.length; size++) {
        struct safetensors_header header = {.count = -7};
        uint64_t needed = 0;
        /* A copy of exactly that size: the sanitizer detects reads past it. */
        char *part = mem_dup(file.data, size);
        status_t status = safetensors_read_header(part, size, file.length + 2, &header, &needed);
        free(part);
        if (size < file.length) {
            ck_assert_int_eq(status_code(status), STATUS_OUT_OF_RANGE);
            ck_assert_uint_eq(needed, size < 8 ? 8 : file.length);
            ck_assert_int_eq(header.count, -7);
            status_free(status);
        } else {
            ck_assert_ptr_null(status);
            safetensors_header_deinit(&header);
        }
    }
    buf_deinit(&file);
}

/* With 8 bytes of data. `says` is part of the message. */
static const struct mistake {
    const char *json, *message;
} mistakes[] = {
    {"", "not a JSON object"},
    {"[]", "not a JSON object"},
    {" {}", "not a JSON object"},
    {"{", "not JSON"},
    {"{}x", "not JSON"},
    {"{}", "end at byte 0"},
    {"{\"a\":1}", "expected dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "expected dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", "expected dtype"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", "unknown dtype"},
    {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", "Expected string, got integer"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "\"shape\" to be an array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "counts"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "counts"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", "counts"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,8],\"data_offsets\":[0,8]}}", "7 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}",
     "larger than any"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
     "larger than any"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
     "not JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "takes 12 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,8]}}", "takes 4 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,8]}}", "takes 0 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":8}}", "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.0,8.0]}}", "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", "ends at byte 12"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "after a gap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "end at byte 4"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     "inside another"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     "inside another"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}",
     "after a gap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     "duplicate"},
    {"{\"__metadata__\":[],\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     "expected an object"},
    {"{\"__metadata__\":{\"step\":1},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
     "}",
     "strings only"},
};

LOOP_TEST(mistakes, 0, COUNT_OF(mistakes))
{
    const struct mistake *mistake = &mistakes[_i];
    struct buf file = file_of(mistake->json);
    struct safetensors_header header = {.count = -7};
    uint64_t needed;
    status_t status =
        safetensors_read_header(file.data, file.length, file.length + 8, &header, &needed);
    ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "%s: %s", mistake->json,
                  status_message(status));
    ck_assert_msg(strstr(status_message(status), mistake->message) != NULL, "%s: %s", mistake->json,
                  status_message(status));
    ck_assert_int_eq(header.count, -7);
    status_free(status);
    buf_deinit(&file);
}

TEST(wrong_lengths)
{
    static const struct {
        uint64_t length, file_size;
    } cases[] = {
        {0, 0}, {0, 7}, {1, 8}, {100000001, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}, {9, 16}, {0, 8},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        unsigned char bytes[8];
        for (int b = 0; b < 8; b++) bytes[b] = (unsigned char)(cases[i].length >> 8 * b);
        struct safetensors_header header;
        uint64_t needed = 0;
        status_t status =
            safetensors_read_header(bytes, sizeof bytes, cases[i].file_size, &header, &needed);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        status_free(status);
    }
}

/* Whatever happens to the bytes of a good header, reading it ends normally or with an error. */
TEST(changed_bytes)
{
    struct buf file = file_of("{\"__metadata__\":{\"format\":\"pt\"},"
                              "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[2,8]}}");
    unsigned state = 1;
    int good = 0, bad = 0;
    for (int i = 0; i < 20000; i++) {
        char *copy = mem_dup(file.data, file.length);
        for (int changes = 1 + i % 3; changes > 0; changes--) {
            state = state * 1664525 + 1013904223;
            copy[8 + (state >> 8) % (file.length - 8)] = (char)(state >> 24);
        }
        struct safetensors_header header;
        uint64_t needed;
        status_t status =
            safetensors_read_header(copy, file.length, file.length + 8, &header, &needed);
        if (status == NULL) {
            good++;
            ck_assert_uint_eq(header.count == 0 ? 8 : header.entries[header.count - 1].end, 8);
            safetensors_header_deinit(&header);
        } else {
            bad++;
            ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
            status_free(status);
        }
        free(copy);
    }
    ck_assert_int_gt(good, 0);
    ck_assert_int_gt(bad, 10000);
    buf_deinit(&file);
}

/* ---- adapters' configurations ---- */

static status_t read_adapter(const char *text, struct peft_config *config, struct buf *notes)
{
    buf_clear(notes);
    return peft_config_read(text, strlen(text), PEFT_CONFIG, config, notes);
}

TEST(an_adapter_is_read_and_written)
{
    struct peft_config config;
    struct buf notes = {0}, written = {0};
    status_t status = read_adapter(
        "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 16, \"lora_dropout\": 0.25,"
        " \"use_rslora\": true, \"fan_in_fan_out\": null, \"target_modules\": [\"q_proj\", "
        "\"v_proj\"],"
        " \"exclude_modules\": [\"h.0.q_proj\"], \"modules_to_save\": [\"lm_head\"],"
        " \"layers_to_transform\": [0, 3], \"rank_pattern\": {\"^h.1.q_proj\": 2},"
        " \"alpha_pattern\": {\"v_proj\": 0.5}, \"init_lora_weights\": \"gaussian\", \"bias\": "
        "\"none\","
        " \"use_dora\": false, \"later_option\": null, \"revision\": \"main\"}",
        &config, &notes);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(buf_text(&notes), "later_option is not known, and off");
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(config.rank, 4);
        ck_assert_double_eq(config.alpha, 16);
        ck_assert_double_eq(config.dropout, 0.25);
        ck_assert(config.rslora && !config.transposed);
        ck_assert_int_eq(config.targets.count, 2);
        ck_assert_str_eq(config.targets.items[1], "v_proj");
        ck_assert_int_eq(config.exclude.count, i == 0); /* targets are written in full */
        ck_assert_int_eq(config.layers.count, i == 0 ? 2 : 0);
        if (i == 0) ck_assert_str_eq(config.exclude.items[0], "h.0.q_proj");
        if (i == 0) ck_assert_str_eq(config.layers.items[1], "3");
        ck_assert_int_eq(config.saved.count, 1);
        ck_assert_str_eq(config.saved.items[0], "lm_head");
        ck_assert_int_eq(config.ranks.count, 1);
        ck_assert_str_eq(config.ranks.items[0].match, "^h.1.q_proj");
        ck_assert_double_eq(config.ranks.items[0].value, 2);
        ck_assert_int_eq(config.alphas.count, 1);
        ck_assert_double_eq(config.alphas.items[0].value, 0.5);
        if (i > 0) break;
        config.base = "/base";
        config.architecture = "";
        peft_config_write(&config, &written);
        peft_config_deinit(&config);
        status = read_adapter(buf_text(&written), &config, &notes);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        ck_assert_str_eq(buf_text(&notes), "");
    }
    peft_config_deinit(&config);
    buf_deinit(&notes);
    buf_deinit(&written);
}

static const struct {
    const char *keys, *message;
} bad_adapters[] = {
    {"\"r\": 0", "r: expected an integer from 1 to 65536, found 0"},
    {"\"r\": 65537", "r: expected an integer from 1 to 65536, found 65537"},
    {"\"r\": 4.5", "r: expected an integer from 1 to 65536, found 4.5"},
    {"\"lora_alpha\": 0", "lora_alpha: expected a number from 1e-06 to 1000000, found 0"},
    {"\"lora_alpha\": \"8\"", "lora_alpha: expected a number from 1e-06 to 1000000, found \"8\""},
    {"\"lora_dropout\": 1", "lora_dropout: expected a number from 0 and below 1, found 1"},
    {"\"use_rslora\": 1", "use_rslora: expected true or false, found 1"},
    {"\"target_modules\": [\"q_proj\", 1]",
     "target_modules: expected the name of a module, found 1"},
    {"\"target_modules\": [\"q.*\"]",
     "target_modules: expected the name of a module, found \"q.*\""},
    {"\"target_modules\": {}", "target_modules: expected a list of names of modules, found {}"},
    {"\"target_modules\": \"q.*\"", "target_modules: a regular expression cannot be read"},
    {"\"modules_to_save\": [\"\"]", "modules_to_save: expected the name of a module, found \"\""},
    {"\"layers_to_transform\": -1",
     "layers_to_transform: expected numbers of layers, from 0, found"},
    {"\"rank_pattern\": {\"q.*\": 2}", "rank_pattern: only names of modules can be read"},
    {"\"rank_pattern\": {\"q\": 0}",
     "rank_pattern: q: expected an integer from 1 to 65536, found 0"},
    {"\"bias\": \"all\"", "bias: biases cannot be trained beside adapters; found \"all\""},
    {"\"use_dora\": true", "use_dora: DoRA is not supported; found true"},
    {"\"later_option\": 1", "later_option: the key is not known, and not off; found 1"},
    {"\"init_lora_weights\": \"pissa\"", "init_lora_weights: only true, false, gaussian,"},
    {"\"peft_type\": \"IA3\"", "peft_type: only \"LORA\" can be trained; found \"IA3\""},
};

LOOP_TEST(bad_adapters_are_refused, 0, COUNT_OF(bad_adapters))
{
    struct peft_config config;
    struct buf notes = {0};
    bool typed = strstr(bad_adapters[_i].keys, "peft_type") != NULL;
    AUTO_FREE char *text =
        mem_printf("{%s%s}", typed ? "" : "\"peft_type\": \"LORA\", ", bad_adapters[_i].keys);
    AUTO_FREE char *message = mem_printf(PEFT_CONFIG ": %s", bad_adapters[_i].message);
    status_t status = read_adapter(text, &config, &notes);
    ck_assert_ptr_nonnull(status);
    ck_assert_msg(strncmp(status_message(status), message, strlen(message)) == 0, "%s",
                  status_message(status));
    status_free(status);
    buf_deinit(&notes);
}
