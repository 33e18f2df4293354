"""The steps of a run, one folder each, and the libraries that they share.

Import rules (checked by `make lint`): kfp is imported in `component.py` files alone; torch in `trainer/` and
`train.py` alone; `trainer/` and `train.py` import neither kfp nor kubernetes.
"""
