"""Who is calling: a tenant, a user and a role. Every use of the catalog carries one."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID, uuid5

from penstock.core.names import uuid
from penstock.errors import Forbidden, Unauthenticated

# A `sub` that is no UUID becomes UUIDv5 of this space, the issuer and the sub.
_PEOPLE = UUID("6f1c7a52-0f0e-5d6c-9a53-7c1b6f3f2a10")
_MAX_SUBJECT = 255


class Role(IntEnum):
    """Each role may do what the ones below it may."""

    VIEWER = 1
    DEVELOPER = 2
    ADMIN = 3

    @property
    def wire(self) -> str:
        return f"analytics.{self.name.lower()}"


ROLES = {role.wire: role for role in Role}


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: UUID
    user: UUID
    name: str  # for people: the token's subject, or the local user
    role: Role

    def require(self, role: Role) -> None:
        if self.role < role:
            raise Forbidden(
                "role_too_low",
                f"this needs the role {role.wire}; {self.name} has {self.role.wire}",
                required_role=role.wire,
            )


def local(tenant: UUID, login: str) -> Caller:
    """The person at the workspace's own command line: an admin of its tenant."""
    return Caller(tenant, person("local", login), f"{login} (local)", Role.ADMIN)


def person(issuer: str, subject: str) -> UUID:
    return uuid(subject) or uuid5(_PEOPLE, f"{issuer}\n{subject}")


def from_claims(claims: Mapping[str, Any]) -> Caller:
    """The caller that verified token claims speak of."""
    subject, roles = claims.get("sub"), claims.get("roles")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT:
        raise Unauthenticated("bad_token", f"the token's sub must be text of 1 to {_MAX_SUBJECT} characters")
    tenant = claims.get("tenant_id")
    if not isinstance(tenant, str) or not (id := uuid(tenant)):
        raise Unauthenticated("bad_token", "the token's tenant_id must be a UUID")
    if not isinstance(roles, list):
        raise Unauthenticated("bad_token", "the token's roles must be a list")
    known = [ROLES[role] for role in roles if isinstance(role, str) and role in ROLES]
    if not known:
        raise Forbidden(
            "no_role", f"the token gives none of the roles {', '.join(ROLES)}", required_role=Role.VIEWER.wire
        )
    return Caller(id, person(str(claims.get("iss", "")), subject), subject, max(known))
