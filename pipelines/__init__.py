"""Compile time: the Kubeflow pipeline over the steps, and the `thaw` command. Never imports torch."""
