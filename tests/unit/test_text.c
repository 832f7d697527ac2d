/* common/base/text.h: sizes and times as people write them, and the ends of UTF-8's ranges. */
#include "base/text.h"

#include <string.h>

#include "base/array.h"
#include "tests/testing.h"

TEST(bytes_in_every_unit)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"0", 0},
        {"7", 7},
        {"7 B", 7},
        {"7kB", 7000},
        {"7KB", 7000},
        {"7MB", 7000000},
        {"80GB", 80000000000},
        {"7 TB", 7000000000000},
        {"7KiB", 7 << 10},
        {"7MiB", 7 << 20},
        {"1.5 GiB", 3 << 29},
        {"7TiB", 7ULL << 40},
        {"4e9", 4000000000},
        {"8388607TiB", 8388607ULL << 40},
    };
    static const char *const others[] = {"",    "GB",     "-1",   "7gb",        "7 GB ", "7G",
                                         "7 7", "nan GB", "1e99", "8388608TiB", "0x7"};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        uint64_t bytes = 1;
        ck_assert_msg(text_parse_bytes(sizes[i].text, &bytes), "%s", sizes[i].text);
        ck_assert_msg(bytes == sizes[i].bytes, "%s", sizes[i].text);
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        uint64_t bytes = 3;
        ck_assert_msg(!text_parse_bytes(others[i], &bytes), "%s", others[i]);
        ck_assert_uint_eq(bytes, 3);
    }
}

TEST(bytes_have_three_digits)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {
        {0, "0 B"},
        {999, "999 B"},
        {1000, "1.00 kB"},
        {9994, "9.99 kB"},
        {9996, "10.0 kB"},
        {99940, "99.9 kB"},
        {99960, "100 kB"},
        {999499, "999 kB"},
        {999500, "1.00 MB"},
        {4800000000, "4.80 GB"},
        {7000000000000, "7.00 TB"},
        {7000000000000000, "7.00 PB"},
        {UINT64_MAX, "18.4 EB"},
    };
    char text[32];
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        ck_assert_str_eq(text_format_bytes(sizes[i].bytes, text), sizes[i].text);
}

TEST(times_from_microseconds_to_hours)
{
    static const struct {
        double seconds;
        const char *rough, *fine;
    } times[] = {
        {-1, "0.0s", "0 us"},        {0.00004, "0.0s", "40 us"},   {0.00125, "0.0s", "1.25 ms"},
        {0.0999, "0.1s", "99.9 ms"}, {0.5, "0.5s", "500 ms"},      {1, "1.0s", "1.00 s"},
        {41.3, "41.3s", "41.3 s"},   {59.9, "59.9s", "59.9 s"},    {59.96, "1m00s", "1m00s"},
        {125, "2m05s", "2m05s"},     {3599.4, "59m59s", "59m59s"}, {3599.6, "1h00m", "1h00m"},
        {11520, "3h12m", "3h12m"},   {10799, "2h59m", "2h59m"},    {360000, "100h00m", "100h00m"},
    };
    char text[32];
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        ck_assert_str_eq(text_format_seconds(times[i].seconds, text), times[i].rough);
        ck_assert_str_eq(text_format_duration(times[i].seconds, text), times[i].fine);
    }
}

TEST(characters_at_the_ends_of_their_ranges)
{
    static const struct {
        const char *text;
        uint32_t character;
    } valid[] = {
        {"\x01", 0x1},
        {"\x7f", 0x7f},
        {"\xc2\x80", 0x80},
        {"\xdf\xbf", 0x7ff},
        {"\xe0\xa0\x80", 0x800},
        {"\xed\x9f\xbf", 0xd7ff},
        {"\xee\x80\x80", 0xe000},
        {"\xef\xbf\xbf", 0xffff},
        {"\xf0\x90\x80\x80", 0x10000},
        {"\xf4\x8f\xbf\xbf", 0x10ffff},
    };
    static const char *const invalid[] = {
        "\x80",
        "\xbf",
        "\xc1\xbf",
        "\xc2",
        "\xc2\xc0",
        "\xe0\x9f\xbf",
        "\xe1\x80",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
    };
    for (size_t i = 0; i < COUNT_OF(valid); i++) {
        uint32_t character = 0;
        ck_assert_int_eq(utf8_decode(valid[i].text, &character), (int)strlen(valid[i].text));
        ck_assert_uint_eq(character, valid[i].character);
    }
    for (size_t i = 0; i < COUNT_OF(invalid); i++) {
        uint32_t character;
        ck_assert_msg(utf8_decode(invalid[i], &character) == 0, "%zu", i);
    }
}
