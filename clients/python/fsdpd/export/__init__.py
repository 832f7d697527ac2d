"""Converts a PyTorch module into a model file and its weights: python -m fsdpd.export module.py:Net --input 3,32,32

capture.py runs torch.export and keeps what follows as plain data: modules, tensors, operations with the user's lines.
scopes.py divides the operations by the modules that they belong to, operations.py has the expression of each, and
write.py makes the text. Only capture.py and main.py need torch."""
