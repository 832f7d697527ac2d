# Each is written and checked by its room; all are installed.
dist_doc_DATA = \
  %D%/architecture.md \
  %D%/configuration.md \
  %D%/fsdpctl.md \
  %D%/fsdpd.md \
  %D%/hugging-face.md \
  %D%/job-file.md \
  %D%/model-file.md \
  %D%/monitoring.md \
  %D%/performance.md \
  %D%/plan.md \
  %D%/profiles.md \
  %D%/strategies.md
