dist_doc_DATA = \
  %D%/architecture.md \
  %D%/performance.md
