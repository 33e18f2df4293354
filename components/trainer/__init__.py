"""The trainer: what every rank of a PyTorchJob runs. Torch and TorchRec; nothing of kfp or Kubernetes.

Where a reader finds what:

    pretrain.py, epoch.py, score.py    the three kinds of job; assembly.py builds their parts
    task.py        both halves and the loss as one module: `loss = model(batch)`
    tables.py      the sparse half: sharded tables with their fused optimizer (initial_rows.py, checksums.py)
    sharding.py    which rank owns which rows; the check that every row has one owner
    model.py       the dense half: the ranker (layers.py: its parts; dense_state.py: its optimizer)
    losses.py      what is minimized, the same on any number of ranks (collectives.py)
    batches.py     what the model needs of a batch beyond what was read
    reading/       Parquet to batches
    semi_sync/     everything sparse beside the dense half, one batch stale (overlap.py: the trainer's use of it)
    startup.py     versions, rendezvous, process groups, the watch on the launcher
    saving.py      when a job saves; checkpoint.py: tensors and progress on any fsspec store
    progress.py    lines, event files, loss curve; ledger.py: rows trained; figures.py: what a job reports
"""
