"""The trainer: what every rank of a PyTorchJob runs. Torch and TorchRec; nothing of kfp or Kubernetes.

Where a reader finds what:

    startup.py     versions, rendezvous, process groups, the watch on the launcher
    sharding.py    which rank owns which rows; the check that every row has one owner
    tables.py      the sparse half: sharded tables with their fused optimizer
    model.py       the dense half: the ranker (layers.py: its parts)
    losses.py      what is minimized, the same on any number of ranks
    task.py        both halves and the loss as one module: `loss = model(batch)`
    pretrain.py, epoch.py, score.py    the three kinds of job
    checkpoint.py  tensors and progress on any fsspec store
    reading/       Parquet to batches
"""
