# Each is written and checked by its room; all are installed.
dist_doc_DATA = \
  %D%/README.md \
  %D%/architecture.md \
  %D%/architecture.svg \
  %D%/benchmarks.json \
  %D%/benchmarks.md \
  %D%/checkpoints.md \
  %D%/clusters.md \
  %D%/coming-from-fsdp.md \
  %D%/configuration.md \
  %D%/datasets.md \
  %D%/development.md \
  %D%/durability.md \
  %D%/elastic.md \
  %D%/elastic-kills.txt \
  %D%/families.md \
  %D%/fsdpctl.md \
  %D%/fsdpd.md \
  %D%/getting-started.md \
  %D%/gpu-results.md \
  %D%/http.md \
  %D%/hugging-face.md \
  %D%/job-file.md \
  %D%/memory.md \
  %D%/model-file.md \
  %D%/model-types.md \
  %D%/monitoring.md \
  %D%/notebook.md \
  %D%/optimizers.md %D%/optimizers.svg \
  %D%/performance.md \
  %D%/plan.md \
  %D%/planner.md \
  %D%/planner.svg \
  %D%/popular-models.md \
  %D%/profiles.md \
  %D%/arrays.md \
  %D%/queue.md \
  %D%/page-420.png \
  %D%/page-list-420.png \
  %D%/page.png \
  %D%/report.png \
  %D%/sampled-families.md \
  %D%/security.md \
  %D%/step.svg \
  %D%/strategies.md

# Man pages are made of the same texts.
FSDPCTL_VERB_PAGES = %D%/man/fsdpctl-cancel.1 %D%/man/fsdpctl-checkpoint.1 \
  %D%/man/fsdpctl-checkpoints.1 %D%/man/fsdpctl-completion.1 \
  %D%/man/fsdpctl-compare.1 %D%/man/fsdpctl-diagnose.1 %D%/man/fsdpctl-drain.1 %D%/man/fsdpctl-eval.1 %D%/man/fsdpctl-families.1 %D%/man/fsdpctl-forget.1 %D%/man/fsdpctl-help.1 \
  %D%/man/fsdpctl-history.1 %D%/man/fsdpctl-hold.1 %D%/man/fsdpctl-list.1 \
  %D%/man/fsdpctl-logs.1 %D%/man/fsdpctl-metrics.1 \
  %D%/man/fsdpctl-pause.1 %D%/man/fsdpctl-plan.1 %D%/man/fsdpctl-priority.1 \
  %D%/man/fsdpctl-pull.1 %D%/man/fsdpctl-release.1 %D%/man/fsdpctl-report.1 %D%/man/fsdpctl-resize.1 %D%/man/fsdpctl-resume.1 %D%/man/fsdpctl-sample.1 %D%/man/fsdpctl-show.1 \
  %D%/man/fsdpctl-status.1 %D%/man/fsdpctl-submit.1 %D%/man/fsdpctl-top.1 %D%/man/fsdpctl-trace.1 \
  %D%/man/fsdpctl-sweep.1 %D%/man/fsdpctl-undrain.1 %D%/man/fsdpctl-verify.1 %D%/man/fsdpctl-version.1 %D%/man/fsdpctl-watch.1 %D%/man/fsdpctl-why.1 %D%/man/fsdpctl-workers.1 \
  %D%/man/fsdpctl-wrap.1
man_MANS = %D%/man/fsdpctl.1 $(FSDPCTL_VERB_PAGES) %D%/man/fsdpd-job.5 %D%/man/fsdpd-model.5 \
  %D%/man/fsdpd-profile.5 %D%/man/fsdpd.8 %D%/man/fsdpd.yaml.5
CLEANFILES += $(man_MANS)
EXTRA_DIST += scripts/md2man.awk scripts/pictures.py
MAN_DATE = 2026-11-20
MD2MAN = $(AM_V_GEN)$(MKDIR_P) %D%/man && $(AWK) -f $(srcdir)/scripts/md2man.awk \
  -v version=$(PACKAGE_VERSION) -v date=$(MAN_DATE)

$(FSDPCTL_VERB_PAGES): $(srcdir)/%D%/fsdpctl.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=$(basename $(notdir $@)) -v section=1 \
	  -v verb=$(patsubst fsdpctl-%,%,$(basename $(notdir $@))) $(srcdir)/%D%/fsdpctl.md > $@
%D%/man/fsdpctl.1: $(srcdir)/%D%/fsdpctl.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=fsdpctl -v section=1 -v verbs=list \
	  -v about="submit, watch and pull training jobs" \
	  -v see="fsdpd-job(5), fsdpd-model(5), fsdpd(8)" $(srcdir)/%D%/fsdpctl.md > $@
%D%/man/fsdpd.8: $(srcdir)/%D%/fsdpd.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=fsdpd -v section=8 -v about="train neural networks, sharded, as a service" \
	  -v see="fsdpctl(1), fsdpd.yaml(5), fsdpd-profile(5)" $(srcdir)/%D%/fsdpd.md > $@
%D%/man/fsdpd.yaml.5: $(srcdir)/%D%/configuration.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=fsdpd.yaml -v section=5 -v about="the configuration of fsdpd" \
	  -v see="fsdpd(8)" $(srcdir)/%D%/configuration.md > $@
%D%/man/fsdpd-job.5: $(srcdir)/%D%/job-file.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=fsdpd-job -v section=5 -v about="what a training job is" \
	  -v see="fsdpctl-submit(1), fsdpd-model(5)" $(srcdir)/%D%/job-file.md > $@
%D%/man/fsdpd-model.5: $(srcdir)/%D%/model-file.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=fsdpd-model -v section=5 -v about="a neural network as a file" \
	  -v see="fsdpd-job(5)" $(srcdir)/%D%/model-file.md > $@
%D%/man/fsdpd-profile.5: $(srcdir)/%D%/profiles.md $(srcdir)/scripts/md2man.awk
	$(MD2MAN) -v name=fsdpd-profile -v section=5 -v about="devices to plan a job for" \
	  -v see="fsdpd(8), fsdpctl-plan(1)" $(srcdir)/%D%/profiles.md > $@
