# Installed beside what jobs refer to: models as files.
mnist_exampledir = $(pkgdatadir)/examples/mnist
dist_mnist_example_DATA = %D%/mnist/job.yaml %D%/mnist/net.yaml
gpt2_exampledir = $(pkgdatadir)/examples/gpt2
dist_gpt2_example_DATA = %D%/gpt2/model.yaml
llama_exampledir = $(pkgdatadir)/examples/llama
dist_llama_example_DATA = %D%/llama/model.yaml
bert_exampledir = $(pkgdatadir)/examples/bert
dist_bert_example_DATA = %D%/bert/model.yaml
shakespeare_exampledir = $(pkgdatadir)/examples/shakespeare
dist_shakespeare_example_DATA = %D%/shakespeare/job.yaml %D%/shakespeare/model.yaml \
  %D%/shakespeare/README.md
chat_exampledir = $(pkgdatadir)/examples/chat
dist_chat_example_DATA = %D%/chat/job.yaml %D%/chat/model.yaml %D%/chat/README.md
classify_exampledir = $(pkgdatadir)/examples/classify
dist_classify_example_DATA = %D%/classify/job.yaml %D%/classify/README.md
lora_exampledir = $(pkgdatadir)/examples/lora
dist_lora_example_DATA = %D%/lora/base.yaml %D%/lora/job.yaml %D%/lora/README.md
dpo_exampledir = $(pkgdatadir)/examples/dpo
dist_dpo_example_DATA = %D%/dpo/job.yaml %D%/dpo/README.md
cifar_exampledir = $(pkgdatadir)/examples/cifar
dist_cifar_example_DATA = %D%/cifar/job.yaml %D%/cifar/net.yaml %D%/cifar/README.md
EXTRA_DIST += %D%/mnist/SHA256SUMS %D%/chat/draw.py %D%/chat/run.sh %D%/cifar/draw.py %D%/cifar/run.sh \
  %D%/classify/draw.py %D%/classify/run.sh %D%/dpo/draw.py %D%/dpo/run.sh %D%/lora/base.sh %D%/lora/draw.py %D%/lora/run.sh %D%/clients/README.md %D%/clients/train.go %D%/clients/train.rb
exampledir = $(pkgdatadir)/examples
dist_example_DATA = %D%/fsdpd.yaml
grafana_exampledir = $(pkgdatadir)/examples/grafana
dist_grafana_example_DATA = %D%/grafana/fsdpd.json
slurm_exampledir = $(pkgdatadir)/examples/slurm
dist_slurm_example_DATA = %D%/slurm/fsdpd.sbatch
kubernetes_exampledir = $(pkgdatadir)/examples/kubernetes
dist_kubernetes_example_DATA = %D%/kubernetes/Dockerfile %D%/kubernetes/fsdpd.yaml
