# fsdpctl. Everything but main is a library, so that tests can run the verbs.
noinst_LIBRARIES += libclient.a
libclient_a_SOURCES = \
  %D%/cancel.c \
  %D%/checkpoint.c \
  %D%/chart.c %D%/chart.h \
  %D%/client.c %D%/client.h \
  %D%/completion.c \
  %D%/curve.c %D%/curve.h \
  %D%/directory.c %D%/directory.h \
  %D%/download.c %D%/download.h \
  %D%/drain.c \
  %D%/exit.c %D%/exit.h \
  %D%/follow.c %D%/follow.h \
  %D%/forget.c \
  %D%/help.c \
  %D%/history.c \
  %D%/html.c %D%/html.h \
  %D%/hold.c \
  %D%/list.c \
  %D%/logs.c \
  %D%/methods.c %D%/methods.h \
  %D%/metrics.c \
  %D%/options.c %D%/options.h \
  %D%/output.c %D%/output.h \
  %D%/overview.c %D%/overview.h \
  %D%/pause.c \
  %D%/page.c %D%/page.h \
  %D%/page_head.c \
  %D%/page_report.c \
  %D%/page_step.c \
  %D%/plan.c \
  %D%/priority.c \
  %D%/progress.c %D%/progress.h \
  %D%/pull.c \
  %D%/reconnect.c %D%/reconnect.h \
  %D%/report.c %D%/report.h \
  %D%/rewrite.c %D%/rewrite.h \
  %D%/series.c %D%/series.h \
  %D%/session.c %D%/session.h \
  %D%/show.c \
  %D%/status.c \
  %D%/submit.c \
  %D%/top.c \
  %D%/timeline.c %D%/timeline.h \
  %D%/trace.c \
  %D%/verbs.c \
  %D%/watch.c \
  %D%/wrap_set.c
$(libclient_a_OBJECTS): $(PROTO_H)

CLIENT_LDADD = libclient.a libprint.a librpc.a libx509.a libspec.a libyamldoc.a libproto.a $(HF_LIBS) \
  $(GRPC_LIBS) $(CRYPTO_LIBS) $(UV_LIBS) $(YAML_LIBS) $(PROTOBUF_C_LIBS) -lm

bin_PROGRAMS += fsdpctl
fsdpctl_SOURCES = %D%/main.c
fsdpctl_LDADD = $(CLIENT_LDADD)
%D%/main.$(OBJEXT): $(PROTO_H)

# Shells' completion, made by the program itself from its tables.
bashcompletiondir = $(datadir)/bash-completion/completions
nodist_bashcompletion_DATA = %D%/completions/fsdpctl
zshcompletiondir = $(datadir)/zsh/vendor-completions
nodist_zshcompletion_DATA = %D%/completions/_fsdpctl
fishcompletiondir = $(datadir)/fish/vendor_completions.d
nodist_fishcompletion_DATA = %D%/completions/fsdpctl.fish
CLEANFILES += %D%/completions/fsdpctl %D%/completions/_fsdpctl %D%/completions/fsdpctl.fish
%D%/completions/fsdpctl: fsdpctl$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) $(@D) && ./fsdpctl completion bash > $@
%D%/completions/_fsdpctl: fsdpctl$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) $(@D) && ./fsdpctl completion zsh > $@
%D%/completions/fsdpctl.fish: fsdpctl$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) $(@D) && ./fsdpctl completion fish > $@

EXTRA_DIST += examples/mnist/job.yaml
EXTRA_DIST += docs/fsdpctl.md

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_client
TESTS += tests/unit/test_client
tests_unit_test_client_SOURCES = tests/unit/test_client.c
tests_unit_test_client_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_client_LDADD = $(CLIENT_LDADD) $(CHECK_LIBS)

check_PROGRAMS += tests/unit/test_client_views
TESTS += tests/unit/test_client_views
tests_unit_test_client_views_SOURCES = tests/unit/test_client_views.c
tests_unit_test_client_views_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_client_views_LDADD = $(CLIENT_LDADD) $(CHECK_LIBS)

check_PROGRAMS += tests/unit/test_client_verbs
TESTS += tests/unit/test_client_verbs
tests_unit_test_client_verbs_SOURCES = tests/unit/test_client_verbs.c \
  tests/unit/test_client_daemon.c tests/unit/test_client_daemon.h
tests_unit_test_client_verbs_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_client_verbs_LDADD = $(CLIENT_LDADD) $(CHECK_LIBS)

check_PROGRAMS += tests/unit/test_rewrite
TESTS += tests/unit/test_rewrite
tests_unit_test_rewrite_SOURCES = tests/unit/test_rewrite.c
tests_unit_test_rewrite_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) $(CHECK_CFLAGS)
tests_unit_test_rewrite_LDADD = $(CLIENT_LDADD) $(CHECK_LIBS)

check_PROGRAMS += tests/unit/test_timeline
TESTS += tests/unit/test_timeline
tests_unit_test_timeline_SOURCES = tests/unit/test_timeline.c
tests_unit_test_timeline_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_timeline_LDADD = $(CLIENT_LDADD) $(CHECK_LIBS)

tests/unit/test_client-test_client.$(OBJEXT) \
tests/unit/test_timeline-test_timeline.$(OBJEXT) \
tests/unit/test_client_views-test_client_views.$(OBJEXT) \
tests/unit/test_client_verbs-test_client_daemon.$(OBJEXT) \
tests/unit/test_client_verbs-test_client_verbs.$(OBJEXT): $(PROTO_H)
endif
