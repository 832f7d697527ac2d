#!/usr/bin/env python3
"""The checks of the includes find what they are for: each violation is planted in a copy of the sources."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(os.environ.get("srcdir", "."))
NEEDED = ("daemon", "common", "client", "kernels", "docs/architecture.md", "tests/check_layers.sh",
          "tests/check_circles.py", "tests/check_structs.py", "tests/check_english.py", "tests/english.txt",
          "proto", "tests/check_proto.py", "families", "docs/hugging-face.md", "tests/check_hf_keys.py")


class Rules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """One copy: a test undoes what it changes there."""
        cls.root = tempfile.mkdtemp(prefix="fsdpd-rules-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        for name in NEEDED:
            source, copy = os.path.join(SOURCE, name), os.path.join(cls.root, name)
            if os.path.isdir(source):
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.o", "*.a"),
                                copy_function=shutil.copyfile)
            else:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                shutil.copyfile(source, copy)
        subprocess.run(["chmod", "-R", "u+w", cls.root], check=True)  # a release's tree is read-only in its tests

    def run_check(self, *command):
        done = subprocess.run(command, cwd=self.root, env={**os.environ, "srcdir": "."}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def layers(self):
        return self.run_check("sh", "tests/check_layers.sh")

    def circles(self):
        return self.run_check("python3", "tests/check_circles.py")

    def structs(self):
        return self.run_check("python3", "tests/check_structs.py")

    def keep(self, name):
        """The file, or that there is none, is as before when the test ends. Returns its text."""
        path = os.path.join(self.root, name)
        if not os.path.exists(path):
            self.addCleanup(os.unlink, path)
            return ""
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.addCleanup(self.write, name, text)
        return text

    def write(self, name, text):
        with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
            file.write(text)

    def append(self, name, text):
        self.write(name, self.keep(name) + text)

    def expect_layers(self, *parts):
        code, output = self.layers()
        self.assertEqual(code, 1, output)
        for part in parts:
            self.assertIn(part, output)

    def change(self, name, before, after):
        text = self.keep(name)
        self.assertIn(before, text)
        self.write(name, text.replace(before, after, 1))

    def test_keys_of_families(self):
        """The page and the lists may change only together."""
        check = (sys.executable, "tests/check_hf_keys.py")
        self.assertEqual(self.run_check(*check)[0], 0, self.run_check(*check)[1])
        for name, before, after in (
                ("families/llama.yaml", "  mlp_bias: {type", "  mlp_biased: {type"),
                ("families/phi.yaml", "checks:", "harmless: [some_key]\nchecks:"),
                ("families/opt.yaml", "  vocab_size: {type: size", "  vocab_size: {type: size, at: [v]"),
                ("families/resnet.yaml", "supported: [basic, bottleneck]", "supported: [basic]"),
                ("common/hf/known.c", '"use_cache",', '"use_cached",'),
                ("common/hf/known.c", '{"is_decoder", KNOWN_FLAG', '{"is_decode", KNOWN_FLAG'),
                ("docs/hugging-face.md", "| `gpt2`, `gpt-sw3` | `vocab_size`,", "| `gpt2`, `gpt-sw3` |"),
                ("docs/hugging-face.md", "these are harmless: `model_type`,", "these are harmless:")):
            self.change(name, before, after)
            code, output = self.run_check(*check)
            self.assertEqual(code, 1, (name, output))
            self.change(name, after, before)
        self.change("families/opt.yaml", "  vocab_size: {type: size", "  vocab_size: {type: size, at: [v]")
        self.keep("docs/hugging-face.md")
        self.assertEqual(self.run_check(*check, "--write")[0], 0)
        self.assertEqual(self.run_check(*check)[0], 0)

    def test_proto_files(self):
        check = (sys.executable, "tests/check_proto.py")
        code, output = self.run_check(*check)
        if code == 77:
            self.skipTest(output)
        self.assertEqual(code, 0, output)
        self.append("proto/fsdpd/v1/worker.proto",
                    "enum Bad { GOOD = 0; }\nmessage lower { uint32 CamelCase = 1; }\n"
                    "message Times { int64 start_time = 1; uint64 wait_ms = 2; uint32 seconds_left = 3; double step_seconds = 4;\n"
                    "  uint64 finished_at = 5; double rate_per_second = 6; string peak_at = 7; double delay = 8; }\n"
                    "service More { rpc Go(Ack) returns (Ack); rpc ListRows(Ack) returns (lower); }\n")
        code, output = self.run_check(*check)
        self.assertEqual(code, 1, output)
        for part in ("Bad: ENUM_VALUE_PREFIX", "Bad: ENUM_ZERO_VALUE_SUFFIX",
                     "lower: MESSAGE_PASCAL_CASE", "lower.CamelCase: FIELD_LOWER_SNAKE_CASE",
                     "More: SERVICE_SUFFIX", "More.Go: RPC_REQUEST_STANDARD_NAME",
                     "More.Go: RPC_RESPONSE_STANDARD_NAME",
                     "More.ListRows: LIST_HAS_PAGES",
                     "Times.start_time: POINT_IS_TIMESTAMP", "Times.finished_at: POINT_IS_TIMESTAMP",
                     "Times.wait_ms: SPAN_IS_SECONDS", "Times.seconds_left: SPAN_IS_SECONDS",
                     "Times.delay: SPAN_IS_SECONDS"):
            self.assertIn("fsdpd.v1." + part, output)
        for part in ("Times.step_seconds", "Times.rate_per_second", "Times.peak_at"):
            self.assertNotIn(part, output)

    def test_unneeded_exceptions_for_proto_files(self):
        check = (sys.executable, "tests/check_proto.py")
        self.change("proto/fsdpd/v1/worker.proto", "service WorkerLink", "service WorkerLinkService")
        code, output = self.run_check(*check)
        if code == 77:
            self.skipTest(output)
        self.assertEqual(code, 1, output)
        self.assertIn("fsdpd.v1.WorkerLink: no exception from SERVICE_SUFFIX is needed", output)

    def test_a_second_struct_of_a_name_is_found_with_both_places(self):
        self.append("kernels/cpu/planted.c", "struct job {\n    int rows;\n};\n")
        code, output = self.structs()
        self.assertEqual(code, 1, output)
        self.assertIn("struct job is defined in daemon/coordinator/jobs/jobs.h, kernels/cpu/planted.c", output)

    def test_an_upward_include_is_found_with_its_place(self):
        self.append("common/base/mem.c", '#include "rpc/server.h"\n')
        with open(os.path.join(self.root, "common/base/mem.c"), encoding="utf-8") as file:
            line = len(file.readlines())
        self.expect_layers(f"common/base/mem.c:{line}: rpc/server.h: common/base may include only: libc")

    def test_a_room_inside_another_is_not_free_for_the_outer_one(self):
        self.append("daemon/runtime/comm.c", '#include "runtime/cuda/matmul.h"\n')
        self.expect_layers("runtime/cuda/matmul.h: daemon/runtime may include only")

    def test_a_row_that_names_one_header_allows_no_other(self):
        self.append("daemon/coordinator/jobs/retry.c", '#include "checkpoint/manifest.h"\n')
        self.expect_layers("checkpoint/manifest.h: daemon/coordinator/jobs may include only")

    def test_a_library_needs_its_word_in_the_row(self):
        self.append("client/show.c", "#include <sqlite3.h>\n")
        self.expect_layers("sqlite3.h: client may include only")

    def test_a_pure_room_may_not_use_threads(self):
        self.append("daemon/fsdp/plan_hash.c", "#include <pthread.h>\n")
        self.expect_layers("pthread.h: daemon/fsdp is pure")

    def test_the_table_is_what_counts(self):
        self.change("docs/architecture.md", "| base, digest, rpc, spec, print, page, hf, proto |",
                    "| base, digest, rpc, spec, print, page, proto, bricks |")
        self.expect_layers('client may include "bricks", which is neither a room nor a known library',
                           "hf/hf.h: client may include only: base, digest, rpc, spec, print, page, proto, bricks")

    def test_a_file_outside_every_row_is_found(self):
        os.makedirs(os.path.join(self.root, "common/attic"))
        self.addCleanup(os.rmdir, os.path.join(self.root, "common/attic"))
        self.append("common/attic/old.c", '#include "base/mem.h"\n')
        self.expect_layers("common/attic/old.c:1: no row of docs/architecture.md has this file")

    def test_a_circle_of_four_is_found_with_its_includes(self):
        names = ["planted_a", "planted_b", "planted_c", "planted_d"]
        for name, following in zip(names, names[1:] + names[:1]):
            # one by its header, the next by its source file: both are the module
            suffix = ".h" if name in names[::2] else ".c"
            self.append(f"client/{name}{suffix}", f'#include "{following}.h"\n')
            self.append(f"client/{name}.h", "")
        code, output = self.circles()
        self.assertEqual(code, 1, output)
        self.assertIn("4 modules form a circle; at most 3 may:", output)
        self.assertIn("client/planted_d includes client/planted_a", output)

    def test_a_circle_of_three_is_allowed(self):
        names = ["planted_a", "planted_b", "planted_c"]
        for name, following in zip(names, names[1:] + names[:1]):
            self.append(f"client/{name}.h", f'#include "{following}.h"\n')
        self.assertEqual(self.circles()[0], 0)


class English(unittest.TestCase):
    def check(self, name, text, expected):
        """Of a tree with this one file; without `expected`, nothing may be found."""
        with tempfile.TemporaryDirectory(prefix="fsdpd-english-") as root:
            os.makedirs(os.path.join(root, os.path.dirname(name)))
            os.makedirs(os.path.join(root, "tests"), exist_ok=True)
            shutil.copyfile(os.path.join(SOURCE, "tests/english.txt"), os.path.join(root, "tests/english.txt"))
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run(["python3", os.path.join(SOURCE, "tests/check_english.py")], text=True,
                                  env={**os.environ, "srcdir": root}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 1 if expected else 0, done.stdout)
        self.assertIn(expected, done.stdout)

    def test_an_awkward_phrase_in_a_comment_is_found_with_its_better_wording(self):
        self.check("common/planted.c", "\n/* It stops what a coordinator of\n * before started. */\n",
                   'common/planted.c:2: "of before": better: previous, earlier')

    def test_an_awkward_phrase_in_a_message_is_found(self):
        self.check("common/planted.c", 'const char *text = "while nobody "\n"listens";\n',
                   'common/planted.c:1: "nobody": better: name the party')

    def test_an_awkward_phrase_in_a_split_message_is_found(self):
        self.check("common/planted.c", 'const char *text = "the job goes "\n"on";\n',
                   'common/planted.c:1: "goes on": better: continues')

    def test_an_awkward_phrase_in_a_document_is_found(self):
        self.check("docs/planted.md", "# Workers\n\nThe worker is told so.\n", 'docs/planted.md:3: "told": better: reports')

    def test_an_awkward_identifier_is_found(self):
        self.check("common/planted.c", "int door_count;\n", '"door_count": better: server')

    def test_code_is_not_read_as_english(self):
        self.check("common/planted.c", "int he = 0, his = he;\n", "")

    def test_plain_english_passes(self):
        self.check("common/planted.c", "/* There is no database, and training continues. */\n", "")


class Docs(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-docs-")
        self.addCleanup(shutil.rmtree, self.root)
        for name in os.listdir(SOURCE):
            if name not in ("docs", "CONTRIBUTING.md"):
                os.symlink(os.path.join(SOURCE, name), os.path.join(self.root, name))
        os.mkdir(os.path.join(self.root, "docs"))
        pages = [os.path.relpath(page, SOURCE) for page in glob.glob(os.path.join(SOURCE, "docs/*"))]
        for name in ["CONTRIBUTING.md"] + pages:
            shutil.copyfile(os.path.join(SOURCE, name), os.path.join(self.root, name))

    def append(self, name, text):
        with open(os.path.join(self.root, name), "a", encoding="utf-8") as file:
            file.write(text)

    def run_check(self, code):
        """Returns the output."""
        done = subprocess.run(["sh", os.path.join(SOURCE, "tests/check_docs.sh")], cwd=self.root, text=True,
                              env={**os.environ, "srcdir": self.root}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_mistakes_are_found(self):
        """All at once, at the ends of pages, as each run reads every page."""
        planted = (
            ("CONTRIBUTING.md", "`daemon/model/brick.c`\n", "CONTRIBUTING.md: daemon/model/brick.c does not exist"),
            ("docs/development.md", "\n    make tests/unit/test_brick\n", "tests/unit/test_brick does not exist"),
            ("docs/brick.md", "# Bricks\n", "docs/README.md does not mention brick.md"),
            ("docs/plan.md", "[bricks](bricks.md)\n", "a link to bricks.md, which does not exist"),
            ("docs/plan.md", "[units](#bricks) and [how](queue.md#bricks)\n", "docs/queue.md#bricks, which is not a heading"),
            ("docs/notebook.md", "\n<!-- bench/choices.sh -->\nworst 9.9%, mean 0.5%;\n<!-- end -->\n",
             "docs/planner.md is not what docs/notebook.md says: expected worst 9.9% slower"),
            ("docs/performance.md", "\n| 2026-01-01 | a machine | 2.15 | 0.1 | | | | |\n",
             "the ratios are not those of docs/performance.md"),
            ("docs/coming-from-fsdp.md", "`fsdp.brick`\n", "there is no job key fsdp.brick"))
        for name, text, _ in planted:
            self.append(name, text)
        output = self.run_check(1)
        for _, _, found in planted:
            self.assertIn(found, output)

    def test_a_commit_that_does_not_exist_is_found(self):
        shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=SOURCE, text=True, check=False,
                                 stdout=subprocess.PIPE).stdout.strip() if shutil.which("git") else "no git"
        if os.path.exists(os.path.join(SOURCE, ".git")) and shallow == "false":
            self.append("CONTRIBUTING.md", "As the commit `model: add\nbricks` does.\n")
            self.assertIn('there is no commit "model: add bricks"', self.run_check(1))
        else:  # a tarball, or the newest commits alone
            self.run_check(0)

    def test_without_a_complete_history_commits_are_not_checked(self):
        if os.path.lexists(os.path.join(self.root, ".git")):
            os.unlink(os.path.join(self.root, ".git"))
        self.append("CONTRIBUTING.md", "The commit `model: add bricks`.\n")
        self.assertIn("were not checked", self.run_check(0))


class Dialect(unittest.TestCase):
    def check(self, name, text):
        """Of a tree with this one file: exit status and output."""
        with tempfile.TemporaryDirectory(prefix="fsdpd-dialect-") as root:
            for tree in ("common", "daemon", "client", "kernels", "bench", "tests"):
                os.mkdir(os.path.join(root, tree))
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run(["sh", os.path.join(SOURCE, "tests/check_dialect.sh")], text=True,
                                  env={**os.environ, "srcdir": root}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def expect(self, name, text, instead):
        code, output = self.check(name, text)
        self.assertEqual(code, 1, output)
        self.assertIn(f"{name}:1:", output)
        self.assertIn(instead, output)

    def test_success_is_spelled_null(self):
        self.expect("daemon/planted.c", "return STATUS_OKAY;\n", "success is NULL")

    def test_variables_are_rows_of_the_table(self):
        self.expect("daemon/planted.c", 'getenv("FSDPD_CUDA_NEW")\n', "a row of common/base/switches.c")
        self.assertEqual(self.check("tests/planted.c", 'getenv("FSDPD_CUDA_NEW")\n')[0], 0)

    def test_a_section_has_one_mark(self):
        for mark in ("/* --- lists --- */", "/* ===== lists ===== */", "/*----- lists */", "/** -- lists */"):
            self.expect("kernels/planted.h", mark + "\n", "a section starts with")
        self.assertEqual(self.check("kernels/planted.h", "/* ---- lists ---- */\n")[0], 0)

    def test_elements_are_counted_in_one_way(self):
        self.expect("client/planted.c", "for (i = 0; i < sizeof verbs / sizeof verbs[0]; i++)\n", "COUNT_OF(array)")
        self.expect("common/planted.cc", "int count = (int)(sizeof names / sizeof *names);\n", "COUNT_OF(array)")
        self.expect("bench/planted.c", "#define LENGTH(array) 3\n", "common/base/array.h")
        self.assertEqual(self.check("client/planted.c", "sizeof(double) / sizeof(float)\n")[0], 0)

    def test_tests_register_themselves(self):
        for line in ("START_TEST(planted)", "    tcase_add_test(tests, planted);", "    Suite *suite = suite_create(name);"):
            self.expect("tests/planted.c", line + "\n", "tests register themselves")
        self.assertEqual(self.check("tests/testing.c", "Suite *suite = suite_create(title);\n")[0], 0)


if __name__ == "__main__":
    unittest.main()
