"""The backend `kubernetes` of the launcher: a PyTorchJob on a cluster, through the official client.

run.py       create the job or take it up, look at it again and again, decide
adoption.py  whether a job is the attempt's own, and which pod's
watchdog.py  the limits: queued, starting, started again and again, too long
pods.py      what pods say of themselves
report.py    why a job failed, with the ends of its replicas' logs
logs.py      the replicas' logs while they run, the Master's in the step's own
cancel.py    SIGTERM deletes the job
client.py    the API calls: what is tried again, what is an error at once; with faults.py
sweep.py     jobs that nobody waits for any more
doctor.py    whether a cluster has all that is needed; with access.py, rbac.py and the rights in rbac.yaml
"""
