"""A simulator of PyTorch training runs that writes Kineto traces with a known, planted loss."""
