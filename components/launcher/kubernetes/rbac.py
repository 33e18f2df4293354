"""The rights that the launcher needs: a Role and its RoleBinding, from the manifest that lies beside this file."""

from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

MANIFEST = resources.files(__package__).joinpath("rbac.yaml")


@dataclass(frozen=True)
class Right:
    """One verb on one resource."""

    group: str
    """API group; empty for the core."""
    resource: str
    """As `pods/log`."""
    verb: str

    def __str__(self) -> str:
        """The resource as kubectl names it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


def manifests(namespace: str, account: str) -> list[dict[str, Any]]:
    """The Role and the RoleBinding for a namespace's jobs.

    Args:
        namespace: Where the jobs are.
        account: Service account of the steps: `name`, or `namespace:name` where it is of another namespace.
    """
    account_namespace, _, account_name = account.rpartition(":")
    role, binding = yaml.safe_load_all(MANIFEST.read_text())
    for document in (role, binding):
        document["metadata"]["namespace"] = namespace
    (subject,) = binding["subjects"]
    subject.update(name=account_name, namespace=account_namespace or namespace)
    return [role, binding]


def rights() -> list[Right]:
    """What the Role grants, verb by verb."""
    role, _ = yaml.safe_load_all(MANIFEST.read_text())
    return [
        Right(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
