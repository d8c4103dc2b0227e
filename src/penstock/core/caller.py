"""The authenticated identity of a request: tenant, user and role."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID, uuid5

from penstock.core.names import parse_uuid
from penstock.errors import Forbidden, Unauthenticated

# A subject that is not a UUID is mapped to UUIDv5(namespace, issuer + subject).
_USER_ID_NAMESPACE = UUID("6f1c7a52-0f0e-5d6c-9a53-7c1b6f3f2a10")
_MAX_SUBJECT_LENGTH = 255


class Role(IntEnum):
    """Roles in ascending order; each includes the rights of the roles below it."""

    VIEWER = 1
    DEVELOPER = 2
    ADMIN = 3

    @property
    def claim(self) -> str:
        """Return the role's name in the token claim `roles`."""
        return f"analytics.{self.name.lower()}"


ROLES = {role.claim: role for role in Role}


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: UUID
    user: UUID
    name: str  # for display: the token's subject, or the local login
    role: Role

    def require(self, role: Role) -> None:
        """Raise `Forbidden` if the caller's role is lower than `role`."""
        if self.role < role:
            raise Forbidden(
                "role_too_low",
                {"caller": self.name, "role": self.role.claim},
                required_role=role.claim,
            )


def local_caller(tenant: UUID, login: str) -> Caller:
    """Return the caller of the local command line: an admin of the workspace's tenant."""
    return Caller(tenant, user_id("local", login), f"{login} (local)", Role.ADMIN)


def user_id(issuer: str, subject: str) -> UUID:
    """Return the user id of a token's subject: the subject itself if it is a UUID, else a UUIDv5."""
    return parse_uuid(subject) or uuid5(_USER_ID_NAMESPACE, f"{issuer}\n{subject}")


def caller_from_claims(claims: Mapping[str, Any]) -> Caller:
    """Return the caller of verified token claims."""
    subject, roles = claims.get("sub"), claims.get("roles")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_LENGTH:
        raise Unauthenticated("bad_token.bad_subject", {"max_length": _MAX_SUBJECT_LENGTH})
    tenant = claims.get("tenant_id")
    if not isinstance(tenant, str) or not (id := parse_uuid(tenant)):
        raise Unauthenticated("bad_token.bad_tenant")
    if not isinstance(roles, list):
        raise Unauthenticated("bad_token.bad_roles")
    granted = [ROLES[role] for role in roles if isinstance(role, str) and role in ROLES]
    if not granted:
        raise Forbidden("missing_role", {"roles": list(ROLES)}, required_role=Role.VIEWER.claim)
    return Caller(id, user_id(str(claims.get("iss", "")), subject), subject, max(granted))


LOCAL_CALLER = local_caller(UUID(int=0), "local")  # of work that no tenant requested
