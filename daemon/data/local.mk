# daemon/data, a part of libtrain.a
libtrain_a_SOURCES += \
  %D%/batch_share.c %D%/batch_share.h \
  %D%/cifar.c \
  %D%/data_file.c %D%/data_file.h \
  %D%/dataset_dir.c %D%/dataset_dir.h \
  %D%/generator.c %D%/generator.h \
  %D%/idx.c %D%/image_formats.h \
  %D%/image_arrays.c \
  %D%/image_files.c \
  %D%/image_rows.c %D%/image_rows.h \
  %D%/image_set.c %D%/image_set.h \
  %D%/image_transform.c %D%/image_transform.h \
  %D%/loader.c %D%/loader.h \
  %D%/masking.c \
  %D%/megatron.c \
  %D%/mixture.c %D%/row_parts.h \
  %D%/npy.c %D%/npy.h \
  %D%/packing.c %D%/packing.h \
  %D%/rows.h \
  %D%/sampler.c %D%/sampler.h \
  %D%/target_array.c \
  %D%/token_data.c %D%/token_data.h \
  %D%/token_file.c %D%/token_file.h \
  %D%/token_paths.c \
  %D%/token_rows.c %D%/token_rows.h \
  %D%/token_split.c %D%/token_split.h \
  %D%/twister.c \
  %D%/unpacked.c \
  %D%/unzip.c %D%/gzip_files.h \
  %D%/windows.c %D%/windows.h

if HAVE_CHECK
DATA_TESTS = \
  tests/unit/test_train_data tests/unit/test_megatron tests/unit/test_packing tests/unit/test_labels \
  tests/unit/test_datasets tests/unit/test_images tests/unit/test_train_tokens
check_PROGRAMS += $(DATA_TESTS)
TESTS += $(DATA_TESTS)
tests_unit_test_train_data_LDADD = libtrain.a $(RUNTIME_LIBS) $(ZLIB_LIBS) $(TEST_LIBS) -lm
tests_unit_test_megatron_LDADD = libtrain.a libbase.a $(TEST_LIBS) -lm
tests_unit_test_packing_LDADD = libtrain.a libbase.a $(TEST_LIBS) -lm
tests_unit_test_labels_SOURCES = tests/unit/test_labels.c tests/unit/dataset_files.c tests/unit/dataset_files.h
tests_unit_test_labels_LDADD = libtrain.a libmodel.a libyamldoc.a libops.a libdigest.a libbase.a $(JANSSON_LIBS) $(CRYPTO_LIBS) $(YAML_LIBS) $(TEST_LIBS) -lm
tests_unit_test_datasets_SOURCES = tests/unit/test_datasets.c tests/unit/dataset_files.c tests/unit/dataset_files.h
tests_unit_test_datasets_LDADD = libtrain.a libdigest.a libbase.a $(JANSSON_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS) -lm
tests_unit_test_images_SOURCES = tests/unit/test_images.c tests/unit/dataset_files.c tests/unit/dataset_files.h
tests_unit_test_images_LDADD = libtrain.a libops.a libdigest.a libbase.a $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS) -lm
tests_unit_test_train_tokens_LDADD = libtrain.a libdigest.a libbase.a $(JANSSON_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS) -lm
endif
