"""Launches the training jobs of the pipeline's steps.

job.py         TrainingJob: what is to run, under which name
pytorchjob.py  the PyTorchJob that a cluster would get, and what the training operator makes of it
launch.py      launch(): what a step calls
local.py       the backend that runs the PyTorchJob on this machine
kubernetes/    the backend that has it run on a cluster
processes.py   nothing that a job started outlives it
failure.py     JobFailed: which replica failed first, and of what
"""
